"""A coordinator that runs nothing: it takes a job's orders, says they are carried out, and trains without training.

Pure but for the loop's timers. The stand-in's server has one for each job; it answers in the coordinator's own words.
"""

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from rljob_api.names import Role
from rljob_api.wire.epochs import DesiredState, EpochRequest, PodOrder, PodPhase, RestorePoint
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Incarnation, PodKey, RankKey, WeightId
from rljob_api.wire.launchers import RankProcess
from rljob_api.wire.observation import (
    CoordinatorEvent,
    CoordinatorStatus,
    EventKind,
    EventPage,
    PodObservation,
    QueueObservation,
    RankObservation,
    ServerState,
)
from rljob_api.wire.ranks import RankState, StepReport

START_SECONDS = (0.2, 0.5)
"""From an order to a rank that is Ready: a fork and its first beat."""

RECORD_EVERY = 10
"""Steps between two checkpoints, as in the quickstart."""

REMEMBERED_EVENTS = 1000


@dataclass(slots=True)
class _Pod:
    order: PodOrder
    incarnation: str
    ready: bool = False
    exit_code: int | None = None


@dataclass(slots=True)
class Restart:
    """What the operator made of a failure, in seconds of the monotonic clock."""

    failed: float
    raised: float | None = None
    """POST /v1/epoch came."""
    ordered: float | None = None
    """PUT /v1/desired came."""
    ready: float | None = None
    """The last rank was Ready in the new epoch."""


