"""Rendezvous: where and when the ranks of a gang find each other.

Called by the coordinator in its thread. Bound to epoch and generation, so that ranks of different incarnations never
meet; what an incarnation that is over has offered counts for nothing. After a restart of the coordinator ranks come
again; that all had is durable, since some of them may not ask again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import Rendezvous
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, incarnation_over, wrong_epoch
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import RENDEZVOUS


class RendezvousTable:
    """One address per group."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._come: defaultdict[str, set[str]] = defaultdict(set)
        """Group -> incarnations that have asked."""

    def offer(self, offered: Rendezvous) -> None:
        """The gang's first rank offers the address where it listens."""
        self._check_epoch(offered.group, offered.epoch)
        self._incarnation(offered.group, offered.incarnation)
        self._context.store.commit([RENDEZVOUS.put(offered.group, offered)])
        self._context.notify(Topic.RENDEZVOUS)

    def come(self, group: str, id_: str) -> None:
        """A rank is there. With the last one the rendezvous is complete, whatever becomes of this coordinator."""
        incarnation = self._incarnation(group, id_)
        self._come[group].add(id_)
        found = self._offered(group, incarnation.epoch, incarnation.generation)
        if found is None or found.complete or len(self._come[group]) < len(self._gang(incarnation)):
            return
        living = self._ranks.living()
        self._come[group] = {one for one in self._come[group] if one in living}
        if self._missing(group, incarnation):
            return
        self._context.store.commit([RENDEZVOUS.put(group, found.model_copy(update={"complete": True}))])
        self._context.notify(Topic.RENDEZVOUS)

    def find_complete(self, group: str, epoch: int, generation: int) -> Rendezvous | None:
        """Where the group of this epoch and generation meets; None while one of its ranks is missing."""
        self._check_epoch(group, epoch)
        found = self._offered(group, epoch, generation)
        return found if found is not None and found.complete else None

    def waits_for(self, group: str, id_: str) -> Rendezvous:
        """Who is missing, for a rank that has come."""
        incarnation = self._incarnation(group, id_)
        missing = self._missing(group, incarnation)
        pods = dict.fromkeys(key.pod for key in missing)
        return Rendezvous(
            group=group,
            epoch=incarnation.epoch,
            generation=incarnation.generation,
            address="",
            missing=[str(key) for key in missing],
            absent=[
                str(pod) for pod in pods if not self._epochs.has_taken(pod, incarnation.epoch, incarnation.generation)
            ],
        )

    def _offered(self, group: str, epoch: int, generation: int) -> Rendezvous | None:
        found = self._context.store.get(RENDEZVOUS, group)
        if found is None or (found.epoch, found.generation) != (epoch, generation):
            return None
        return found if found.incarnation in self._ranks.living() else None

    def _missing(self, group: str, incarnation: Incarnation) -> list[RankKey]:
        """Ranks of the gang of `incarnation` that have not come; each must be of its epoch and generation."""
        per_pod = self._epochs.topology(incarnation.key.role).ranks_per_pod
        places = (divmod(rank, per_pod) for rank in self._gang(incarnation))
        wanted = [RankKey(role=incarnation.key.role, replica=replica, rank=rank) for replica, rank in places]
        return [key for key in wanted if not self._has_come(group, key, incarnation)]

    def _gang(self, incarnation: Incarnation) -> Sequence[int]:
        """The global ranks of its gang."""
        own = incarnation.key
        topology = self._epochs.topology(own.role)
        return topology.gang_of(topology.ranks_of(own.replica).start + own.rank)

    def _has_come(self, group: str, key: RankKey, like: Incarnation) -> bool:
        entry = self._ranks.by_rank().get(str(key))
        if entry is None:
            return False
        incarnation = entry.hello.incarnation
        return (incarnation.epoch, incarnation.generation) == (
            like.epoch,
            like.generation,
        ) and incarnation.id in self._come[group]

    def _incarnation(self, group: str, id_: str) -> Incarnation:
        found = self._ranks.find(id_)
        if found is None:
            raise incarnation_over(f"rendezvous {group}: {id_}")
        return found

    def _check_epoch(self, group: str, epoch: int) -> None:
        open_epoch = self._epochs.current.restore.epoch
        if epoch != open_epoch:
            raise wrong_epoch(f"rendezvous {group}: epoch {epoch} is not the open epoch {open_epoch}. Exit.")
