"""Turns: whether the roles that train begin a rollout, all of them, or leave before it, all of them.

Called by the coordinator in its thread. A version that only one of them has reached could not be recorded, and a
rollout that one has begun cannot be taken back: so it is decided once for each rollout of an epoch, before the first
optimizer step on it. Durable before it is answered; what an earlier epoch decided counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.turns import Turn, TurnAnswer, TurnRequest
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, bad_request
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import TURNS, TurnsTaken


def turns_of_epoch(taken: TurnsTaken | None, restore: RestorePoint) -> TurnsTaken:
    """What was decided in the open epoch. In a new one nothing: it begins with the rollout of its restored version."""
    if taken is not None and taken.epoch == restore.epoch:
        return taken
    return TurnsTaken(epoch=restore.epoch, rollout=restore.version)


def turns_after(taken: TurnsTaken, role: Role, rollout: int, roles: Collection[Role], *, drains: bool) -> TurnsTaken:
    """With `role` at `rollout`: one that drains stops all, the last one that comes lets all go. Repeats change nothing.

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
    if set(roles) <= set(come):
        return taken.model_copy(update={"rollout": rollout + 1, "come": ()})
    return taken.model_copy(update={"come": come})


def turn_of(taken: TurnsTaken, rollout: int, roles: Collection[Role]) -> TurnAnswer:
    """What is decided about a rollout that some role has come to."""
    if rollout < taken.rollout:
        return TurnAnswer(turn=Turn.GO)
    if taken.stopped:
        return TurnAnswer(turn=Turn.STOP)
    return TurnAnswer(turn=Turn.WAIT, waits_for=[role for role in roles if role not in taken.come])


class TurnTable:
    """The turns of the open epoch."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks

    def take(self, request: TurnRequest) -> None:
        """A role has come to a rollout. Twice is once."""
        self._check(request)
        before = self._taken()
        role = request.incarnation.key.role
        after = turns_after(before, role, request.rollout, request.roles, drains=request.drains)
        if after != before:
            self._context.store.commit([TURNS.put(after)])
            self._context.notify(Topic.TURNS)

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
