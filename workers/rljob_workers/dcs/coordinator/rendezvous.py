"""Rendezvous: the address at which the ranks of a role find each other.

Called by the coordinator in its thread. Bound to epoch and generation, so that ranks of different lives never meet.
"""

from __future__ import annotations

from rljob_api.wire.ranks import Rendezvous
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.records import RENDEZVOUS
from rljob_workers.dcs.coordinator.refusals import wrong_epoch


class RendezvousTable:
    """One address per group."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs) -> None:
        self._context = context
        self._epochs = epochs

    def offer(self, offered: Rendezvous) -> None:
        """Global rank 0 says where it listens."""
        epoch = self._epochs.current.restore.epoch
        if offered.epoch != epoch:
            raise wrong_epoch(f"rendezvous {offered.group}: epoch {offered.epoch} is not the open epoch {epoch}. Exit.")
        self._context.store.commit([RENDEZVOUS.put(offered.group, offered)])
        self._context.notify(Topic.RENDEZVOUS)

    def find(self, group: str, epoch: int, generation: int) -> Rendezvous | None:
        """Where the group of this epoch and generation meets; None while rank 0 has not said so."""
        open_epoch = self._epochs.current.restore.epoch
        if epoch != open_epoch:
            raise wrong_epoch(f"rendezvous {group}: epoch {epoch} is not the open epoch {open_epoch}. Exit.")
        found = self._context.store.get(RENDEZVOUS, group)
        if found is None or (found.epoch, found.generation) != (epoch, generation):
            return None
        return found
