"""Verifies that an engine has the weights that it reports, by log-probs of fixed tokens; what counts until it is shown.

`engine_sync` verifies in its thread; the rollout loop asks before it puts a group. A server answers `success` for names
of tensors that it does not know, too. Left out: in bfloat16 an update of one small step that was dropped changes the
log-probs by less than the bound; several do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from rljob_api.engines import EngineTraits
from rljob_api.names import WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.weights import WeightVerification
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.models.weights import Weights, WeightSource
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.trajectory import place_of

BOUNDS = {"float32": 1e-4, "bfloat16": 5e-2}
"""By dtype of the model: the largest difference of a log-prob, beside its size where that is above 1. In float32
engines and trainers agree to 1e-5. bfloat16 has 8 bits, of logits and of every layer's output, which kernels round in
other places: a hundredth of a log-prob is common between two of them."""


def bound_of(spec: RLJobSpec, traits: EngineTraits) -> float | None:
    """The bound that an engine is held to; None where none is verified. ValueError for what it cannot do."""
    verify, kind = spec.weight_sync.verify, spec.roles.rollout.engine.kind.value
    if verify is WeightVerification.PROBE and not traits.scores:
        raise ValueError(
            f"weightSync.verify: Probe needs an engine that tells log-probs of given tokens, which {kind} does not. "
            "Set it to None."
        )
    return BOUNDS[spec.model.dtype] if verify is not WeightVerification.NONE and traits.scores else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Log-probs of a probe's tokens by an engine that differ from the trainer's."""

    found: tuple[float, ...]
    probe: Probe
    bound: float

    def __str__(self) -> str:
        """How far."""
        if len(self.found) != len(self.probe.log_probs):
            return f"it scored {len(self.found)} tokens of {len(self.probe.log_probs)}"
        return (
            f"{len(self._wrong)} of {len(self.found)} log-probs of the probe differ, by up to "
            f"{self._far(self._worst):.2g}; {self.bound:g} is allowed"
        )

    @property
    def where(self) -> str:
        """On which tokens."""
        if len(self.found) != len(self.probe.log_probs):
            return str(self)
        first = f"the first that differs is {self._token(self._wrong[0])}"
        is_first = self._worst == self._wrong[0]
        return first if is_first else f"{first}, and the one that differs most {self._token(self._worst)}"

    def repeats(self, earlier: Difference) -> bool:
        """Whether the engine has computed the same log-probs before."""
        return not _differing(self.found, earlier.found, self.bound) and len(self.found) == len(earlier.found)

    @property
    def _wrong(self) -> list[int]:
        return _differing(self.found, self.probe.log_probs, self.bound)

    @property
    def _worst(self) -> int:
        return max(self._wrong, key=lambda place: far if (far := self._far(place)) == far else float("inf"))

    def _far(self, place: int) -> float:
        return abs(self.found[place] - self.probe.log_probs[place])

    def _token(self, place: int) -> str:
        return (
            f"token {place + 2} of {len(self.probe.tokens)} (id {self.probe.tokens[place + 1]}: the engine says "
            f"{self.found[place]:.4f}, the trainer {self.probe.log_probs[place]:.4f})"
        )


def difference(found: Sequence[float], probe: Probe, bound: float) -> Difference | None:
    """How `found` differs from the trainer's; None where it does not. NaN differs."""
    is_right = len(found) == len(probe.log_probs) and not _differing(found, probe.log_probs, bound)
    return None if is_right else Difference(tuple(found), probe, bound)


def _differing(found: Sequence[float], others: Sequence[float], bound: float) -> list[int]:
    """Places of the log-probs that differ."""
    pairs = enumerate(zip(found, others, strict=False))
    return [place for place, (one, other) in pairs if not abs(one - other) <= bound * max(1.0, abs(other))]


class WrongWeights(Exception):
    """An engine reported twice a version that it does not have: it would go on generating from something else."""


class EngineMismatch(Exception):
    """Engine and trainer compute the same weights differently, which no restart changes."""


