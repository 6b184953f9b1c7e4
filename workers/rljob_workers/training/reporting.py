"""What rank 0 of the actor reports of its training: audit lines, samples logged as text, the report of each step.

Called by the training loop; every rank gives the facts of its rows. Audit lines of step s are durable before version
s + 1 is published, and so before any record that contains s. Logged samples are spread over a rollout by place,
whatever their reward.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rljob_api.names import RolloutId, WeightVersion, partition_name
from rljob_api.wire.identity import Incarnation
from rljob_api.wire.ranks import StepReport
from rljob_workers.algorithms.metric_totals import Totals, merged, values_of
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.engines.base import FINISH_CODES, FINISH_LENGTH
from rljob_workers.models.tokenizers import TextDecoder, text_decoder
from rljob_workers.rank_loop import RankParts
from rljob_workers.telemetry.sample_logs import GenerationLog, LoggedGeneration, SampleLog, SpanOfVersion, TrainedSample
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.base import OptimizerStepResult
from rljob_workers.transfer_queue.dataset import TrainingSlice
from rljob_workers.transfer_queue.types import Batch

_FINISH_REASONS = {code: reason for reason, code in FINISH_CODES.items()}


def is_truncated(batch: Batch) -> torch.Tensor:
    """Whether the response of each row was cut off, [rows] bool."""
    return batch.columns[Column.FINISH_REASONS].values == FINISH_LENGTH


FACTS = ("row", "group", "oldest_version", "reward", "response_length", "valid", "truncated", "token_staleness")
"""Columns of `slice_facts`; float64 holds every one of them exactly. `token_staleness` is summed over the row's tokens:
rollout id minus the version that made each."""


def slice_facts(batch: Batch) -> torch.Tensor:
    """[rows, 8] float64, columns as in FACTS: what rank 0 must know of every rank's rows."""
    columns = (
        torch.from_numpy(batch.rows.astype(np.float64)),
        torch.from_numpy(batch.groups.astype(np.float64)),
        torch.from_numpy(batch.oldest_versions.astype(np.float64)),
        batch.columns[Column.REWARDS].values.double(),
        batch.columns[Column.RESPONSE_LENGTHS].values.double(),
        batch.columns[Column.VALID].values.double(),
        is_truncated(batch).double(),
        _token_staleness(batch),
    )
    return torch.stack(columns, dim=1)


def _token_staleness(batch: Batch) -> torch.Tensor:
    """[rows] float64."""
    spans = batch.columns[Column.VERSION_SPANS]
    _, versions, starts, ends = spans.values.double().unbind(1)
    num_spans = spans.offsets.diff()
    row_of_span = torch.arange(len(num_spans)).repeat_interleave(num_spans)
    of_spans = (batch.rollout_id - versions) * (ends - starts)
    return torch.zeros(len(num_spans), dtype=torch.float64).index_add_(0, row_of_span, of_spans)


@dataclass(slots=True)
class RolloutTally:
    """What is known of the rollout in training, summed up as its optimizer steps pass."""

    facts: list[torch.Tensor] = field(default_factory=list)
    """[rows, 8] of every first-pass slice of every rank."""
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)
    """The objective's metrics of each step."""
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
        self.learning_rate = result.learning_rate

    def report(self, incarnation: Incarnation, rollout_id: RolloutId, seconds: float) -> StepReport:
        """The step that trained the rollout, after `seconds`; all slices must have been added.

        The reward is the mean over the valid samples, the loss that over the steps taken (0 where all were skipped).
        """
        facts = torch.cat(self.facts)
        _, _, oldest, rewards, lengths, valid, truncated, staleness = facts.unbind(1)
        skipped = {"skipped_steps": float(self.skipped_steps)} if self.skipped_steps else {}
        shares = {
            "response_length": float(lengths.mean()),
            "invalid_share": 1.0 - float(valid.mean()),
            "truncated_share": float(truncated.mean()),
            "token_staleness": float(staleness.sum() / lengths.sum().clamp(min=1.0)),
        }
        return StepReport(
            incarnation=incarnation,
            step=rollout_id,
            version=WeightVersion(rollout_id + 1),
            reward=float((rewards * valid).sum() / valid.sum().clamp(min=1.0)),
            loss=sum(self.losses) / max(1, len(self.losses)),
            metrics={**self._of_steps(), **skipped, **shares},
            staleness=rollout_id - int(oldest.min()),
            samples=len(facts),
            tokens=int(lengths.sum()),
            seconds=seconds,
        )

    def _of_steps(self) -> dict[str, float]:
        """Over all optimizer steps that were taken."""
        if not self.grad_norms:
            return {}
        return {
            **values_of(merged(self.totals)),
            "optimizer/grad_norm": sum(self.grad_norms) / len(self.grad_norms),
            "optimizer/grad_norm_max": max(self.grad_norms),
            "optimizer/learning_rate": self.learning_rate,
        }


def places_to_log(rollout_id: int, num_rows: int, slice_index: int, num_slices: int, count: int) -> list[int]:
    """Places in a slice of `num_rows` rows, so that `count` of all slices are chosen, evenly.

    One of each stretch of equal length, and in each another one: of other places in their groups.
    """
    of_slice = count * (slice_index + 1) // num_slices - count * slice_index // num_slices
    chosen = min(of_slice, num_rows)
    stretch = num_rows // max(1, chosen)
    return [number * stretch + (number + rollout_id) % stretch for number in range(chosen)]


