"""Launchers: which one carries a pod, which ones wait for an order, what each polled last and what it is answered.

The coordinator calls it in its thread. Registrations are durable; polls are in memory only, are received again after a
restart of the coordinator, and ages count from its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.spec import RLJob
from rljob_api.wire.epochs import UNSEEN_POD, PodOrder
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, fenced, not_found
from rljob_workers.dcs.coordinator.epochs import Epochs, job_in_force
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import ENDED_LAUNCHERS, PODS, Change, Index


@dataclass(frozen=True, slots=True)
class SeqReport:
    """How far the control Redis was seen, by the last report of a launcher."""

    at: float
    seen_seq: int


class UnorderedLaunchers:
    """By launcher. All of a pod are forgotten once one of them carries it: others that still live report again."""

    def __init__(self) -> None:
        self._hellos: dict[str, LauncherHello] = {}
        self._of_pod: defaultdict[PodKey, dict[str, None]] = defaultdict(dict)

    def add(self, hello: LauncherHello) -> None:
        """It waits; twice is once."""
        self._hellos[hello.launcher] = hello
        self._of_pod[hello.pod][hello.launcher] = None

    def find(self, launcher: str) -> LauncherHello | None:
        """What it reported of itself; None: it does not wait."""
        return self._hellos.get(launcher)

    def remove(self, pod: PodKey) -> list[str]:
        """The launchers that waited to carry `pod`, which do no more."""
        gone = list(self._of_pod.pop(pod, ()))
        for launcher in gone:
            del self._hellos[launcher]
        return gone


MAX_ENDED_LAUNCHERS = 1000
"""Ended launchers that are remembered; a zombie older than this many restarts is not plausible."""


@dataclass(frozen=True, slots=True)
class ReceivedPoll:
    """A launcher's last poll and when it was received."""

    poll: LauncherPoll
    at: float


