"""Signs in the metrics of steps that a job learns nothing, or no longer what it should: a policy.

    examined = after_step(spec, known, report)   in the transaction of the step: its troubles become events

Pure. `steps` and `background_care` ask it and commit what it answers. Each trouble is reported once in the job: what
was reported outlives epochs, resumes and, as of the last record, the control state (`CheckpointRecord.health`). A row
of steps ends with the steps that a restart takes back. A trouble that goes and comes again is no news.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from rljob_api.spec.algorithm import NoVariance, Truncated
from rljob_api.wire.checkpoints import Health, StepRow
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.coordinator.missed_metrics import Missed, missed_in_evaluation, missed_in_step

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec
    from rljob_api.wire.checkpoints import CheckpointRecord
    from rljob_api.wire.observation import EvaluationReport
    from rljob_api.wire.ranks import StepReport

Metrics = Mapping[str, float]

SOLVED_SHARE = 0.95
"""Groups whose answers are all right: where nearly all are, nothing is left to learn, and no sign is a trouble."""


SURE_STEPS = 10
"""In a row. A task that is hardly ever solved has single steps without a difference in rewards, and a policy that has
collapsed has nothing else: its samples are all alike, so that no gradient brings it back."""


FEW_STEPS = 2
"""In a row, of what a small batch may show once, and hardly twice."""


LOWEST_ENTROPY = 1e-3
"""Nats a token: of 10 000 tokens about one is not the likeliest. Policies that still explore have a hundredth and more,
the quickstart's has 0.002 at its end."""


MISMATCH = 0.01
"""Nats a token, below which engine and trainer agree: the correction's weights are then within some tenths of 1."""


MISMATCH_GROWTH = 10.0
"""Times what it was in the first steps. What is large from the start is found when an epoch begins, by a probe."""


FIRST_STEPS = 10
"""Steps by which later ones are measured."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An event that is reported."""

    kind: EventKind
    message: str


