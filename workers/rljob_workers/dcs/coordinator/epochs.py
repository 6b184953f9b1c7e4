"""The epoch, its restore point and its job, the orders of each pod, and which of them launchers have taken.

The coordinator calls it in its thread. Raises the epoch and takes orders at the supervisor's request, never by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.failpoints import failpoint
from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.roles import RoleTopology
from rljob_api.spec import RLJob
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_api.wire.epochs import UNSEEN_POD, DesiredState, EpochRequest, PodOrder, PodPhase, RestorePoint
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, wrong_epoch
from rljob_workers.dcs.coordinator.health import restored as health_of
from rljob_workers.dcs.coordinator.measures import restored
from rljob_workers.dcs.coordinator.records import (
    DESIRED,
    EPOCH,
    EPOCH_TO_COME,
    EVALUATION,
    HEALTH,
    JOB_IN_FORCE,
    JOB_TO_COME,
    LAST_STEP,
    MEASURED,
    RANKS,
    RECORD,
    RENDEZVOUS,
    STEP_PARTS,
    TAKEN,
    Change,
    Derived,
    EpochJob,
    OpenEpoch,
    Store,
    TakenOrder,
)


def job_changes(epoch: Epoch, job: RLJob | None) -> Sequence[Change]:
    """What to store with an epoch that is opened; None: as before."""
    if job is None:
        return ()
    return JOB_IN_FORCE.put(EpochJob(epoch=epoch, job=job)), JOB_TO_COME.drop()


def note_job_to_come(epoch: Epoch, job: RLJob) -> Change:
    """What to store before the coordinator is made again for `job`."""
    return JOB_TO_COME.put(EpochJob(epoch=epoch, job=job))


def job_to_work_by(store: Store) -> RLJob | None:
    """The job that the coordinator works by: the one to come, else the one in force; None: the file's."""
    known = store.value(JOB_TO_COME) or store.value(JOB_IN_FORCE)
    return None if known is None else known.job


def job_in_force(store: Store) -> RLJob | None:
    """The job that the open epoch runs with; None: the one that everybody has a file of."""
    known = store.value(JOB_IN_FORCE)
    return None if known is None else known.job


def runs_alike(one: RLJob, other: RLJob) -> bool:
    """Whether a coordinator that was made for one serves the other too."""
    return one.spec == other.spec and one.metadata.name == other.metadata.name


@dataclass(frozen=True, slots=True)
class SavedState:
    """What lies beside the checkpoint folders, for a control Redis that knows less, or must go back."""

    record: CheckpointRecord
    tickets: bytes
    """The queue's ticket table of that checkpoint."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What an epoch is to begin with."""

    state: SavedState | None = None
    """None: what the control Redis has recorded, if anything."""
    version: int | None = None
    """None: nothing was recorded yet."""
    left: tuple[str, ...] = ()
    """Folders that the epoch must not begin with, though the control Redis has recorded them."""
    is_intact: bool = True
    """Whether any checkpoint can be trained from. If none can, the epoch is opened for the job to fail in."""


NO_EPOCH = OpenEpoch(
    decision_id="",
    restore=RestorePoint(
        epoch=Epoch(0), lineage=Lineage(0), version=WeightVersion(0), folder=None, kept_groups=0, dropped_groups=0
    ),
    alive={},
)
"""Before the first `POST /v1/epoch`."""


