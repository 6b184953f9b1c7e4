"""The proof that an engine has the weights that it says it has, and what counts until there is one.

The follower proves, in its thread; the rollout loop asks, in its own, before it puts a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from rljob_api.names import WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.weights.transport import StagedWeights
from rljob_workers.engines.base import Engine
from rljob_workers.roles.event_loop import EventLoopThread
from rljob_workers.roles.weight_probe import Difference, difference
from rljob_workers.transfer_queue.types import GroupRows


class WrongWeights(Exception):
    """An engine said twice that it has a version, and has not: it would go on generating from something else."""


class EngineMismatch(Exception):
    """Engine and trainer compute the same weights differently, which no restart changes."""


class Answer(Enum):
    """What follows when weights that an engine says that it has were refuted."""

    LOAD_ANEW = auto()
    START_ANEW = auto()
    """The engine is ended; its next life loads them."""
    MISMATCH = auto()
    GIVE_UP = auto()
    """The engine is ended, and its rank leaves."""


def answer_to(weight: WeightId, found: Sequence[Difference], first: WeightVersion) -> Answer:
    """To what was `found` of an engine in a row, the last of it under `weight`.

    The `first` version of an epoch is what engines begin with, of another kind than before perhaps. A server that has
    dropped it is told from one that computes it differently by a second process: that says the same again.
    """
    if len(found) == 1:
        return Answer.START_ANEW if weight.version == first else Answer.LOAD_ANEW
    if weight.version == first and found[-1].repeats(found[-2]):
        return Answer.MISMATCH
    return Answer.GIVE_UP


class WeightProof:
    """One engine's.

    proof.expect(staged)               the follower, before the update
    problem = proof.find(deadline)     after it; None: proven
    proof.awaited_by(groups)           the loop: not yet to be put
    proof.voids(groups, begun)         never to be put; `begun`: num_voided when their work began
    """

    def __init__(self, engine: Engine, events: EventLoopThread, bound: float | None) -> None:
        """`bound` as in `weight_probe.BOUNDS`; None: what the engine says is believed."""
        self._engine = engine
        self._events = events
        self._bound = bound
        self._expected: StagedWeights | None = None
        self._voided: list[WeightId] = []
        """What the engine was said to have and was not proven to have, once for each time."""

    @property
    def num_voided(self) -> int:
        """How often a version was not proven until now."""
        return len(self._voided)

    def expect(self, staged: StagedWeights) -> None:
        """From here on groups with tokens of this version wait. Those of one that was not proven are void."""
        if self._expected is not None:
            self._voided.append(self._expected.weight)
        self._expected = None if self._bound is None or staged.probe is None else staged

    def find(self, deadline: float) -> Difference | None:
        """What is wrong with the weights that the engine has. Raises what `Engine.score` raises."""
        expected = self._expected
        if expected is None:
            return None
        assert expected.probe is not None
        assert self._bound is not None
        found = self._events.call(self._engine.score(expected.probe.tokens, deadline=deadline))
        problem = difference(found, expected.probe, self._bound)
        if problem is None:
            self._expected = None
        return problem

    def awaited_by(self, groups: Sequence[GroupRows]) -> bool:
        """Whether groups have tokens of the version that is being proven. Those would be their newest."""
        expected = self._expected
        return expected is not None and any(expected.weight in group.newest for group in groups)

    def voids(self, groups: Sequence[GroupRows], begun: int) -> bool:
        """Whether groups may have tokens of weights that were not what their engine said."""
        voided = self._voided[begun:]
        return any(_spans(group, weight) for group in groups for weight in voided)


def _spans(group: GroupRows, weight: WeightId) -> bool:
    pairs = zip(group.oldest, group.newest, strict=True)
    return any(_place(oldest) <= _place(weight) <= _place(newest) for oldest, newest in pairs)


def _place(weight: WeightId) -> tuple[int, int]:
    """In the order in which weights come."""
    return weight.lineage, weight.version
