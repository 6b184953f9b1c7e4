"""What a trained rollout is in numbers: facts of its rows, sums of its optimizer steps, and the report made of them.

Pure; used by the leader's report. Every figure has a row of `METRICS`, or is an objective's: docs/metrics.md is made of
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rljob_api.names import RolloutId, WeightVersion
from rljob_api.wire.identity import Incarnation
from rljob_api.wire.ranks import StepReport
from rljob_workers.algorithms.metric_totals import Totals, merged, values_of
from rljob_workers.engines.base import FINISH_LENGTH
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import drawn_for, draws_of, unpack_rows
from rljob_workers.trainers.base import OptimizerStepResult
from rljob_workers.training.row_metrics import RowMetricTotals, beside
from rljob_workers.transfer_queue.types import Batch


def is_truncated(batch: Batch) -> torch.Tensor:
    """Whether the response of each row was cut off, [rows] bool."""
    return batch.columns[Column.FINISH_REASONS].values == FINISH_LENGTH


FACTS = (
    "row",
    "group",
    "oldest_version",
    "reward",
    "response_length",
    "valid",
    "truncated",
    "token_staleness",
    "prompt_length",
    "drawn_tokens",
    "reward_kl",
    "draws",
    "last_draw_refused",
    "drawn_for",
    "left_out",
    "too_old_tokens",
    "learnt",
)
"""Columns of `slice_facts`; float64 holds every one of them exactly. `token_staleness` is summed over the tokens that
the model drew, of which there are `drawn_tokens`: rollout id minus the version that made each. `reward_kl` is the sum
over the same tokens of the KL that is taken off rewards, and NaN in jobs where none is. The next three are of the
row's group: of `rollout.dynamicSampling`, NaN where no filter has seen it, and the rollout that it was begun for, NaN
in jobs that bind it to that. `left_out`: by `algorithm.sampleFilter`, and NaN in jobs without it.
`too_old_tokens` are drawn ones that are not learnt from (`rollout.partial` with `order: Swap`), NaN in other jobs; in
these `oldest_version` and `token_staleness` are of the other tokens, the version of a row without any is its newest.
`learnt`: 1 where the policy's loss has a token of the row."""


def slice_facts(
    batch: Batch, learnt: torch.Tensor, left_out: torch.Tensor | None = None, max_age: int | None = None
) -> torch.Tensor:
    """[rows, len(FACTS)] float64, columns as in FACTS: what rank 0 must know of every rank's rows.

    `learnt`, [rows] bool: which have a token that is learnt from. `left_out`, [rows] bool: which of them the job's
    filter leaves out all the same; None: it has none. `max_age`: of tokens that are learnt from; None: all are.
    """
    if left_out is not None:
        learnt = learnt & ~left_out
    lengths = batch.columns[Column.RESPONSE_LENGTHS].values
    oldest, staleness, drawn, too_old = _of_spans(batch, max_age)
    columns = (
        torch.from_numpy(batch.rows.astype(np.float64)),
        torch.from_numpy(batch.groups.astype(np.float64)),
        oldest,
        batch.columns[Column.REWARDS].values.double(),
        lengths.double(),
        batch.columns[Column.VALID].values.double(),
        is_truncated(batch).double(),
        staleness,
        (batch.columns[Column.TOKENS].lengths - lengths).double(),
        drawn,
        _reward_kl(batch),
        *_of_extra(batch),
        torch.full((len(batch.rows),), torch.nan, dtype=torch.float64) if left_out is None else left_out.double(),
        too_old,
        learnt.double(),
    )
    return torch.stack(columns, dim=1)


def _reward_kl(batch: Batch) -> torch.Tensor:
    if Column.REWARD_KL in batch.columns:
        return batch.columns[Column.REWARD_KL].values.double()
    return torch.full((len(batch.rows),), torch.nan, dtype=torch.float64)


def _of_extra(batch: Batch) -> Sequence[torch.Tensor]:
    """Of each row's group the last three of FACTS, each [rows] float64."""
    unknown = (torch.nan, torch.nan)
    found: list[tuple[float, float, float]] = [(*unknown, torch.nan)] * len(batch.rows)
    if Column.EXTRA in batch.columns:  # rows of a release before it have none
        facts = [row.facts for row in unpack_rows(batch.columns[Column.EXTRA])]
        found = [(*(draws_of(of_row) or unknown), drawn_for(of_row)) for of_row in facts]
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 3).unbind(1)