class Launchers:
    """Those that are registered, and those that wait for it."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self.polls: dict[str, ReceivedPoll] = {}
        """Launcher -> last poll."""
        self._hellos: dict[str, tuple[str, SeqReport]] = {}
        """Pod -> which launcher asked for it last, and its report."""
        self._answered: dict[str, float] = {}
        """Launcher -> when it was let in, or answered last."""
        self._unordered = UnorderedLaunchers()
        self._by_launcher = Index(context.store, PODS, lambda hello: hello.launcher)
        self.seen_seq = 0
        """Highest seq of the control Redis that one of them has reported."""

    def by_pod(self) -> Mapping[str, LauncherHello]:
        """Pod -> its current launcher."""
        return self._context.store.rows(PODS)

    def seq_reports(self) -> dict[str, SeqReport]:
        """The last report of each launcher; of a pod with a later one, what that one reported."""
        carried, ended = self.by_pod(), self._context.store.rows(ENDED_LAUNCHERS)
        hellos = [(pod, report) for pod, (launcher, report) in list(self._hellos.items()) if launcher not in ended]
        reports = {carried[pod].launcher: report for pod, report in hellos if pod in carried}
        for launcher, one in list(self.polls.items()):  # the event loop adds to both meanwhile
            if launcher not in reports or reports[launcher].at < one.at:
                reports[launcher] = SeqReport(one.at, one.poll.seen_seq)
        return reports

    def receive_hello(self, hello: LauncherHello) -> None:
        """Notes a launcher that asks to be registered. Needs no Redis, as `receive_poll`."""
        self._hellos[str(hello.pod)] = hello.launcher, SeqReport(self._context.clock(), hello.seen_seq)
        self.seen_seq = max(self.seen_seq, hello.seen_seq)

    def register(self, hello: LauncherHello) -> None:
        """Takes a launcher in; one whose order has not come yet is taken in by the first poll that finds it."""
        if hello.launcher in self._context.store.rows(ENDED_LAUNCHERS):
            raise fenced(f"Launcher {hello.launcher} of {hello.pod} was replaced by a later one. Exit.")
        if self._awaits_order(hello):
            self._unordered.add(hello)
        else:
            self._take_in(hello)

    def _take_in(self, hello: LauncherHello) -> None:
        """An earlier launcher of the pod, and its ranks, are over from here on."""
        earlier = self._launcher_of(hello.pod)
        changes = [PODS.put(str(hello.pod), hello)]
        if earlier is not None and earlier.launcher != hello.launcher:
            changes += self._end_launcher(earlier)
        epoch = self._epochs.current.restore.epoch
        message = f"{hello.pod} is carried by launcher {hello.launcher} (pod {hello.pod_uid}, pid {hello.pid})."
        event = self._context.event(EventKind.POD_CHANGED, epoch, message).model_copy(update={"pod": hello.pod})
        self._context.emit_once(f"launcher:{hello.pod}", hello.launcher, event, *changes)
        self._answered[hello.launcher] = self._context.clock()
        for other in self._unordered.remove(hello.pod):
            if other != hello.launcher:
                self._forget_received(other)
        self._context.notify(Topic.ORDERS, [str(hello.pod)])  # other launchers of the pod may hold polls open

    def receive_poll(self, launcher: str, poll: LauncherPoll) -> None:
        """Notes what a launcher reports. Needs no Redis: it is how a restarted one learns how far it was seen."""
        self.polls[launcher] = ReceivedPoll(poll, self._context.clock())
        self._ranks.advance.receive_engines(poll.engines)
        waiting = self._unordered.find(launcher)
        if waiting is not None:  # it still waits to be registered
            self.receive_hello(waiting.model_copy(update={"seen_seq": poll.seen_seq}))
        self.seen_seq = max(self.seen_seq, poll.seen_seq)

    def note_answered(self, launcher: str) -> None:
        """The launcher was there until now. Its report is as old as its poll: what it saw since comes with the next."""
        self._answered[launcher] = self._context.clock()

    def pod_of(self, launcher: str) -> str:
        """The pod that a launcher carries or waits for; empty where there is none (any more)."""
        hello = self._registered(launcher) or self._unordered.find(launcher)
        return "" if hello is None else str(hello.pod)

    def is_news(self, launcher: str, carried: PodOrder | None) -> bool:
        """Whether a poll is to be noted: its launcher has taken an order, or the order that it waits for has come."""
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            return not self._awaits_order(waiting)
        hello = self._registered(launcher)
        if hello is None or carried is None:
            return False
        return self._epochs.newly_taken(hello, carried.epoch, carried.generation) is not None

    def note(self, launcher: str, carried: PodOrder | None) -> None:
        """Notes what `is_news`: durable when this returns.

        `carried` is the order that the launcher reports. What it is answered it has not taken yet: the answer to a poll
        that a dead launcher left open is lost.
        """
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            if self._awaits_order(waiting):
                return
            self._take_in(waiting)
        hello = self._hello_of(launcher)
        self._check_uid(hello)
        if carried is not None:
            self._epochs.note_taken(hello, carried.epoch, carried.generation)

    def answer(self, launcher: str, carried: PodOrder | None) -> LauncherAnswer:
        """The wanted state of a launcher's pod. Raises where the launcher is not the pod's current one."""
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            self._awaits_order(waiting)  # raises where there will be none
            return LauncherAnswer(order=None)
        hello = self._hello_of(launcher)
        self._check_uid(hello)
        order = self._epochs.order_of(hello.pod)
        if order is None or not self._epochs.may_take(hello, order):
            return LauncherAnswer(order=None)
        topology = self._epochs.topology(hello.pod.role)
        return LauncherAnswer(
            order=order,
            world_size=topology.num_ranks,
            first_rank=topology.ranks_of(hello.pod.replica).start,
            job=self._job_for(order, carried),
        )

    def _job_for(self, order: PodOrder, carried: PodOrder | None) -> RLJob | None:
        """What the order's epoch runs with, where the launcher does not know that epoch yet."""
        if carried is not None and carried.epoch == order.epoch:
            return None
        if order.epoch != self._epochs.current.restore.epoch:
            return None  # an order of the epoch before: its own is on the way
        return job_in_force(self._context.store)

    def _awaits_order(self, hello: LauncherHello) -> bool:
        """Whether the orders in force name another pod, and this one may be the next: a launcher can be up before them.

        Raises where it cannot be: the orders have left this pod, or name it as another replica.
        """
        order = self._epochs.order_of(hello.pod)
        if order is None or order.pod_uid in ("", hello.pod_uid):
            return False
        if order.pod_uid == UNSEEN_POD:
            return True
        current = self._launcher_of(hello.pod)
        was_ordered = current is not None and current.pod_uid == hello.pod_uid
        if was_ordered or self._epochs.replica_of(hello.pod_uid) is not None:
            self._check_uid(hello)
        return True

    def _check_uid(self, hello: LauncherHello) -> None:
        """Only the ordered pod may carry a replica; orders without a uid (one machine) admit any.

        Which pod UNSEEN_POD will be is not ordered yet: perhaps this one.
        """
        order = self._epochs.order_of(hello.pod)
        if order is not None and order.pod_uid not in ("", UNSEEN_POD, hello.pod_uid):
            raise fenced(
                f"{hello.pod} is pod {order.pod_uid} by order, and launcher {hello.launcher} is of pod"
                f" {hello.pod_uid}. Exit."
            )

    def _registered(self, launcher: str) -> LauncherHello | None:
        return next(iter(self._by_launcher.of(launcher)), None)

    def _hello_of(self, launcher: str) -> LauncherHello:
        hello = self._registered(launcher)
        if hello is not None:
            return hello
        if launcher in self._context.store.rows(ENDED_LAUNCHERS):
            raise fenced(f"Launcher {launcher} was replaced by a later one. Exit.")
        raise not_found(f"Launcher {launcher} is not registered. Register with POST /v1/launchers.")

    def _launcher_of(self, pod: PodKey) -> LauncherHello | None:
        return self._context.store.get(PODS, str(pod))

    def _end_launcher(self, hello: LauncherHello) -> list[Change]:
        """Ends a launcher's ranks in the queue; returns what is to be committed."""
        ended = list(self._context.store.rows(ENDED_LAUNCHERS))
        surplus = ended[: max(0, len(ended) + 1 - MAX_ENDED_LAUNCHERS)]
        changes = [ENDED_LAUNCHERS.put(hello.launcher, str(hello.pod))]
        changes += [ENDED_LAUNCHERS.drop(launcher) for launcher in surplus]
        changes += [self._ranks.ended(entry.hello.incarnation) for entry in self._ranks.of_pod(hello.pod)]
        self._forget_received(hello.launcher)
        return changes

    def _forget_received(self, launcher: str) -> None:
        self.polls.pop(launcher, None)
        self._answered.pop(launcher, None)

    def received_at(self, launcher: str) -> float | None:
        """When its last poll came, or was answered; None: not since this coordinator started."""
        received = self.polls.get(launcher)
        times = (self._answered.get(launcher), None if received is None else received.at)
        return max((at for at in times if at is not None), default=None)
