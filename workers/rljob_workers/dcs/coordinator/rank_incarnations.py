"""Incarnations of ranks: registration, beats, readiness of their roles, ends, and the fencing of earlier incarnations.

The coordinator calls it in its thread. Registrations are durable; beats are in memory only, are received again after a
restart of the coordinator, and ages count from its start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.wire.epochs import DesiredState, PodOrder
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Incarnation, PodKey, RankKey
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import Beat, BeatAnswer, FirstRank, RankHello, RankState
from rljob_workers.dcs.coordinator.context import (
    CoordinatorContext,
    Refused,
    Topic,
    fenced,
    incarnation_over,
    wrong_epoch,
)
from rljob_workers.dcs.coordinator.demand import Advance, Demand
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.records import PODS, RANKS, Change, Index, RankEntry
from rljob_workers.transfer_queue.admin import InWork


@dataclass(frozen=True, slots=True)
class RankStanding:
    """A registered rank: whose incarnation it is and whether it reported that it is Ready."""

    incarnation: Incarnation
    ready: bool


def readiness_mark(
    role: Role,
    desired: DesiredState,
    ranks_per_pod: Mapping[str, int],
    ranks: Mapping[str, RankStanding],
) -> str | None:
    """Names the Ready state of a role: one mark per set of incarnations; None while any rank is missing.

    Every pod of the role that is wanted counts: it must be registered (`ranks_per_pod` has it) and each of its ranks
    must be Ready in the wanted epoch and generation. A role without pods is never Ready.
    """
    orders = [order for order in desired.pods if order.pod.role is role]
    if not orders or len(orders) < desired.replicas.get(role.value, 0):
        return None
    incarnations: list[str] = []
    for order in orders:
        ready = _ready_incarnations(order, ranks_per_pod.get(str(order.pod), 0), ranks)
        if ready is None:
            return None
        incarnations += ready
    return f"{desired.epoch}:" + ",".join(sorted(incarnations))


def _ready_incarnations(order: PodOrder, num_ranks: int, ranks: Mapping[str, RankStanding]) -> list[str] | None:
    """Incarnations of the pod's ranks if all are Ready."""
    incarnations: list[str] = []
    for rank in range(num_ranks):
        standing = ranks.get(f"{order.pod}.{rank}")
        if standing is None or not standing.ready:
            return None
        incarnation = standing.incarnation
        if incarnation.epoch != order.epoch or incarnation.generation != order.generation:
            return None
        incarnations.append(incarnation.id)
    return incarnations or None


BEAT_SHARE = 1 / 6
"""Of the time after which a silent rank hangs: five beats may go astray."""


BEAT_BOUNDS_SECONDS = (0.5, 5.0)
"""Hundreds of ranks beat; and status and metrics are as old as the last beat."""


Judged = BeatAnswer | Refused


def beat_interval_seconds(policy: RestartPolicySpec) -> float:
    """How often ranks beat."""
    low, high = BEAT_BOUNDS_SECONDS
    return min(max(policy.heartbeat_timeout_seconds * BEAT_SHARE, low), high)


@dataclass(frozen=True, slots=True)
class ReceivedBeat:
    """A rank's last beat and when it was received."""

    beat: Beat
    at: float