def _of_spans(batch: Batch, max_age: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each row its oldest version, the staleness of all its tokens, how many were drawn, and how many are too old.

    Each [rows] float64, as in FACTS.
    """
    spans = batch.columns[Column.VERSION_SPANS]
    _, versions, starts, ends = spans.values.double().unbind(1)
    num_spans = spans.offsets.diff()
    row_of_span = torch.arange(len(num_spans)).repeat_interleave(num_spans)
    zeros = torch.zeros(len(num_spans), dtype=torch.float64)
    ages, counts = batch.rollout_id - versions, ends - starts
    drawn, oldest = zeros.index_add(0, row_of_span, counts), torch.from_numpy(batch.oldest_versions.astype(np.float64))
    if max_age is None:
        return oldest, zeros.index_add(0, row_of_span, ages * counts), drawn, torch.full_like(drawn, torch.nan)
    is_learnt = ages <= max_age
    too_old = zeros.index_add(0, row_of_span, torch.where(is_learnt, 0.0, counts))
    learnt_ages = torch.where(is_learnt, ages, -torch.inf)
    largest = torch.full_like(zeros, -torch.inf).scatter_reduce(0, row_of_span, learnt_ages, "amax")
    newest = torch.full_like(zeros, torch.inf).scatter_reduce(0, row_of_span, ages, "amin")
    age = torch.where(largest.isfinite(), largest, torch.where(newest.isfinite(), newest, 0.0))
    learnt_staleness = zeros.index_add(0, row_of_span, torch.where(is_learnt, ages * counts, 0.0))
    return batch.rollout_id - age, learnt_staleness, drawn, too_old


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a report, for the page of metrics."""

    name: str
    """`group/what`, unique in the job."""
    unit: str
    formula: str
    """One line."""


METRICS = (
    Figure("reward/mean", "", "mean reward of the valid samples"),
    Figure("reward/std", "", "standard deviation of the rewards of the valid samples (n - 1)"),
    Figure("groups/all_right", "share", "groups whose valid samples all have a reward of 1 or more"),
    Figure("groups/all_wrong", "share", "groups whose valid samples all have a reward of 0 or less"),
    Figure("groups/mixed", "share", "the other groups"),
    Figure("groups/no_variance", "share", "groups whose valid samples all have one reward: they teach nothing"),
    Figure(
        "groups/draws",
        "draws",
        "draws for each group, those that rollout.dynamicSampling refused and the one that is trained on",
    ),
    Figure(
        "groups/last_draw_refused",
        "share",
        "groups that are trained on though the filter refuses them: it was draw rollout.dynamicSampling.maxAttempts",
    ),
    Figure("groups/brought_forward", "share", "groups that were begun for a later rollout (rollout.order Swap)"),
    Figure("groups/put_off", "share", "groups that were begun for an earlier rollout, which another group went to"),
    Figure("prompt_length/mean", "tokens", "tokens of the prompt"),
    Figure("prompt_length/max", "tokens", "tokens of the longest prompt"),
    Figure("response_length/mean", "tokens", "tokens of the response, those that a tool wrote included"),
    Figure("response_length/max", "tokens", "tokens of the longest response"),
    Figure("response_length/truncated_share", "share", "samples that were cut off"),
    Figure("samples/invalid_share", "share", "samples without a score"),
    Figure("samples/filtered_share", "share", "samples that algorithm.sampleFilter leaves out of the loss"),
    Figure("samples/learnt_share", "share", "samples of which the policy's loss has a token: scored, and not left out"),
    Figure("samples/drawn_share", "share", "response tokens that the model drew; the others are a tool's"),
    Figure("staleness/mean", "versions", "r minus the version that drew the token, of tokens that are not too old"),
    Figure("staleness/max", "versions", "r minus the oldest version that drew a token that is not too old"),
    Figure(
        "staleness/too_old_share",
        "share",
        "drawn tokens that are not learnt from: r minus their version is above rollout.maxStaleness, where groups are"
        " carried on (rollout.partial)",
    ),
    Figure(
        "kl/in_reward",
        "nats",
        "KL to the reference that is taken off rewards: of the policy before training, by the estimator, without the"
        " coefficient, mean over drawn tokens of valid samples",
    ),
    Figure("optimizer/grad_norm", "", "norm of the gradient before clipping, mean over steps"),
    Figure("optimizer/grad_norm_max", "", "the same, of the step with the largest"),
    Figure("optimizer/learning_rate", "", "of the last optimizer step"),
    Figure("optimizer/skipped_steps", "steps", "optimizer steps that were skipped as not finite"),
    Figure("throughput/tokens_per_second", "1/s", "prompt and response tokens over the step's seconds"),
    Figure("throughput/samples_per_second", "1/s", "samples over the step's seconds"),
    Figure("seconds/train", "s", "forward and backward passes and optimizer steps, of the leader"),
    Figure("seconds/log_probs", "s", "proximal log-probs, where the actor computes them"),
    Figure("seconds/publish", "s", "until the new version is visible"),
    Figure("seconds/stage_checkpoint", "s", "copying what is saved"),
    Figure("seconds/waiting", "s", "the rest: mostly waiting for rows"),
    Figure(
        "idle/actor",
        "share",
        "of the time of the actor's ranks, what they waited for rows, by beats since the step before, or as there",
    ),
    Figure(
        "idle/engines",
        "share",
        "of the engines' capacity, what was idle since tickets were withheld; by beats as well",
    ),
)
"""What every report has, beside the objective's metrics and those of rewards; skipped steps where there were any, a KL
where algorithm.kl.placement is Reward, draws where there is a rollout.dynamicSampling, the groups that were exchanged
where rollout.order is Swap, a filtered share where there is an algorithm.sampleFilter."""


CRITIC_METRICS = (
    Figure("critic/loss", "", "mean over the critic's optimizer steps"),
    Figure("critic/grad_norm", "", "norm of its gradient before clipping, mean over steps"),
    Figure("critic/grad_norm_max", "", "the same, of the step with the largest"),
    Figure("critic/learning_rate", "", "of its last optimizer step"),
    Figure("critic/skipped_steps", "steps", "optimizer steps that were skipped as not finite"),
    Figure("critic/seconds_train", "s", "forward and backward passes and optimizer steps, of its first rank"),
    Figure("critic/seconds_values", "s", "values, of its first rank"),
    Figure("critic/seconds_stage_checkpoint", "s", "copying what is saved"),
    Figure("critic/seconds_waiting", "s", "the rest"),
)
"""What a report has of the critic, beside its objective's metrics; skipped steps where there were any."""


@dataclass(slots=True)
class RolloutTally:
    """What is known of the rollout in training, summed up as its optimizer steps pass."""

    facts: list[torch.Tensor] = field(default_factory=list)
    """[rows, len(FACTS)] of every first-pass slice of every rank."""
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)
    """The objective's metrics of each step."""
    carried: RowMetricTotals = field(default_factory=RowMetricTotals)
    """The metrics of the rows of every first-pass slice, and of a user's loss: of this rank, and for the report of all
    ranks."""
    learning_rate: float = 0.0
    """Of the last step."""
    skipped_steps: int = 0

    def add_step(self, result: OptimizerStepResult) -> None:
        """Adds an optimizer step; of one that was skipped nothing but that it was."""
        if result.skipped is not None:
            self.skipped_steps += 1
            return
        self.losses.append(result.loss)
        self.grad_norms.append(result.grad_norm)
        self.totals.append(result.totals)
        self.carried.add_loss(result.own)
        self.learning_rate = result.learning_rate

    def report(
        self, incarnation: Incarnation, rollout_id: RolloutId, seconds: float, phases: Mapping[str, float]
    ) -> StepReport:
        """The step that trained the rollout, after `seconds`; all slices must have been added.

        The reward is the mean over the valid samples, the loss that over the steps taken (0 where all were skipped).
        `phases`: seconds of the leader by what it did.
        """
        facts = dict(zip(FACTS, torch.cat(self.facts).unbind(1), strict=True))
        of_rows = row_metrics(facts, rollout_id)
        samples, tokens = len(facts["row"]), int(facts["response_length"].sum())
        all_tokens = tokens + int(facts["prompt_length"].sum())
        rates = {
            "throughput/tokens_per_second": all_tokens / seconds if seconds else 0.0,
            "throughput/samples_per_second": samples / seconds if seconds else 0.0,
        }
        return StepReport(
            incarnation=incarnation,
            step=rollout_id,
            version=WeightVersion(rollout_id + 1),
            reward=of_rows["reward/mean"],
            loss=sum(self.losses) / max(1, len(self.losses)),
            metrics=beside(
                {
                    **self._of_steps(),
                    **of_rows,
                    **rates,
                    **{f"seconds/{phase.replace(' ', '_')}": spent for phase, spent in phases.items()},
                    "seconds/waiting": max(0.0, seconds - sum(phases.values())),
                },
                self.carried,
            ),
            staleness=int(of_rows["staleness/max"]),
            samples=samples,
            tokens=tokens,
            seconds=seconds,
        )

    def of_critic(self, seconds: float, phases: Mapping[str, float]) -> dict[str, float]:
        """The critic's figures of the rollout that it trained on, as in `CRITIC_METRICS`, after `seconds`."""
        return {
            **({"critic/loss": sum(self.losses) / len(self.losses)} if self.losses else {}),
            **self._of_steps("critic"),
            **{f"critic/seconds_{phase.replace(' ', '_')}": spent for phase, spent in phases.items()},
            "critic/seconds_waiting": max(0.0, seconds - sum(phases.values())),
        }

    def _of_steps(self, group: str = "optimizer") -> dict[str, float]:
        """Over all optimizer steps that were taken, and how many were not; named as of `group`."""
        skipped = {f"{group}/skipped_steps": float(self.skipped_steps)} if self.skipped_steps else {}
        if not self.grad_norms:
            return skipped
        return {
            **values_of(merged(self.totals)),
            f"{group}/grad_norm": sum(self.grad_norms) / len(self.grad_norms),
            f"{group}/grad_norm_max": max(self.grad_norms),
            f"{group}/learning_rate": self.learning_rate,
            **skipped,
        }


