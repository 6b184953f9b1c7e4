"""Which orders launchers have taken: noted once, durably, when one says that it has it or a rank of it registers.

Called by `launchers`, `rank_lives` and the rendezvous.
"""

from __future__ import annotations

from rljob_api.names import Epoch
from rljob_api.wire.epochs import NOBODY, PodOrder
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherHello
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.records import TAKEN, TakenOrder


class OrdersTaken:
    """The last order that each pod has taken, and whose launcher took it."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context

    def may_take(self, hello: LauncherHello, order: PodOrder) -> bool:
        """A launcher that came back by itself gets no order that its earlier life took: the table decides first.

        Another pod is a decision already: its uid is in the order.
        """
        if order.pod_uid == NOBODY:
            return False
        taken = self._of(hello.pod)
        if taken is None or taken.launcher == hello.launcher:
            return True
        if order.pod_uid and order.pod_uid != taken.pod_uid:
            return True
        return (order.epoch, order.generation) > (taken.epoch, taken.generation)

    def has(self, pod: PodKey, epoch: Epoch, generation: int) -> bool:
        """Whether a launcher of the pod has taken the order of this epoch and generation."""
        taken = self._of(pod)
        return taken is not None and (taken.epoch, taken.generation) == (epoch, generation)

    def _of(self, pod: PodKey) -> TakenOrder | None:
        return self._context.store.get(TAKEN, str(pod))

    def note(self, hello: LauncherHello, epoch: Epoch, generation: int) -> None:
        """Durable once."""
        taken = self.anew(hello, epoch, generation)
        if taken is not None:
            self._context.store.commit([TAKEN.put(str(hello.pod), taken)])

    def anew(self, hello: LauncherHello, epoch: Epoch, generation: int) -> TakenOrder | None:
        """What is to be noted; None where it is known, or history: below the last order that this pod took."""
        before = self._of(hello.pod)
        is_same_pod = before is not None and before.pod_uid == hello.pod_uid
        if before is not None and is_same_pod and (epoch, generation) < (before.epoch, before.generation):
            return None
        taken = TakenOrder(launcher=hello.launcher, pod_uid=hello.pod_uid, epoch=epoch, generation=generation)
        return None if taken == before else taken
