"""Who lives: launchers, ranks, their beats and polls, and the fencing of earlier lives.

Called by the coordinator in its thread. Registrations are durable; ages, what a launcher carries and what a rank waits
for are heard again after a restart of the coordinator, and counted from its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.names import Epoch, Role
from rljob_api.role_traits import TRAITS
from rljob_api.spec import RLJob
from rljob_api.topology import RoleTopology, topology_of
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Life, PodKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import Beat, RankHello, RankState
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.jobs import job_in_force
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.opening import Word
from rljob_workers.dcs.coordinator.readiness import RankStanding, readiness_mark
from rljob_workers.dcs.coordinator.records import ENDED_LAUNCHERS, PODS, RANKS, TAKEN, RankEntry, TakenOrder
from rljob_workers.dcs.coordinator.refusals import Refused, fenced, not_found, wrong_epoch
from rljob_workers.dcs.coordinator.store import Derived
from rljob_workers.dcs.coordinator.table import Change
from rljob_workers.dcs.coordinator.unordered import UnorderedLaunchers
from rljob_workers.transfer_queue.queue_admin import InWork

MAX_ENDED_LAUNCHERS = 1000
"""Ended launchers that are remembered; a zombie older than this many restarts is not plausible."""


@dataclass(frozen=True, slots=True)
class HeardBeat:
    """A rank's last beat and when it was heard."""

    beat: Beat
    at: float


@dataclass(frozen=True, slots=True)
class HeardPoll:
    """A launcher's last poll and when it was heard."""

    poll: LauncherPoll
    at: float