def row_metrics(facts: Mapping[str, torch.Tensor], rollout_id: RolloutId) -> dict[str, float]:
    """Of all rows of `train_r`, by the columns of FACTS, each [rows] float64."""
    is_valid, rewards = facts["valid"] > 0, facts["reward"]
    valid_rewards = rewards[is_valid]
    lengths, prompts, drawn = facts["response_length"], facts["prompt_length"], facts["drawn_tokens"]
    return {
        "reward/mean": float(valid_rewards.mean()) if len(valid_rewards) else 0.0,
        "reward/std": float(valid_rewards.std()) if len(valid_rewards) > 1 else 0.0,
        **_group_shares(facts["group"][is_valid], valid_rewards),
        **_draws_of_groups(facts),
        **_exchanged(facts["drawn_for"], rollout_id),
        "prompt_length/mean": float(prompts.mean()),
        "prompt_length/max": float(prompts.max()),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/truncated_share": float(facts["truncated"].mean()),
        "samples/invalid_share": 1.0 - float(facts["valid"].mean()),
        **_filtered_share(facts["left_out"]),
        "samples/learnt_share": float(facts["learnt"].mean()),
        "samples/drawn_share": float(drawn.sum() / lengths.sum().clamp(min=1.0)),
        **_staleness(facts, rollout_id),
        **_kl_in_reward(facts["reward_kl"][is_valid], drawn[is_valid]),
    }