class RankIncarnations:
    """The current incarnation of each rank."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs) -> None:
        self._context = context
        self._epochs = epochs
        self.advance = Advance(context.clock)
        self.demand = Demand(context.wall)
        self.beats: dict[str, ReceivedBeat] = {}
        """Incarnation -> last beat."""
        self._began: dict[str, float] = {}
        """Incarnation -> when it registered."""
        store = context.store
        self._by_pod = Index(store, RANKS, lambda entry: entry.hello.incarnation.key.pod)
        self._by_id = Index(store, RANKS, lambda entry: entry.hello.incarnation.id)
        self._ready = Index(store, RANKS, lambda entry: (entry.hello.incarnation.key.role, entry.ready))
        self.seen_seq = 0
        """Highest seq of the control Redis that one of them has reported."""

    def by_rank(self) -> Mapping[str, RankEntry]:
        """Rank -> its current incarnation."""
        return self._context.store.rows(RANKS)

    def living(self) -> Collection[str]:
        """The ids of all current incarnations."""
        return self._by_id.keys()

    def find(self, id_: str) -> Incarnation | None:
        """A current incarnation; None where it is over."""
        return next((entry.hello.incarnation for entry in self._by_id.of(id_)), None)

    def register(self, hello: RankHello) -> None:
        """Takes an incarnation in and ends the earlier one of the same rank."""
        incarnation = hello.incarnation
        launcher = self._launcher_in_place(hello)
        earlier = self._context.store.get(RANKS, str(incarnation.key))
        if earlier is not None and earlier.hello.incarnation == incarnation:
            return
        if earlier is not None and earlier.hello.incarnation.generation > incarnation.generation:
            raise fenced(
                f"{incarnation.key} {incarnation.id} is of generation {incarnation.generation}; "
                "a later one lives. Exit."
            )
        if earlier is not None:
            self.end(earlier.hello.incarnation)
        self._epochs.note_taken(launcher, incarnation.epoch, incarnation.generation)
        self._context.admin.begin_incarnation(incarnation)
        entry = RankEntry(hello=hello)
        self._context.store.commit([RANKS.put(str(incarnation.key), entry)])
        self._began[incarnation.id] = self._context.clock()
        self._context.notify(Topic.RANKS, [incarnation.key.role.value])

    def first_of(self, role: Role, epoch: int, asking: str) -> FirstRank:
        """Global rank 0 of a role, for `asking`, a living incarnation of the open epoch."""
        open_epoch = self._epochs.current.restore.epoch
        if epoch != open_epoch:
            raise wrong_epoch(f"{role.value}: {asking} is of epoch {epoch}; epoch {open_epoch} is open. Exit.")
        if asking not in self.living():
            raise incarnation_over(f"{role.value}: {asking}")
        first = RankKey(role=role, replica=0, rank=0)
        entry, order = self._context.store.get(RANKS, str(first)), self._epochs.order_of(first.pod)
        return FirstRank(
            incarnation=None if entry is None else entry.hello.incarnation,
            has_begun=order is not None and self._epochs.has_taken(first.pod, order.epoch, order.generation),
        )

    def registered_first_of(self, role: Role, epoch: int, asking: str) -> FirstRank | None:
        """As `first_of`, once it has registered."""
        answer = self.first_of(role, epoch, asking)
        return None if answer.incarnation is None else answer

    def receive_beat(self, beat: Beat) -> None:
        """Notes a beat. Needs no Redis, so that a restart of it lets no rank appear dead."""
        self.beats[beat.incarnation.id] = ReceivedBeat(beat, self._context.clock())
        self.seen_seq = max(self.seen_seq, beat.seen_seq)

    def check_beat(self, beat: Beat) -> None:
        """Raises for an incarnation that is over, and forgets its beat."""
        try:
            self.check_incarnation(beat.incarnation)
        except Refused:
            self.beats.pop(beat.incarnation.id, None)
            raise

    def renew(self, beats: Sequence[Beat]) -> None:
        """Renews the tickets and leases of living ranks, and notices who is Ready."""
        self._context.admin.beats([InWork(beat.incarnation.id, beat.tickets, beat.leases) for beat in beats])
        for beat in beats:
            self.advance.receive(beat)
            self.demand.receive(beat)
        self._notice_ready([beat.incarnation.key for beat in beats if beat.state is RankState.READY])

    def _notice_ready(self, keys: Iterable[RankKey]) -> None:
        entries = {str(key): self._context.store.get(RANKS, str(key)) for key in keys}
        became = {name: entry for name, entry in entries.items() if entry is not None and not entry.ready}
        if not became:
            return
        ready = [RANKS.put(name, entry.model_copy(update={"ready": True})) for name, entry in became.items()]
        self._context.store.commit(ready)
        for role in dict.fromkeys(entry.hello.incarnation.key.role for entry in became.values()):
            self.emit_readiness(role)

    def check_incarnation(self, incarnation: Incarnation) -> RankEntry:
        """The entry of a current incarnation; raises for one that is over."""
        epoch = self._epochs.current.restore.epoch
        if incarnation.epoch != epoch:
            raise wrong_epoch(
                f"{incarnation.key} {incarnation.id} is of epoch {incarnation.epoch}; epoch {epoch} is open. Exit."
            )
        entry = self._context.store.get(RANKS, str(incarnation.key))
        if entry is None or entry.hello.incarnation.id != incarnation.id:
            raise incarnation_over(f"{incarnation.key} {incarnation.id}")
        return entry

    def epoch_opened(self) -> None:
        """All incarnations of before are over, and their queue has forgotten them."""
        self.beats.clear()
        self._began.clear()
        self.advance.epoch_opened()
        self.demand.epoch_opened()

    def end(self, incarnation: Incarnation) -> None:
        """Ends an incarnation in the queue: its tickets and leases come back. Twice is once."""
        self._context.admin.end_incarnation(incarnation.id)
        self.beats.pop(incarnation.id, None)
        self.advance.forget(incarnation.id)
        self.demand.forget(incarnation.id)
        self._began.pop(incarnation.id, None)

    def ended(self, incarnation: Incarnation) -> Change:
        """Ends a current incarnation; the change that takes it off the register, which the caller commits."""
        self.end(incarnation)
        return RANKS.drop(str(incarnation.key))

    def end_outdated(self) -> None:
        """Ends the incarnations that the orders have left behind (an in-place restart)."""
        changes = [
            self.ended(entry.hello.incarnation)
            for order in self._epochs.desired.pods
            for entry in self.of_pod(order.pod)
            if entry.hello.incarnation.generation < order.generation
        ]
        if changes:
            self._context.store.commit(changes)

    def bury(self, failure: Failure) -> list[Change]:
        """Ends the incarnations that a failure ends: their prompts have died once more, and they hold nothing any more.

        The rank of a dead engine lives, and hands back what that had. It may hold other work by now: a death that two
        report would count for two.
        """
        changes: list[Change] = []
        for entry in self.of_pod(failure.pod):
            if not concerns(failure, entry.hello.incarnation):
                continue
            if TRAITS[failure.pod.role].draws_tickets:
                self._context.admin.suspect(entry.hello.incarnation.id)
            changes.append(self.ended(entry.hello.incarnation))
        return changes

    def emit_readiness(self, role: Role) -> None:
        """Emits RoleReady once for every set of incarnations that made the role Ready."""
        desired, topology = self._epochs.desired, self._epochs.topology(role)
        if self._ready.count((role, True)) < topology.num_ranks:
            return
        # As the job has it: a launcher registers before it knows the job of its first order.
        ranks_per_pod = dict.fromkeys(self._context.store.rows(PODS), topology.ranks_per_pod)
        standings = {rank: RankStanding(entry.hello.incarnation, entry.ready) for rank, entry in self.by_rank().items()}
        mark = readiness_mark(role, desired, ranks_per_pod, standings)
        if mark is None:
            return
        message = f"Every rank of {role.value} is Ready in epoch {desired.epoch}."
        event = self._context.event(EventKind.ROLE_READY, desired.epoch, message)
        pod = PodKey(role=role, replica=0)
        self._context.emit_once(f"ready:{role.value}", mark, event.model_copy(update={"pod": pod}))

    def of_pod(self, pod: PodKey) -> Sequence[RankEntry]:
        """The current incarnations of a pod."""
        return self._by_pod.of(pod)

    def _launcher_in_place(self, hello: RankHello) -> LauncherHello:
        """A rank may begin only in the open epoch, in the ordered generation, under the pod's current launcher."""
        incarnation = hello.incarnation
        epoch = self._epochs.current.restore.epoch
        if incarnation.epoch != epoch:
            raise wrong_epoch(
                f"{incarnation.key} {incarnation.id} is of epoch {incarnation.epoch}; epoch {epoch} is open. Exit."
            )
        order = self._epochs.order_of(incarnation.key.pod)
        if order is not None and order.epoch == epoch and incarnation.generation < order.generation:
            raise fenced(
                f"{incarnation.key} {incarnation.id} is of generation {incarnation.generation}; {order.generation} is "
                "ordered. Exit."
            )
        launcher = self._context.store.get(PODS, str(incarnation.key.pod))
        if launcher is None or launcher.launcher != hello.launcher:
            raise fenced(
                f"{incarnation.key} {incarnation.id}: its launcher {hello.launcher} is not the pod's current one. Exit."
            )
        return launcher

    def received_at(self, incarnation: str) -> float | None:
        """When its last beat came, or it registered; None: not since this coordinator started."""
        received = self.beats.get(incarnation)
        times = (self._began.get(incarnation), None if received is None else received.at)
        return max((at for at in times if at is not None), default=None)


def concerns(failure: Failure, incarnation: Incarnation) -> bool:
    """Whether this incarnation is over by a failure: a launcher's loss ends all of its pod, an engine's no rank."""
    if (
        failure.kind in (FailureKind.REPORTED, FailureKind.ENGINE_EXITED)
        or failure.epoch != incarnation.epoch
        or failure.generation != incarnation.generation
    ):
        return False
    if failure.kind is FailureKind.LAUNCHER_LOST:
        return True
    return failure.incarnation == incarnation.id
