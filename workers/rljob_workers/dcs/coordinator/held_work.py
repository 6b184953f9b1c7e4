"""Work that a replica of the rollout holds and does not do: others get it while nobody knows yet whether it is dead.

Staleness lets the other replicas do only so much more. Without this they would all stand idle until restartPolicy's
limits say what has failed. Called by the coordinator in its thread; the decision is pure.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rljob_api.names import WeightVersion
from rljob_api.role_traits import TICKET_ROLE
from rljob_api.wire.ranks import Beat, RankState
from rljob_workers.dcs.coordinator.beats import beat_interval_seconds
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.rank_lives import RankLives

STILL_BEATS = 2
"""Beats that a replica may miss before others get its work. What it makes of that work later is refused."""

_LOG = logging.getLogger("rljob.coordinator")


@dataclass(frozen=True, slots=True)
class Replica:
    """A rank of the rollout, as it is now."""

    incarnation: str
    still_seconds: float
    """For which nothing was heard of it, or its engine made no token of what it has."""
    is_idle: bool
    """It could generate, and has nothing to."""


def replica_of(beat: Beat, age_seconds: float) -> Replica:
    """By its last beat, heard so long ago."""
    announced = 0.0 if beat.busy is None else beat.busy.seconds
    return Replica(
        beat.life.incarnation,
        max(0.0, age_seconds - announced) + beat.still_seconds,
        is_idle=beat.state is RankState.READY and beat.holds is not None and not beat.tickets,
    )


def to_take_back(replicas: Iterable[Replica], limit_seconds: float) -> list[str]:
    """Whose tickets come back: of all that are still for longer, as long as another one has nothing to do."""
    known = list(replicas)
    if not any(one.is_idle and one.still_seconds <= limit_seconds for one in known):
        return []
    return [one.incarnation for one in known if one.still_seconds > limit_seconds]


class HeldWork:
    """Takes tickets back, at most once of each life between two versions of the weights.

    Were two slow replicas to get each other's work again and again, none of it would ever be done.
    """

    def __init__(self, context: CoordinatorContext, ranks: RankLives) -> None:
        self._context = context
        self._ranks = ranks
        self._taken_from: dict[str, WeightVersion | None] = {}
        """Incarnation -> the version that was published when its tickets were taken back."""

    def look(self, published: WeightVersion | None, silence_counts_from: float) -> None:
        """`silence_counts_from`: by the coordinator's clock; nobody was silent before."""
        limit = STILL_BEATS * beat_interval_seconds(self._context.job.spec.restart_policy)
        now = self._context.clock()
        heard = [one for one in self._ranks.beats.values() if one.beat.life.key.role is TICKET_ROLE]
        replicas = [replica_of(one.beat, now - max(one.at, silence_counts_from)) for one in heard]
        self._forget_all_but([one.incarnation for one in replicas])
        for incarnation in to_take_back(replicas, limit):
            if self._taken_from.get(incarnation, -1) != published:
                self._taken_from[incarnation] = published
                num_tickets = self._context.admin.take_back(incarnation)
                if num_tickets:
                    _LOG.info("%d tickets of %s, which does nothing, go to others", num_tickets, incarnation)

    def _forget_all_but(self, living: Collection[str]) -> None:
        self._taken_from = {name: version for name, version in self._taken_from.items() if name in living}
