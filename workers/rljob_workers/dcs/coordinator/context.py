"""What all rooms of the coordinator share: the store, the queue's admin, clocks, the notifier.

Handed to the rooms when the coordinator is made; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.records import MARKS
from rljob_workers.dcs.coordinator.store import Store
from rljob_workers.dcs.coordinator.table import Change

if TYPE_CHECKING:
    from rljob_workers.transfer_queue.admin import QueueAdmin


class Notify(Protocol):
    """Wakes those who wait for a topic, where there are keys those of them who wait under one of these."""

    def __call__(self, topic: Topic, keys: Collection[str] | None = None) -> None:
        """Callable from any thread."""


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """Shared by the rooms of one coordinator."""

    job: RLJob
    store: Store
    admin: QueueAdmin
    clock: Callable[[], float]
    """Monotonic seconds: ages."""
    wall: Callable[[], float]
    """Unix seconds: what is written down."""
    notify: Notify
    begin_anew: Callable[[RLJob], None]
    """Has the coordinator made anew for another job, which is stored; callable from any thread."""

    def event(self, kind: EventKind, epoch: Epoch, message: str) -> CoordinatorEvent:
        """An event of now; its id is given when it is committed."""
        return CoordinatorEvent(id=0, kind=kind, at=self.wall(), epoch=epoch, message=message)

    def emit_once(self, mark: str, value: str, event: CoordinatorEvent, *changes: Change) -> None:
        """Commits changes and an event, the event only if it was not told of `value` before."""
        events = [] if self.store.was_emitted(mark, value) else [event]
        self.store.commit([*changes, MARKS.put(mark, value)], events)
        if events:
            self.notify(Topic.EVENTS)