class Epochs:
    """Raising the epoch; orders, and the last one that each pod has taken."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._orders = Derived(context.store, [DESIRED], lambda: {order.pod: order for order in self.desired.pods})
        self._replicas = Derived(
            context.store, [DESIRED], lambda: {order.pod_uid: order.pod for order in reversed(self.desired.pods)}
        )

    @property
    def current(self) -> OpenEpoch:
        """The epoch that is open."""
        return self._context.store.value(EPOCH) or NO_EPOCH

    @property
    def to_come(self) -> Epoch:
        """The last epoch that was to be opened, though it may have come no further; 0 where there was none."""
        return Epoch(self._context.store.value(EPOCH_TO_COME) or 0)

    def note_to_come(self, epoch: Epoch) -> None:
        """Before anything else knows of an epoch that is to be opened."""
        self._context.store.commit([EPOCH_TO_COME.put(epoch)])

    @property
    def desired(self) -> DesiredState:
        """What the pods shall do; empty before the first order."""
        return self.ordered or DesiredState(epoch=Epoch(0), pods=[], replicas={})

    @property
    def ordered(self) -> DesiredState | None:
        """The orders that were taken last; None before the first."""
        return self._context.store.value(DESIRED)

    @property
    def last_step(self) -> StepReport | None:
        """The last report of a step that is still part of the job's history."""
        return self._context.store.value(LAST_STEP)

    def order_of(self, pod: PodKey) -> PodOrder | None:
        """What a pod shall do."""
        return self._orders().get(pod)

    def replica_of(self, pod_uid: str) -> PodKey | None:
        """Which replica a platform's pod is; None: it was not ordered (yet)."""
        return self._replicas().get(pod_uid) if pod_uid else None

    def drains(self, pod: PodKey) -> bool:
        """Whether a pod shall drain."""
        order = self.order_of(pod)
        return order is not None and order.phase is PodPhase.DRAIN

    def topology(self, role: Role) -> RoleTopology:
        """Of a role, with as many pods as the orders in force have."""
        topology = self._context.job.spec.roles.topology(role)
        return replace(topology, pods=self.desired.replicas.get(role.value, 1))

    # --- orders that launchers have taken --------------------------------------------------------------------------

    def may_take(self, hello: LauncherHello, order: PodOrder) -> bool:
        """A launcher that came back by itself gets no order that its earlier incarnation took: the table decides first.

        Another pod is a decision already: its uid is in the order.
        """
        if order.pod_uid == UNSEEN_POD:
            return False
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

    def note_taken(self, hello: LauncherHello, epoch: Epoch, generation: int) -> None:
        """Durable once."""
        taken = self.newly_taken(hello, epoch, generation)
        if taken is not None:
            self._context.store.commit([TAKEN.put(str(hello.pod), taken)])

    def newly_taken(self, hello: LauncherHello, epoch: Epoch, generation: int) -> TakenOrder | None:
        """What is to be noted; None where it is known, or history: below the last order that this pod took."""
        before = self._taken(hello.pod)
        is_same_pod = before is not None and before.pod_uid == hello.pod_uid
        if before is not None and is_same_pod and (epoch, generation) < (before.epoch, before.generation):
            return None
        taken = TakenOrder(launcher=hello.launcher, pod_uid=hello.pod_uid, epoch=epoch, generation=generation)
        return None if taken == before else taken

    def _taken(self, pod: PodKey) -> TakenOrder | None:
        return self._context.store.get(TAKEN, str(pod))

    # --- raising ---------------------------------------------------------------------------------------------------

    def open_again(self, request: EpochRequest) -> RestorePoint | None:
        """The first answer where this very decision was carried out; None where the epoch is to be raised now."""
        current = self.current
        if request.epoch > current.restore.epoch:
            return None
        if request.epoch == current.restore.epoch and request.decision_id == current.decision_id:
            return current.restore
        raise wrong_epoch(
            f"epoch: {request.epoch} (decision {request.decision_id}) is not above {current.restore.epoch} "
            f"(decision {current.decision_id}), which is open. Read /v1/status and decide anew."
        )

    def raise_to(self, request: EpochRequest, choice: Choice) -> RestorePoint:
        """Fences the open epoch and opens a later one; the choice has a state where the control Redis has another."""
        context, before = self._context, self.current
        record = None if choice.state is None else choice.state.record
        tickets = None if choice.state is None else choice.state.tickets
        restore = context.admin.raise_epoch(
            request.epoch, request.decision_id, request.reason, record, tickets=tickets, left=choice.left
        )
        failpoint("coordinator.epoch_raised")
        opened = OpenEpoch(
            decision_id=request.decision_id, restore=restore, alive=_alive_after(before, restore.version, record)
        )
        event = context.event(
            EventKind.EPOCH_OPENED,
            restore.epoch,
            f"Epoch {restore.epoch} starts at version {restore.version} in lineage {restore.lineage} "
            f"({restore.kept_groups} groups kept, {restore.dropped_groups} dropped): {request.reason}",
        )
        context.emit_once(
            "epoch",
            str(restore.epoch),
            event,
            EPOCH.put(opened),
            *([RECORD.put(record)] if record is not None and record.folder == restore.folder else []),
            *job_changes(restore.epoch, request.job),
            *self._forget_after(opened, record),
        )
        context.notify(Topic.ORDERS)
        context.notify(Topic.REPLICAS)
        context.notify(Topic.WEIGHTS)
        context.notify(Topic.RENDEZVOUS)
        context.notify(Topic.RANKS)
        context.notify(Topic.TURNS)
        return restore

    def order(self, desired: DesiredState) -> None:
        """Takes new orders for all pods. The same orders again change nothing."""
        current, before = self.current.restore.epoch, self.desired
        if desired.epoch != current:
            raise wrong_epoch(f"desired.epoch: {desired.epoch} is not the open epoch {current}. Raise the epoch first.")
        if before.epoch == desired.epoch:
            _refuse_older(before, desired)
        if before != desired:
            self._context.store.commit([DESIRED.put(desired)])
            self._context.notify(Topic.ORDERS, _changed_pods(before, desired))
            self._context.notify(Topic.REPLICAS)

    def note_step(self, report: StepReport) -> Change:
        """The change that makes `report` the last step."""
        return LAST_STEP.put(report)

    def _forget_after(self, opened: OpenEpoch, record: CheckpointRecord | None) -> list[Change]:
        """What an epoch's end voids: its incarnations, its rendezvous, what is after the restored version.

        No record has a step that a part of the roles has reported.
        """
        store = self._context.store
        changes = [RANKS.drop(field) for field in store.rows(RANKS)]
        changes += [RENDEZVOUS.drop(field) for field in store.rows(RENDEZVOUS)]
        changes += [STEP_PARTS.drop(field) for field in store.rows(STEP_PARTS)]
        last = self.last_step
        if last is not None and last.version > opened.restore.version:
            changes.append(LAST_STEP.drop())
        evaluated = store.value(EVALUATION)
        if evaluated is not None and evaluated.version > opened.restore.version:
            changes.append(EVALUATION.drop())
        measured = restored(store.value(MEASURED), record, opened.restore.version)
        if measured is not None:
            changes.append(MEASURED.put(measured))
        health = health_of(store.value(HEALTH), record, opened.restore.version)
        if health is not None:
            changes.append(HEALTH.put(health))
        return changes