@dataclass(frozen=True, slots=True)
class Examined:
    """The knowledge after a report, and the news in it."""

    health: Health
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A step as the signs look at it."""

    spec: RLJobSpec
    metrics: Metrics
    known: Health
    step: int

    @property
    def is_solved(self) -> bool:
        """Whether nearly all answers are right."""
        return self.metrics.get("groups/all_right", 0.0) >= SOLVED_SHARE

    @property
    def trains_policy(self) -> bool:
        """Whether the actor trains on it, and computes a model."""
        critic_only = self.spec.training.critic_only_steps or 0
        return self.step >= critic_only and self.spec.trainer_backend != "Sim"


@dataclass(frozen=True, slots=True)
class Sign:
    """A trouble that shows in each of some steps in a row."""

    kind: EventKind
    after: int
    """Steps."""
    shows: Callable[[Seen], bool]
    sentence: Callable[[Seen], str]
    """The part behind `steps 10 to 19: `, with the cure."""


def after_step(spec: RLJobSpec, known: Health, report: StepReport) -> Examined:
    """A step was trained; one that a restart repeats is the same step again."""
    seen = Seen(spec, report.metrics, known, report.step)
    rows: dict[str, StepRow] = {}
    reported, troubles = dict(known.reported), []
    for sign in SIGNS:
        if not sign.shows(seen):
            continue
        name = sign.kind.value
        row = rows[name] = StepRow.continued(known.rows.get(name), report.step)
        if row.num_steps >= sign.after and name not in reported:
            reported[name] = report.step
            troubles.append(Trouble(sign.kind, f"{_steps_of(row)}: {sign.sentence(seen)}"))
    missed = missed_in_step(spec, known, report, trains_policy=seen.trains_policy)
    health = Health(
        rows=rows | missed.rows,
        reported=reported | dict.fromkeys(missed.sentences, report.step),
        came=missed.came,
        first_mismatches=_first_mismatches(known, report),
    )
    return Examined(health, (*troubles, *_troubles_of(missed)))


def after_evaluation(spec: RLJobSpec, known: Health, report: EvaluationReport) -> Examined:
    """A version was evaluated."""
    missed = missed_in_evaluation(spec, known, report)
    reported = known.reported | dict.fromkeys(missed.sentences, report.version)
    return Examined(known.model_copy(update={"reported": reported, "came": missed.came}), _troubles_of(missed))


def restored(known: Health | None, record: CheckpointRecord | None, version: int) -> Health | None:
    """The knowledge in an epoch that begins with `version`: step `version` is the next.

    `record` is the one that it begins with where the control Redis has another, or none.
    """
    recorded = None if record is None else record.health
    if known is None or recorded is None:
        known = known or recorded
    else:
        known = known.model_copy(
            update={"reported": recorded.reported | known.reported, "came": sorted({*recorded.came, *known.came})}
        )
    if known is None:
        return None
    rows = {name: row.model_copy(update={"last": min(row.last, version - 1)}) for name, row in known.rows.items()}
    return known.model_copy(
        update={
            "rows": {name: row for name, row in rows.items() if row.first <= row.last},
            "first_mismatches": {step: value for step, value in known.first_mismatches.items() if step < version},
        }
    )


def _steps_of(row: StepRow) -> str:
    return f"step {row.last}" if row.first == row.last else f"steps {row.first} to {row.last}"


def _troubles_of(missed: Missed) -> tuple[Trouble, ...]:
    return tuple(Trouble(EventKind.METRIC_MISSING, sentence) for sentence in missed.sentences.values())


def _first_mismatches(known: Health, report: StepReport) -> dict[int, float]:
    first, value = known.first_mismatches, report.metrics.get("mismatch/kl")
    if value is None or (len(first) >= FIRST_STEPS and report.step not in first):
        return first
    return first | {report.step: value}


def _learns_nothing(seen: Seen) -> bool:
    return seen.trains_policy and not seen.is_solved and seen.metrics.get("samples/learnt_share") == 0.0


def _why_nothing(seen: Seen) -> str:
    """The shares add up to 1 and more: a sample may be left out for several reasons."""
    metrics, algorithm = seen.metrics, seen.spec.algorithm
    invalid = metrics.get("samples/invalid_share", 0.0)
    cut_off = metrics.get("response_length/truncated_share", 0.0) if algorithm.truncated is Truncated.MASK else 0.0
    alike = metrics.get("groups/no_variance", 0.0) if algorithm.no_variance is NoVariance.LEAVE_OUT else 0.0
    filtered = metrics.get("samples/filtered_share", 0.0)
    old = metrics.get("staleness/too_old_share", 0.0)
    causes = [
        (filtered, f"algorithm.sampleFilter left out {filtered:.0%} of them: have it return True for some"),
        (cut_off, f"algorithm.truncated: Mask left out {cut_off:.0%}, which were cut off: raise sampling.maxNewTokens"),
        (
            alike,
            f"algorithm.noVariance: LeaveOut left out {alike:.0%} of the groups, whose rewards were all equal: correct "
            "a reward that is the same for every answer, or give prompts of which some answers are right",
        ),
        (invalid, f"{invalid:.0%} have no score: look at the reward"),
        (old, f"{old:.0%} of the tokens are older than rollout.maxStaleness: raise it"),
    ]
    found = "; ".join(text for share, text in causes if share > 0)
    return f"the policy has learnt from no sample. {found or 'None has a token that the loss counts'}."


def _has_no_variance(seen: Seen) -> bool:
    """Nothing differs in what the estimator compares: the samples of a group, or all of a rollout."""
    metrics, traits = seen.metrics, seen.spec.algorithm.advantage_traits
    if not seen.trains_policy or seen.is_solved or traits.needs_reference or _all_cut_off(seen):
        return False
    is_alike = metrics.get("groups/no_variance", 0.0) >= 1.0
    if traits.compares_group and not traits.needs_greedy and seen.spec.rollout.samples_per_prompt > 1:
        return is_alike
    return is_alike and metrics.get("reward/std") == 0.0 and metrics.get("optimizer/grad_norm") == 0.0


def _no_variance(seen: Seen) -> str:
    return (
        "all samples of a prompt have one reward, whichever prompt: every advantage is 0, and rewards teach nothing "
        f"(reward {seen.metrics.get('reward/mean', 0.0):.4g}{_entropy_as_text(seen)}). If that is the best reward "
        "there is, let spec.stopWhen end the job. If the reward is the same for every answer, correct its function: "
        "`rljob reward` shows what it gives. If the policy has collapsed, go back to a checkpoint and lower "
        "training.optimizer.learningRate; if no answer is ever right, begin with easier prompts."
    )


def _entropy_as_text(seen: Seen) -> str:
    entropy = seen.metrics.get("policy/entropy")
    return "" if entropy is None else f", entropy {entropy:.2g} nats"


def _has_no_entropy(seen: Seen) -> bool:
    return seen.trains_policy and not seen.is_solved and seen.metrics.get("policy/entropy", 1.0) < LOWEST_ENTROPY


def _no_entropy(seen: Seen) -> str:
    return (
        f"policy/entropy is {seen.metrics['policy/entropy']:.2g} nats a token: the policy always gives the same answer "
        f"(reward {seen.metrics.get('reward/mean', 0.0):.4g}) and tries no other. Go back to a checkpoint and lower "
        "training.optimizer.learningRate, or give algorithm.entropyBonus or a clip.high above clip.low."
    )


def _has_no_gradient(seen: Seen) -> bool:
    """Where no other sign says why."""
    explained = seen.is_solved or _has_no_variance(seen) or _learns_nothing(seen) or _all_cut_off(seen)
    return seen.trains_policy and not explained and seen.metrics.get("optimizer/grad_norm") == 0.0


def _no_gradient(seen: Seen) -> str:  # noqa: ARG001 - one signature
    return (
        "optimizer/grad_norm is 0: the loss does not depend on the policy, or every advantage is 0. Look at "
        "algorithm.loss and algorithm.advantage where they are functions of yours, and at the rewards."
    )


def _all_cut_off(seen: Seen) -> bool:
    """Answers of a fixed length that get rewards are no trouble."""
    cut_off = seen.metrics.get("response_length/truncated_share", 0.0) >= 1.0
    return seen.trains_policy and cut_off and seen.metrics.get("groups/all_wrong", 0.0) >= 1.0


def _cut_off(seen: Seen) -> str:
    length = seen.metrics.get("response_length/max", 0.0)
    return (
        f"every answer was cut off, after {length:.0f} tokens at most, and none has a reward above 0. Raise "
        "rollout.sampling.maxNewTokens, or name the tokens that end an answer (sampling.stopTokenIds, stop)."
    )


def _mismatch_rises(seen: Seen) -> bool:
    first = seen.known.first_mismatches
    value = seen.metrics.get("mismatch/kl", 0.0)
    return len(first) >= FIRST_STEPS and value > max(MISMATCH, MISMATCH_GROWTH * fmean(first.values()))


def _mismatch(seen: Seen) -> str:
    before = fmean(seen.known.first_mismatches.values())
    return (
        f"mismatch/kl is {seen.metrics['mismatch/kl']:.2g} nats, and was {before:.2g} in the first steps: engine and "
        "trainer compute the same weights more and more differently. Lower training.optimizer.learningRate, use "
        "model.dtype float32, or bound the weights by algorithm.correction (IcePop, or a mask)."
    )


SIGNS = (
    Sign(EventKind.NOTHING_LEARNT, FEW_STEPS, _learns_nothing, _why_nothing),
    Sign(EventKind.NO_VARIANCE, SURE_STEPS, _has_no_variance, _no_variance),
    Sign(EventKind.ENTROPY_COLLAPSED, SURE_STEPS, _has_no_entropy, _no_entropy),
    Sign(EventKind.NO_GRADIENT, FEW_STEPS, _has_no_gradient, _no_gradient),
    Sign(EventKind.ALL_CUT_OFF, SURE_STEPS, _all_cut_off, _cut_off),
    Sign(EventKind.MISMATCH_RISING, SURE_STEPS, _mismatch_rises, _mismatch),
)
"""In the order in which they are reported."""
