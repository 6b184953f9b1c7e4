"""When a role is Ready. Pure: knows orders and ranks as values, neither time nor Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.wire.epochs import DesiredState, PodOrder
from rljob_api.wire.identity import Life


@dataclass(frozen=True, slots=True)
class RankStanding:
    """A registered rank: whose life it is and whether it said that it is Ready."""

    life: Life
    ready: bool


def readiness_mark(
    role: Role,
    desired: DesiredState,
    ranks_per_pod: Mapping[str, int],
    ranks: Mapping[str, RankStanding],
) -> str | None:
    """Names the Ready state of a role: one word per set of lives; None while any rank is missing.

    Every pod of the role that is wanted counts: it must be registered (`ranks_per_pod` has it) and each of its ranks
    must be Ready in the wanted epoch and generation. A role without pods is never Ready.
    """
    orders = [order for order in desired.pods if order.pod.role is role]
    if not orders or len(orders) < desired.replicas.get(role.value, 0):
        return None
    incarnations: list[str] = []
    for order in orders:
        ready = _ready_lives(order, ranks_per_pod.get(str(order.pod), 0), ranks)
        if ready is None:
            return None
        incarnations += ready
    return f"{desired.epoch}:" + ",".join(sorted(incarnations))


def _ready_lives(order: PodOrder, num_ranks: int, ranks: Mapping[str, RankStanding]) -> list[str] | None:
    """Incarnations of the pod's ranks if all are Ready."""
    lives: list[str] = []
    for rank in range(num_ranks):
        standing = ranks.get(f"{order.pod}.{rank}")
        if standing is None or not standing.ready:
            return None
        life = standing.life
        if life.epoch != order.epoch or life.generation != order.generation:
            return None
        lives.append(life.incarnation)
    return lives or None