@dataclass(slots=True)
class PretendedCoordinator:
    """One job's."""

    restarts: list[Restart] = field(default_factory=list)
    step: int = -1
    _restore: RestorePoint = field(
        default_factory=lambda: RestorePoint(
            epoch=0, lineage=0, version=0, folder=None, kept_groups=0, dropped_groups=0
        )
    )
    _decision: str = ""
    _desired: DesiredState | None = None
    _pods: dict[PodKey, _Pod] = field(default_factory=dict)
    _recorded: int | None = None
    _failures: list[Failure] = field(default_factory=list)
    _events: deque[CoordinatorEvent] = field(default_factory=lambda: deque(maxlen=REMEMBERED_EVENTS))
    _last_event: int = 0
    _last_step: StepReport | None = None
    _waiting: set[asyncio.Event] = field(default_factory=set)

    @property
    def trains(self) -> bool:
        """Whether every pod is ready in the epoch that is open."""
        if self._desired is None or self._desired.epoch != self._restore.epoch:
            return False
        return bool(self._pods) and all(pod.ready for pod in self._pods.values())

    def raise_epoch(self, request: EpochRequest) -> RestorePoint:
        """Opens an epoch at the last checkpoint."""
        if request.epoch > self._restore.epoch:
            version = self._recorded or 0
            self._restore = self._restore.model_copy(
                update={"epoch": request.epoch, "lineage": request.epoch, "version": version}
            )
            self._decision = request.decision_id
            self.step = version - 1
            running = self._running_restart()
            if running is not None:
                running.raised = time.monotonic()
            self._emit(EventKind.EPOCH_OPENED, f"Epoch {request.epoch} is open.")
        return self._restore

    def order(self, desired: DesiredState) -> None:
        """What every pod shall do; those whose order is another one begin it."""
        first = self._desired is None
        self._desired = desired
        running = self._running_restart()
        if running is not None and running.raised is not None and running.ordered is None:
            running.ordered = time.monotonic()
        known, self._pods = self._pods, {}
        started: list[PodKey] = []
        for order in desired.pods:
            before = known.get(order.pod)
            if before is not None and before.order == order:
                self._pods[order.pod] = before
                continue
            if not order.pod_uid:
                continue
            if before is None or before.order.pod_uid != order.pod_uid:
                self._emit(EventKind.POD_CHANGED, f"{order.pod} is carried by a launcher.", order.pod)
            self._pods[order.pod] = self._begun(order, before)
            if order.phase is PodPhase.RUN:
                started.append(order.pod)
        loop = asyncio.get_running_loop()
        for pod in started:
            loop.call_later(random.uniform(*START_SECONDS) * (2 if first else 1), self._becomes_ready, pod)

    def fail(self, role: Role) -> None:
        """The first rank of a role dies."""
        pod = PodKey(role=role, replica=0)
        dead = self._pods[pod]
        dead.ready, dead.exit_code = False, -9
        failure = Failure(
            id=f"{dead.order.pod_uid}/0/{dead.incarnation}",
            kind=FailureKind.RANK_EXITED,
            pod=pod,
            rank=0,
            epoch=dead.order.epoch,
            generation=dead.order.generation,
            incarnation=dead.incarnation,
            exit_code=-9,
            message=f"Rank {pod}.0 was killed by SIGKILL.",
            at=time.time(),
        )
        self._failures.append(failure)
        self.restarts.append(Restart(time.monotonic()))
        self._emit(EventKind.FAILURE_REPORTED, failure.message, pod, failure=failure)

    def acknowledge(self, ids: Collection[str]) -> None:
        """These failures are remembered elsewhere."""
        self._failures = [failure for failure in self._failures if failure.id not in ids]

    def train(self) -> None:
        """One step."""
        self.step += 1
        incarnation = Incarnation(
            key=RankKey(role=Role.ACTOR, replica=0),
            epoch=self._restore.epoch,
            generation=0,
            id=self._pods[PodKey(role=Role.ACTOR, replica=0)].incarnation,
        )
        reward = min(0.95, 0.1 + self.step / 200) + random.uniform(-0.02, 0.02)
        self._last_step = StepReport(
            incarnation=incarnation,
            step=self.step,
            version=self.step + 1,
            reward=reward,
            loss=0.1,
            metrics={"kl": 0.01, "grad_norm": 0.5},
            staleness=random.randint(0, 1),
            samples=512,
            tokens=random.randint(2500, 3000),
            seconds=random.uniform(1.9, 2.1),
        )
        self._emit(EventKind.PUBLISHED, f"Version {self.step + 1} is published.")
        self._emit(EventKind.STEP_TRAINED, f"Step {self.step} was trained.", step=self._last_step)
        if self.step % RECORD_EVERY == 0:
            self._recorded = self.step + 1
            self._emit(EventKind.RECORDED, f"Checkpoint {self._recorded} is recorded.")

    def status(self) -> CoordinatorStatus:
        """As `GET /v1/status` says it."""
        return CoordinatorStatus(
            server=ServerState.OPEN,
            epoch=self._restore.epoch,
            lineage=self._restore.lineage,
            decision_id=self._decision,
            published=self.step + 1,
            recorded=self._recorded,
            recorded_folder=None if self._recorded is None else f"{self._recorded}-e{self._restore.epoch}-{'0' * 12}",
            step=self.step if self.step >= 0 else None,
            last_step=self._last_step,
            pods=[self._observed(key, pod) for key, pod in self._pods.items()],
            failures=self._failures,
            queue=QueueObservation(
                groups_issued=32 + self.step % 32,
                groups_capacity=64,
                rows_ready={"actor_train": 8 * self.step % 512, "ref_log_probs": self.step % 128},
                withheld=None,
            ),
            last_event=self._last_event,
            desired=self._desired,
            progress_age_seconds=0.0,
            beat_interval_seconds=0.5,
        )

    async def events(self, after: int, wait: float, quiet: Collection[str]) -> EventPage:
        """Events after `after`; waits for the first that is not of a quiet kind."""
        notified = asyncio.Event()
        self._waiting.add(notified)
        deadline = time.monotonic() + wait
        try:
            while not any(event.id > after and event.kind not in quiet for event in self._events):
                notified.clear()
                await asyncio.wait_for(notified.wait(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pass  # what there is by then
        finally:
            self._waiting.discard(notified)
        oldest = self._events[0].id if self._events else 0
        return EventPage(events=[event for event in self._events if event.id > after], oldest=oldest)

    def _begun(self, order: PodOrder, before: _Pod | None) -> _Pod:
        if order.phase is PodPhase.RUN or before is None:
            return _Pod(order, uuid.uuid4().hex[:12])
        return _Pod(order, before.incarnation, ready=False, exit_code=0)

    def _becomes_ready(self, key: PodKey) -> None:
        pod = self._pods.get(key)
        if pod is None or pod.ready or pod.exit_code is not None:
            return
        pod.ready = True
        if all(other.ready for one, other in self._pods.items() if one.role is key.role):
            first = PodKey(role=key.role, replica=0)
            self._emit(EventKind.ROLE_READY, f"Every rank of {key.role.value} is Ready.", first)
        running = self._running_restart()
        if running is not None and running.ordered is not None and self.trains:
            running.ready = time.monotonic()

    def _running_restart(self) -> Restart | None:
        return self.restarts[-1] if self.restarts and self.restarts[-1].ready is None else None

    def _emit(
        self,
        kind: EventKind,
        message: str,
        pod: PodKey | None = None,
        step: StepReport | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._last_event += 1
        epoch = self._restore.epoch
        event = CoordinatorEvent(
            id=self._last_event,
            kind=kind,
            at=time.time(),
            epoch=epoch,
            message=message,
            step=step,
            failure=failure,
            pod=pod,
        )
        self._events.append(event)
        for notified in self._waiting:
            notified.set()

    def _observed(self, key: PodKey, pod: _Pod) -> PodObservation:
        order = pod.order
        process = RankProcess(
            rank=0,
            pid=100,
            incarnation=pod.incarnation,
            epoch=order.epoch,
            generation=order.generation,
            exit_code=pod.exit_code,
        )
        return PodObservation(
            pod=key,
            pod_uid=order.pod_uid,
            launcher=pod.incarnation,
            launcher_pid=1,
            container_restart_count=0,
            poll_age_seconds=random.uniform(0.0, 1.0),
            carried=order,
            processes=[process],
            engine=None,
            ranks=[self._rank(pod)] if pod.exit_code is None else [],
        )

    def _rank(self, pod: _Pod) -> RankObservation:
        return RankObservation(
            rank=0,
            incarnation=pod.incarnation,
            epoch=pod.order.epoch,
            generation=pod.order.generation,
            pid=100,
            state=RankState.READY if pod.ready else RankState.STARTING,
            beat_age_seconds=random.uniform(0.0, 1.0),
            busy=None,
            busy_left_seconds=None,
            waiting="rows of train_7" if random.random() < 0.5 else None,
            holds=WeightId(lineage=self._restore.lineage, version=max(0, self.step + 1)),
        )
