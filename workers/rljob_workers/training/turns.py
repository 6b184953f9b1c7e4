"""The turns of a rank that trains: whether its gang begins a rollout, with the gangs of the other roles that train.

    turns = Turns.of(rank, group)
    while (turn := turns.take(r, drains=False)) is Turn.WAIT:
        ...                                   what the loop does between two turns
    if turn is Turn.STOP:
        raise Draining                        all roles alike, with the weights of version r

Called by the loops before the first optimizer step on a rollout. Knows the coordinator and the gang, no trainer.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from rljob_api.roles import SAVING_ROLES
from rljob_api.wire.turns import Turn, TurnAnswer, TurnRequest
from rljob_workers.dcs.membership.coordinator_http import (
    ATTEMPT_SECONDS,
    PAUSE_SECONDS,
    ChannelBroken,
    CoordinatorClient,
    accept,
)
from rljob_workers.rank_loop import TURN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.names import Role, RolloutId
    from rljob_workers.dcs.membership.session import RankSession
    from rljob_workers.rank_loop import RankParts
    from rljob_workers.trainers.data_parallel import DataParallelGroup

_TURNS = tuple(Turn)


class Turns(ABC):
    """The turns of one rank; `take` is a collective of its gang."""

    @staticmethod
    def of(rank: RankParts, group: DataParallelGroup) -> Turns:
        """Of a job. Where it has one role that trains, and no stopWhen, no request is made."""
        present = rank.spec.roles.present()
        roles = [role for role in SAVING_ROLES if role in present]
        if len(roles) == 1 and rank.spec.stop_when is None:
            return OwnTurns()
        return SharedTurns(rank.session, group, CoordinatorClient(rank.context.endpoints), roles)

    @abstractmethod
    def take(self, rollout: RolloutId, *, drains: bool) -> Turn:
        """Go, Stop or Wait for `train_r`, the same on all ranks of the gang.

        `drains`: a rank of the gang shall, as all of them have agreed. Returns after about TURN_SECONDS. Asked again
        after Go or Stop, it answers the same.
        """


class OwnTurns(Turns):
    """Of the only role that trains: it goes on unless one of its ranks drains."""

    def take(self, rollout: RolloutId, *, drains: bool) -> Turn:  # noqa: ARG002 -- of any rollout alike
        """See the base; never Wait, and no rank is met."""
        return Turn.STOP if drains else Turn.GO


class SharedTurns(Turns):
    """Of one of several roles that train, or of a job that may be complete: rank 0 asks the coordinator for all."""

    def __init__(
        self, session: RankSession, group: DataParallelGroup, client: CoordinatorClient, roles: Sequence[Role]
    ) -> None:
        """`roles` are all that train."""
        self._session = session
        self._group = group
        self._client = client
        self._roles = list(roles)
        self._waits_for = [role for role in roles if role is not session.incarnation.key.role]
        """By the last answer; at first all others."""

    def take(self, rollout: RolloutId, *, drains: bool) -> Turn:
        """See the base."""
        shared = torch.zeros(1 + len(self._roles), dtype=torch.int64)
        if self._group.rank == 0:
            answer = self._ask(rollout, drains=drains)
            shared[0] = _TURNS.index(answer.turn)
            shared[1:] = torch.tensor([role in answer.waits_for for role in self._roles])
        self._group.broadcast(shared, 0, f"the turn at train_{rollout}")
        turn = _TURNS[int(shared[0])]
        if turn is Turn.WAIT:
            self._waits_for = [role for role, missing in zip(self._roles, shared[1:].tolist(), strict=True) if missing]
            self._session.pulse(waiting=self._waiting(rollout))
        return turn

    def _ask(self, rollout: RolloutId, *, drains: bool) -> TurnAnswer:
        """Wait, where the coordinator does not answer: the session finds out when that is for too long."""
        request = TurnRequest(incarnation=self._session.incarnation, rollout=rollout, drains=drains, roles=self._roles)
        channel, body = self._client.channel, request.model_dump_json().encode()
        try:
            pending = channel.begin(
                "POST", f"/v1/turns?wait={TURN_SECONDS}", body, timeout=TURN_SECONDS + ATTEMPT_SECONDS
            )
            poller = select.poll()
            channel.watch(poller)
            while not pending.ready():
                poller.poll(TURN_SECONDS * 1000)
                self._session.pulse(waiting=self._waiting(rollout))
            answer = pending.result()
        except ChannelBroken:
            channel.close()
            answer = None
        if answer is None or answer.status >= 500:
            time.sleep(PAUSE_SECONDS)
            return TurnAnswer(turn=Turn.WAIT, waits_for=self._waits_for)
        return TurnAnswer.model_validate_json(accept(answer))

    def _waiting(self, rollout: RolloutId) -> str:
        if not self._waits_for:
            return f"the turn at train_{rollout}, by the coordinator"
        others = " and ".join(f"the {role.value}'s" for role in self._waits_for)
        return f"{others} turn at train_{rollout}"