def _kl_in_reward(sums: torch.Tensor, drawn_tokens: torch.Tensor) -> dict[str, float]:
    """Of valid samples; nothing where there is none, or no KL is taken off rewards."""
    if not len(sums) or not bool(sums.isfinite().all()):
        return {}
    return {"kl/in_reward": float(sums.sum() / drawn_tokens.sum().clamp(min=1.0))}


def _filtered_share(left_out: torch.Tensor) -> dict[str, float]:
    """Nothing where no filter was asked."""
    return {} if bool(left_out.isnan().any()) else {"samples/filtered_share": float(left_out.mean())}


def _draws_of_groups(facts: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Over groups that a filter has seen: every row of one says the same, and all groups have as many rows."""
    is_seen = facts["draws"].isfinite()
    if not bool(is_seen.any()):
        return {}
    return {
        "groups/draws": float(facts["draws"][is_seen].mean()),
        "groups/last_draw_refused": float(facts["last_draw_refused"][is_seen].mean()),
    }


def _staleness(facts: Mapping[str, torch.Tensor], rollout_id: RolloutId) -> dict[str, float]:
    """Over tokens that are learnt from, and where some may be too old for that, their share."""
    drawn, too_old, oldest = facts["drawn_tokens"], facts["too_old_tokens"], facts["oldest_version"]
    if not bool(too_old.isnan().any()):
        learns = too_old < drawn
        oldest, share = oldest[learns], {"staleness/too_old_share": float(too_old.sum() / drawn.sum().clamp(min=1.0))}
        drawn = drawn - too_old
    else:
        share = {}
    return {
        "staleness/mean": float(facts["token_staleness"].sum() / drawn.sum().clamp(min=1.0)),
        "staleness/max": float(rollout_id - oldest.min()) if len(oldest) else 0.0,
        **share,
    }


def _exchanged(begun: torch.Tensor, rollout_id: RolloutId) -> dict[str, float]:
    """Every row of a group says the same, and all groups have as many rows."""
    if not bool(begun.isfinite().any()):
        return {}
    return {
        "groups/brought_forward": float((begun > rollout_id).double().mean()),
        "groups/put_off": float((begun < rollout_id).double().mean()),
    }


def _group_shares(groups: torch.Tensor, rewards: torch.Tensor) -> dict[str, float]:
    """Of valid samples; a group without one is none."""
    names, place = torch.unique(groups, return_inverse=True)
    count = max(1, len(names))
    lowest = torch.full((len(names),), torch.inf, dtype=torch.float64).scatter_reduce(0, place, rewards, "amin")
    highest = torch.full((len(names),), -torch.inf, dtype=torch.float64).scatter_reduce(0, place, rewards, "amax")
    right, wrong = float((lowest >= 1.0).sum()) / count, float((highest <= 0.0).sum()) / count
    return {
        "groups/all_right": right,
        "groups/all_wrong": wrong,
        "groups/mixed": len(names) / count - right - wrong,
        "groups/no_variance": float((lowest == highest).sum()) / count,
    }