class GenerationSampler:
    """Chooses samples of each rollout and logs them as text."""

    def __init__(
        self, log: GenerationLog, decode: TextDecoder, *, per_rollout: int, num_slices: int, samples_per_prompt: int
    ) -> None:
        """`decode` leaves special tokens in: they show what is wrong with a template."""
        self._log = log
        self._decode = decode
        self._per_rollout = per_rollout
        self._num_slices = num_slices
        self._samples_per_prompt = samples_per_prompt

    def add(self, rollout_id: RolloutId, epoch: int, slice_index: int, batch: Batch) -> None:
        """Logs some rows of a slice."""
        places = places_to_log(rollout_id, len(batch.rows), slice_index, self._num_slices, self._per_rollout)
        if places:
            self._log.append(list(self._logged(rollout_id, epoch, batch, places)))

    def _logged(self, rollout_id: RolloutId, epoch: int, batch: Batch, places: list[int]) -> Iterator[LoggedGeneration]:
        columns = batch.columns
        rows = [columns[Column.TOKENS].row(place).tolist() for place in places]
        lengths = [int(columns[Column.RESPONSE_LENGTHS].values[place]) for place in places]
        cuts = [len(row) - length for row, length in zip(rows, lengths, strict=True)]
        texts = self._decode([part for row, cut in zip(rows, cuts, strict=True) for part in (row[:cut], row[cut:])])
        for number, place in enumerate(places):
            advantages = columns[Column.ADVANTAGES].row(place)
            yield LoggedGeneration(
                rollout=rollout_id,
                epoch=epoch,
                group=int(batch.groups[place]),
                index=int(batch.rows[place]) % self._samples_per_prompt,
                prompt=texts[2 * number],
                response=texts[2 * number + 1],
                prompt_tokens=cuts[number],
                response_tokens=lengths[number],
                finish_reason=_FINISH_REASONS[int(columns[Column.FINISH_REASONS].values[place])],
                reward=float(columns[Column.REWARDS].values[place]),
                valid=bool(columns[Column.VALID].values[place]),
                advantage=float(advantages[0]) if len(advantages) else 0.0,
                versions=[SpanOfVersion(*span) for span in columns[Column.VERSION_SPANS].row(place).tolist()],
            )


class Leader:
    """Global rank 0 of the actor."""

    def __init__(
        self,
        session: RankSession,
        samples: SampleLog | None,
        generations: GenerationSampler | None,
        samples_per_prompt: int,
    ) -> None:
        """`samples` is None where the audit is off, `generations` where no texts are logged."""
        self._session = session
        self._samples = samples
        self._generations = generations
        self._samples_per_prompt = samples_per_prompt
        self._step_began = time.monotonic()

    @classmethod
    def of(cls, rank: RankParts, tokenizer: PreTrainedTokenizerBase, num_slices: int) -> Leader:
        """Of a job whose rollouts are trained in `num_slices` slices; opens its logs."""
        telemetry, per_group = rank.spec.telemetry, rank.spec.rollout.samples_per_prompt
        folder = Path(rank.context.endpoints.run_dir)
        samples = SampleLog(folder / "samples.jsonl") if telemetry.sample_log else None
        if not telemetry.generations_per_rollout:
            return cls(rank.session, samples, None, per_group)
        generations = GenerationSampler(
            GenerationLog(folder),
            text_decoder(tokenizer, skip_special_tokens=False),
            per_rollout=telemetry.generations_per_rollout,
            num_slices=num_slices,
            samples_per_prompt=per_group,
        )
        return cls(rank.session, samples, generations, per_group)

    def begin(self) -> None:
        """The first step begins now."""
        self._step_began = time.monotonic()

    def log_slice(
        self, rollout_id: RolloutId, pass_index: int, part: TrainingSlice, facts: Sequence[torch.Tensor]
    ) -> None:
        """Audit lines of a slice of every rank, and in the first pass the texts of some of its own rows.

        `facts` as in FACTS, by rank.
        """
        epoch = self._session.incarnation.epoch
        if self._samples is not None:
            name, per_group = partition_name(rollout_id), self._samples_per_prompt
            self._samples.append(
                [
                    TrainedSample(
                        name,
                        int(group),
                        int(row) % per_group,
                        int(oldest),
                        rollout_id,
                        epoch,
                        pass_index,
                        reward,
                        bool(valid),
                    )
                    for row, group, oldest, reward, _, valid, *_ in torch.cat(list(facts)).tolist()
                ]
            )
        if self._generations is not None and pass_index == 0:
            self._generations.add(rollout_id, epoch, part.index, part.batch)

    def sync_samples(self) -> None:
        """Makes the audit lines durable that were logged so far."""
        if self._samples is not None:
            self._samples.sync()

    def report(self, rollout_id: RolloutId, tally: RolloutTally) -> None:
        """Reports the trained step, whose version is published."""
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        self._session.report_step(tally.report(self._session.incarnation, rollout_id, seconds))