class Pods:
    """Registered launchers and ranks."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs) -> None:
        self._context = context
        self._epochs = epochs
        self.beats: dict[str, HeardBeat] = {}
        """Incarnation -> last beat."""
        self.polls: dict[str, HeardPoll] = {}
        """Launcher -> last poll."""
        self._hellos: dict[str, tuple[str, Word]] = {}
        """Pod -> who wished to be its launcher last, and when."""
        self._registered: dict[str, float] = {}
        self._unordered = UnorderedLaunchers()
        store = context.store
        self._by_launcher = Derived(
            store, [PODS], lambda: {hello.launcher: hello for hello in self.launchers().values()}
        )
        self._by_pod = Derived(store, [RANKS], self._grouped_by_pod)
        self._living = Derived(
            store, [RANKS], lambda: frozenset(entry.hello.life.incarnation for entry in self.ranks().values())
        )
        self.seen_seq = 0
        """Highest seq of the control Redis that anyone alive has told."""

    # --- launchers -------------------------------------------------------------------------------------------------

    def launchers(self) -> Mapping[str, LauncherHello]:
        """Pod -> its current launcher."""
        return self._context.store.rows(PODS)

    def words(self) -> dict[str, Word]:
        """What each launcher said last about the control Redis; of a pod with a later one, what that one said."""
        carried, ended = self.launchers(), self._context.store.rows(ENDED_LAUNCHERS)
        hellos = [(pod, word) for pod, (launcher, word) in list(self._hellos.items()) if launcher not in ended]
        said = {carried[pod].launcher: word for pod, word in hellos if pod in carried}
        for launcher, one in list(self.polls.items()):  # the event loop adds to both meanwhile
            if launcher not in said or said[launcher].at < one.at:
                said[launcher] = Word(one.at, one.poll.seen_seq)
        return said

    def hear_hello(self, hello: LauncherHello) -> None:
        """Notes who wishes to be let in. Needs no Redis, as `hear_poll`."""
        self._hellos[str(hello.pod)] = hello.launcher, Word(self._context.clock(), hello.seen_seq)
        self.seen_seq = max(self.seen_seq, hello.seen_seq)

    def register_launcher(self, hello: LauncherHello) -> None:
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
        self._registered[hello.launcher] = self._context.clock()
        for other in self._unordered.remove(hello.pod):
            if other != hello.launcher:
                self._forget_heard(other)
        self._context.notify(Topic.ORDERS, [str(hello.pod)])  # other launchers of the pod may hold polls open

    def hear_poll(self, launcher: str, poll: LauncherPoll) -> None:
        """Notes what a launcher reports. Needs no Redis: it is how a restarted one learns how far it was seen."""
        self.polls[launcher] = HeardPoll(poll, self._context.clock())
        waiting = self._unordered.find(launcher)
        if waiting is not None:  # it still wishes to be let in
            self.hear_hello(waiting.model_copy(update={"seen_seq": poll.seen_seq}))
        self.seen_seq = max(self.seen_seq, poll.seen_seq)

    def note_answered(self, launcher: str) -> None:
        """The launcher was there until now. Its word is as old as its poll: what it saw since comes with the next."""
        self._registered[launcher] = self._context.clock()

    def pod_of(self, launcher: str) -> str:
        """The pod that a launcher carries or waits for; empty where there is none (any more)."""
        hello = self._by_launcher().get(launcher) or self._unordered.find(launcher)
        return "" if hello is None else str(hello.pod)

    def is_news(self, launcher: str, carried: PodOrder | None) -> bool:
        """Whether a poll is to be noted: its launcher has taken an order, or the order that it waits for has come."""
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            return not self._awaits_order(waiting)
        hello = self._by_launcher().get(launcher)
        if hello is None or carried is None:
            return False
        return self._taken_anew(hello, carried.epoch, carried.generation) is not None

    def note(self, launcher: str, carried: PodOrder | None) -> None:
        """Notes what `is_news`: durable when this returns.

        `carried` is the order that the launcher says it has. What it is answered it has not taken yet: the answer to a
        poll that a dead launcher left open reaches nobody.
        """
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            if self._awaits_order(waiting):
                return
            self._take_in(waiting)
        hello = self._hello_of(launcher)
        self._check_uid(hello)
        if carried is not None:
            self._note_taken(hello, carried.epoch, carried.generation)

    def answer(self, launcher: str, carried: PodOrder | None) -> LauncherAnswer:
        """The wanted state of a launcher's pod. Raises where the launcher is not the pod's current one."""
        waiting = self._unordered.find(launcher)
        if waiting is not None:
            self._awaits_order(waiting)  # raises where there will be none
            return LauncherAnswer(order=None)
        hello = self._hello_of(launcher)
        self._check_uid(hello)
        order = self._epochs.order_of(hello.pod)
        if order is None or not self._may_carry(hello, order):
            return LauncherAnswer(order=None)
        topology = self.topology(hello.pod.role)
        return LauncherAnswer(
            order=order,
            world_size=topology.num_ranks,
            first_rank=topology.ranks_of(hello.pod.replica).start,
            job=self._job_for(order, carried),
        )

    def topology(self, role: Role) -> RoleTopology:
        """With the pods that are ordered: while the job runs it is scaled."""
        topology = topology_of(self._context.job.spec.roles, role)
        return replace(topology, pods=self._epochs.desired.replicas.get(role.value, 1))

    def _job_for(self, order: PodOrder, carried: PodOrder | None) -> RLJob | None:
        """What the order's epoch runs with, where the launcher has not heard of that epoch yet."""
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
        current = self._launcher_of(hello.pod)
        was_ordered = current is not None and current.pod_uid == hello.pod_uid
        if was_ordered or self._epochs.replica_of(hello.pod_uid) is not None:
            self._check_uid(hello)
        return True

    def _check_uid(self, hello: LauncherHello) -> None:
        """Only the ordered pod may carry a replica; orders without a uid (one machine) are anybody's."""
        order = self._epochs.order_of(hello.pod)
        if order is not None and order.pod_uid and order.pod_uid != hello.pod_uid:
            raise fenced(
                f"{hello.pod} is pod {order.pod_uid} by order, and launcher {hello.launcher} is of pod"
                f" {hello.pod_uid}. Exit."
            )

    def _may_carry(self, hello: LauncherHello, order: PodOrder) -> bool:
        """A launcher that came back by itself gets no order that its earlier life took: the table decides first.

        Another pod is a decision already: its uid is in the order.
        """
        taken = self._taken(hello.pod)
        if taken is None or taken.launcher == hello.launcher:
            return True
        if order.pod_uid and order.pod_uid != taken.pod_uid:
            return True
        return (order.epoch, order.generation) > (taken.epoch, taken.generation)

    def has_taken(self, pod: PodKey, epoch: Epoch, generation: int) -> bool:
        """Whether a launcher of the pod has taken the order of this epoch and generation."""
        taken = self._taken(pod)
        return taken is not None and (taken.epoch, taken.generation) == (epoch, generation)

    def _taken(self, pod: PodKey) -> TakenOrder | None:
        return self._context.store.get(TAKEN, str(pod))

    def _note_taken(self, hello: LauncherHello, epoch: Epoch, generation: int) -> None:
        """Durable once."""
        taken = self._taken_anew(hello, epoch, generation)
        if taken is not None:
            self._context.store.commit([TAKEN.put(str(hello.pod), taken)])

    def _taken_anew(self, hello: LauncherHello, epoch: Epoch, generation: int) -> TakenOrder | None:
        """What is to be noted; None where it is known, or history: below the last order that this pod took."""
        before = self._taken(hello.pod)
        is_same_pod = before is not None and before.pod_uid == hello.pod_uid
        if before is not None and is_same_pod and (epoch, generation) < (before.epoch, before.generation):
            return None
        taken = TakenOrder(launcher=hello.launcher, pod_uid=hello.pod_uid, epoch=epoch, generation=generation)
        return None if taken == before else taken

    def _hello_of(self, launcher: str) -> LauncherHello:
        hello = self._by_launcher().get(launcher)
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
        for entry in self.ranks_of(hello.pod):
            self.end(entry.hello.life)
            changes.append(RANKS.drop(str(entry.hello.life.key)))
        self._forget_heard(hello.launcher)
        return changes

    def _forget_heard(self, launcher: str) -> None:
        self.polls.pop(launcher, None)
        self._registered.pop(launcher, None)

    # --- ranks -----------------------------------------------------------------------------------------------------

    def ranks(self) -> Mapping[str, RankEntry]:
        """Rank -> its current life."""
        return self._context.store.rows(RANKS)

    def living(self) -> Collection[str]:
        """The incarnations of all current lives."""
        return self._living()

    def register_rank(self, hello: RankHello) -> None:
        """Takes a life in and ends the earlier one of the same rank."""
        life = hello.life
        launcher = self._launcher_in_place(hello)
        earlier = self._context.store.get(RANKS, str(life.key))
        if earlier is not None and earlier.hello.life == life:
            return
        if earlier is not None and earlier.hello.life.generation > life.generation:
            raise fenced(f"{life.key} {life.incarnation} is of generation {life.generation}; a later one lives. Exit.")
        if earlier is not None:
            self.end(earlier.hello.life)
        self._note_taken(launcher, life.epoch, life.generation)
        self._context.admin.begin_life(life)
        entry = RankEntry(hello=hello)
        self._context.store.commit([RANKS.put(str(life.key), entry)])
        self._registered[life.incarnation] = self._context.clock()

    def heard_at(self, name: str) -> float | None:
        """When an incarnation or a launcher was heard last; None: not since this coordinator started."""
        heard = self.beats.get(name) or self.polls.get(name)
        times = (self._registered.get(name), None if heard is None else heard.at)
        return max((at for at in times if at is not None), default=None)

    def hear_beat(self, beat: Beat) -> None:
        """Notes a beat. Needs no Redis, so that its restart makes no rank look dead."""
        self.beats[beat.life.incarnation] = HeardBeat(beat, self._context.clock())
        self.seen_seq = max(self.seen_seq, beat.seen_seq)

    def check_beat(self, beat: Beat) -> None:
        """Raises for a life that is over, and forgets its beat."""
        try:
            self.check_life(beat.life)
        except Refused:
            self.beats.pop(beat.life.incarnation, None)
            raise

    def renew(self, beats: Sequence[Beat]) -> None:
        """Renews the tickets and leases of living ranks, and notices who is Ready."""
        self._context.admin.beats([InWork(beat.life.incarnation, beat.tickets, beat.leases) for beat in beats])
        for beat in beats:
            self._notice_ready(beat)

    def _notice_ready(self, beat: Beat) -> None:
        entry = self._context.store.get(RANKS, str(beat.life.key))
        if beat.state is RankState.READY and entry is not None and not entry.ready:
            ready = entry.model_copy(update={"ready": True})
            self._context.store.commit([RANKS.put(str(beat.life.key), ready)])
            self.emit_readiness(beat.life.key.role)

    def check_life(self, life: Life) -> RankEntry:
        """The entry of a current life; raises for one that is over."""
        epoch = self._epochs.current.restore.epoch
        if life.epoch != epoch:
            raise wrong_epoch(f"{life.key} {life.incarnation} is of epoch {life.epoch}; epoch {epoch} is open. Exit.")
        entry = self._context.store.get(RANKS, str(life.key))
        if entry is None or entry.hello.life.incarnation != life.incarnation:
            raise fenced(f"{life.key} {life.incarnation} is over: it died, was replaced or was told to restart. Exit.")
        return entry

    def end(self, life: Life) -> None:
        """Ends a life in the queue: its tickets and leases come back. Twice is once."""
        self._context.admin.end_life(life.incarnation)
        self.beats.pop(life.incarnation, None)
        self._registered.pop(life.incarnation, None)

    def end_outdated(self) -> None:
        """Ends the lives that the orders have left behind (an in-place restart)."""
        changes: list[Change] = []
        for order in self._epochs.desired.pods:
            for entry in self.ranks_of(order.pod):
                if entry.hello.life.generation < order.generation:
                    self.end(entry.hello.life)
                    changes.append(RANKS.drop(str(entry.hello.life.key)))
        if changes:
            self._context.store.commit(changes)

    def bury(self, failure: Failure) -> list[Change]:
        """What a failure means for lives: prompts in work become suspects, the dead hold nothing any more."""
        changes: list[Change] = []
        for entry in self.ranks_of(failure.pod):
            if not concerns(failure, entry.hello.life):
                continue
            if TRAITS[failure.pod.role].draws_tickets:
                self._context.admin.suspect(entry.hello.life.incarnation)
            if failure.kind is not FailureKind.ENGINE_EXITED:
                self.end(entry.hello.life)
                changes.append(RANKS.drop(str(entry.hello.life.key)))
        return changes

    def emit_readiness(self, role: Role) -> None:
        """Tells RoleReady once for every set of lives that made the role Ready."""
        desired = self._epochs.desired
        # As the job has it: a launcher registers before it knows the job of its first order.
        ranks_per_pod = dict.fromkeys(self.launchers(), self.topology(role).ranks_per_pod)
        standings = {rank: RankStanding(entry.hello.life, entry.ready) for rank, entry in self.ranks().items()}
        mark = readiness_mark(role, desired, ranks_per_pod, standings)
        if mark is None:
            return
        message = f"Every rank of {role.value} is Ready in epoch {desired.epoch}."
        event = self._context.event(EventKind.ROLE_READY, desired.epoch, message)
        pod = PodKey(role=role, replica=0)
        self._context.emit_once(f"ready:{role.value}", mark, event.model_copy(update={"pod": pod}))

    def ranks_of(self, pod: PodKey) -> Sequence[RankEntry]:
        """The current lives of a pod."""
        return self._by_pod().get(pod, ())

    def _grouped_by_pod(self) -> dict[PodKey, list[RankEntry]]:
        grouped: defaultdict[PodKey, list[RankEntry]] = defaultdict(list)
        for entry in self.ranks().values():
            grouped[entry.hello.life.key.pod].append(entry)
        return dict(grouped)

    def _launcher_in_place(self, hello: RankHello) -> LauncherHello:
        """A rank may begin only in the open epoch, in the ordered generation, under the pod's current launcher."""
        life = hello.life
        epoch = self._epochs.current.restore.epoch
        if life.epoch != epoch:
            raise wrong_epoch(f"{life.key} {life.incarnation} is of epoch {life.epoch}; epoch {epoch} is open. Exit.")
        order = self._epochs.order_of(life.key.pod)
        if order is not None and order.epoch == epoch and life.generation < order.generation:
            raise fenced(
                f"{life.key} {life.incarnation} is of generation {life.generation}; {order.generation} is "
                "ordered. Exit."
            )
        launcher = self._launcher_of(life.key.pod)
        if launcher is None or launcher.launcher != hello.launcher:
            raise fenced(
                f"{life.key} {life.incarnation}: its launcher {hello.launcher} is not the pod's current one. Exit."
            )
        return launcher


def concerns(failure: Failure, life: Life) -> bool:
    """Whether a failure is about this life: a launcher's loss is about all of its pod, an engine's about its rank."""
    if failure.kind is FailureKind.REPORTED or failure.epoch != life.epoch or failure.generation != life.generation:
        return False
    if failure.kind is FailureKind.LAUNCHER_LOST:
        return True
    if failure.kind is FailureKind.ENGINE_EXITED:
        return failure.engine in (None, life.key.rank)
    return failure.incarnation == life.incarnation