class Answer(Enum):
    """What follows when the weights that an engine reports were refuted."""

    RELOAD = auto()
    RESTART = auto()
    """The engine is ended; its next incarnation loads them."""
    MISMATCH = auto()
    GIVE_UP = auto()
    """The engine is ended, and its rank leaves."""


def answer_to(weight: WeightId, found: Sequence[Difference], first: WeightVersion) -> Answer:
    """To what was `found` of an engine in a row, the last of it under `weight`.

    The `first` version of an epoch is what engines begin with, of another kind than before perhaps. A server that has
    dropped it is distinguished from one that computes it differently by a second process: that repeats the log-probs.
    """
    if len(found) == 1:
        return Answer.RESTART if weight.version == first else Answer.RELOAD
    if weight.version == first and found[-1].repeats(found[-2]):
        return Answer.MISMATCH
    return Answer.GIVE_UP


@dataclass(frozen=True, slots=True)
class Refutation:
    """The engine has other weights than it reports."""

    weight: WeightId
    problem: Difference
    answer: Answer

    def __str__(self) -> str:
        """The sentence about it."""
        return f"The engine says that it has {self.weight} and has other weights: {self.problem}."


class Made(Protocol):
    """Samples, with the oldest and the newest weight that made any token of each."""

    @property
    def oldest(self) -> Sequence[WeightId]:
        """Of each sample."""

    @property
    def newest(self) -> Sequence[WeightId]:
        """Of each sample."""


class WeightProof:
    """One engine's.

    proof.expect(weights)              the follower, before the update
    refuted = proof.verify(deadline)   after it; None: proven
    proof.awaited_by(groups)           the loop: not yet to be put
    proof.voids(groups, begun)         never to be put; `begun`: num_voided when their work began
    """

    def __init__(self, engine: RankEngine, bound: float | None, first: WeightVersion) -> None:
        """`bound` as in BOUNDS; None: nothing is verified. `first`: the version the epoch began with."""
        self._engine = engine
        self._bound = bound
        self._first = first
        self._refuted: list[Difference] = []
        """What was found in a row while the engine had other weights than it reported."""
        self._expected: Weights[WeightSource] | None = None
        self._voided: list[WeightId] = []
        """Weights that the engine reported and was not proven to have, once for each time."""

    @property
    def num_voided(self) -> int:
        """How often a version was not proven until now."""
        return len(self._voided)

    @property
    def is_awaited(self) -> bool:
        """Whether it is not known yet if the engine has the weights that it reports."""
        return self._expected is not None

    def expect(self, weights: Weights[WeightSource]) -> None:
        """From here on groups with tokens of this version wait. Those of one that was not proven are void."""
        if self._expected is not None:
            self._voided.append(self._expected.id)
        self._expected = None if self._bound is None or weights.probe is None else weights

    def verify(self, deadline: float) -> Refutation | None:
        """What is wrong with the weights that the engine has. Raises what `Engine.score` raises."""
        expected = self._expected
        if expected is not None:
            assert expected.probe is not None
            assert self._bound is not None
            found = self._engine.call(self._engine.client.score(expected.probe.tokens, deadline=deadline))
            problem = difference(found, expected.probe, self._bound)
            if problem is not None:
                self._refuted.append(problem)
                return Refutation(expected.id, problem, answer_to(expected.id, self._refuted, self._first))
            self._expected = None
        self._refuted.clear()
        return None

    def awaited_by(self, groups: Sequence[Made]) -> bool:
        """Whether groups have tokens of the version that is being proven. Those would be their newest."""
        expected = self._expected
        return expected is not None and any(expected.id in group.newest for group in groups)

    def voids(self, groups: Sequence[Made], begun: int) -> bool:
        """Whether groups may have tokens of other weights than their engine reported."""
        voided = self._voided[begun:]
        return any(_spans(group, weight) for group in groups for weight in voided)


def _spans(group: Made, weight: WeightId) -> bool:
    """Whether any token may be of `weight`: versions between a row's oldest and newest may have drawn none."""
    pairs = zip(group.oldest, group.newest, strict=True)
    return any(place_of(oldest) <= place_of(weight) <= place_of(newest) for oldest, newest in pairs)