def _alive_after(before: OpenEpoch, version: int, record: CheckpointRecord | None) -> dict[int, int]:
    """Bounds of the earlier lineages after a restore at `version`."""
    if record is not None:
        bounds = {int(lineage): bound for lineage, bound in record.ancestry.items()}
        return {lineage: version if bound < 0 else min(bound, version) for lineage, bound in bounds.items()}
    bounds = {lineage: min(bound, version) for lineage, bound in before.alive.items()}
    return bounds | ({before.restore.lineage: version} if before.restore.lineage > 0 else {})


def _changed_pods(before: DesiredState, desired: DesiredState) -> list[str]:
    """Those whose launchers wait for new orders."""
    old = {order.pod: order for order in before.pods}
    return [str(order.pod) for order in desired.pods if old.get(order.pod) != order]


def _refuse_older(before: DesiredState, desired: DesiredState) -> None:
    """Orders that take a pod back to an earlier generation come from a paused supervisor."""
    generations: Mapping[PodKey, int] = {order.pod: order.generation for order in before.pods}
    for order in desired.pods:
        if order.generation < generations.get(order.pod, 0):
            raise wrong_epoch(
                f"desired.pods[{order.pod}].generation: {order.generation} is below {generations[order.pod]}, which "
                "is ordered already. Read /v1/status and decide anew."
            )
