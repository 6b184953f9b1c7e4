"""Turns: whether the roles that train begin a rollout, all of them, or leave before it, all of them.

Called by the coordinator in its thread. A version that only one of them has reached could not be recorded, and a
rollout that one has begun cannot be taken back: so it is decided once for each rollout of an epoch, before the first
optimizer step on it. Durable before it is answered; what an earlier epoch decided counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from rljob_api.names import Role, WeightVersion
from rljob_api.roles import TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.turns import StopReached, Turn, TurnAnswer, TurnRequest
from rljob_workers.dcs.coordinator.background_care import Evaluations
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, bad_request
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.measures import Measures
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import TURNS, TurnsTaken


def turns_of_epoch(taken: TurnsTaken | None, restore: RestorePoint) -> TurnsTaken:
    """What was decided in the open epoch. In a new one nothing: it begins with the rollout of its restored version."""
    if taken is not None and taken.epoch == restore.epoch:
        return taken
    return TurnsTaken(epoch=restore.epoch, rollout=restore.version)


def turns_after(
    taken: TurnsTaken, role: Role, rollout: int, roles: Collection[Role], *, drains: bool, waits: bool = False
) -> TurnsTaken:
    """With `role` at `rollout`: one that drains stops all, the last one that comes lets all go. Repeats change nothing.

    `waits`: none may go yet, for whether the job goes on depends on an evaluation.

    Raises Refused for a rollout beyond the one that is to be decided: its asker has passed over a turn.
    """
    if rollout > taken.rollout:
        raise bad_request(
            f"rollout: {rollout} has no turn yet: train_{taken.rollout} "
            f"{'was stopped' if taken.stopped else 'comes first'}. Ask for every rollout in order."
        )
    if rollout < taken.rollout or taken.stopped:
        return taken
    come = tuple(one for one in Role if one in {*taken.come, role})
    if drains:
        return taken.model_copy(update={"come": come, "stopped": True})
    if set(roles) <= set(come) and not waits:
        return taken.model_copy(update={"rollout": rollout + 1, "come": ()})
    return taken.model_copy(update={"come": come})


def turn_of(taken: TurnsTaken, rollout: int, roles: Collection[Role]) -> TurnAnswer:
    """What is decided about a rollout that some role has come to."""
    if rollout < taken.rollout:
        return TurnAnswer(turn=Turn.GO)
    if taken.stopped:
        return TurnAnswer(turn=Turn.STOP)
    return TurnAnswer(turn=Turn.WAIT, waits_for=[role for role in roles if role not in taken.come])


class Goal:
    """Whether a job is complete at a version, by `stopWhen`."""

    def __init__(self, spec: RLJobSpec, measures: Measures, evaluations: Evaluations) -> None:
        self._evaluation = spec.evaluation
        self._num_rollouts = spec.rollout.num_rollouts
        self._measures = measures
        self._evaluations = evaluations

    def reached(self, version: int) -> str | None:
        """How, in a sentence, once an evaluation of the version that is due is over, too; None: not, or not yet."""
        found = self._measures.reached(version)
        return None if found is None or self._is_evaluated_still(version) else found

    def is_open(self, version: int) -> bool:
        """Whether that is not known before an evaluation of the version is over."""
        asks = self._measures.stops_by_evaluations or self._measures.reached(version) is not None
        return asks and self._is_evaluated_still(version)

    def _is_evaluated_still(self, version: int) -> bool:
        is_due = self._evaluation is not None and self._evaluation.is_due(version, self._num_rollouts)
        return is_due and not self._evaluations.is_over(version)


class TurnTable:
    """The turns of the open epoch."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations, goal: Goal) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._goal = goal

    def take(self, request: TurnRequest) -> None:
        """A role has come to a rollout. Twice is once."""
        self._check(request)
        self.stop_if_reached()
        before = self._taken()
        role, rollout, waits = request.incarnation.key.role, request.rollout, False
        if rollout == before.rollout and not before.stopped:
            waits = self._goal.is_open(rollout)
        after = turns_after(before, role, rollout, request.roles, drains=request.drains, waits=waits)
        self._commit(before, after)

    def stop_if_reached(self) -> None:
        """Decides, for good in this epoch, that the job is complete at the version that it has come to.

        Asked whenever a value that stopWhen goes by is committed, and before a rollout is begun: what trains need not
        have its rows.
        """
        taken = self._taken()
        if taken.stopped or not self._is_open_epoch or not self._context.job.spec.stop_when:
            return
        reached = self._goal.reached(taken.rollout)
        if reached is not None:
            self._commit(taken, taken.model_copy(update={"stopped": True, "reached": reached}))

    def stop(self) -> StopReached | None:
        """With which version the job is complete by stopWhen."""
        taken = self._taken()
        if not taken.reached:
            return None
        return StopReached(version=WeightVersion(taken.rollout), message=taken.reached)

    def decided(self, request: TurnRequest) -> TurnAnswer | None:
        """Go or Stop; None while a role is missing."""
        answer = self.answer(request)
        return None if answer.turn is Turn.WAIT else answer

    def answer(self, request: TurnRequest) -> TurnAnswer:
        """As it is now, to one that has come."""
        self._ranks.check_incarnation(request.incarnation)
        return turn_of(self._taken(), request.rollout, request.roles)

    def stops(self, role: Role) -> bool:
        """Whether the ranks of a role leave since another role that trains does."""
        return TRAITS[role].saves and self._taken().stopped

    @property
    def _is_open_epoch(self) -> bool:
        return self._epochs.current.restore.epoch > 0

    def _commit(self, before: TurnsTaken, after: TurnsTaken) -> None:
        if after != before:
            self._context.store.commit([TURNS.put(after)])
            self._context.notify(Topic.TURNS)

    def _taken(self) -> TurnsTaken:
        return turns_of_epoch(self._context.store.value(TURNS), self._epochs.current.restore)

    def _check(self, request: TurnRequest) -> None:
        key = request.incarnation.key
        self._ranks.check_incarnation(request.incarnation)
        if (key.replica, key.rank) != (0, 0) or key.role not in request.roles:
            raise bad_request(f"incarnation: {key} is not rank 0 of a role that trains. Let that rank ask.")
        first = self._epochs.current.restore.version
        if request.rollout < first:
            raise bad_request(f"rollout: {request.rollout} was trained before this epoch, which begins with {first}.")
