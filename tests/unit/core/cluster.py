"""A cluster that carries decisions out: Deployments, their pods, a coordinator. Everything obeys at once."""

from dataclasses import dataclass, field, replace

from rljob_api.names import Epoch, Role
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.status import ConditionType, PodStatus, RLJobStatus
from rljob_api.wire.epochs import DesiredState, PodOrder, PodPhase
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_api.wire.observation import (
    CoordinatorStatus,
    DemandObservation,
    PodObservation,
    QueueObservation,
    RankObservation,
)
from rljob_api.wire.ranks import Busy, RankState
from rljob_operator.core import (
    Autoscaling,
    Decision,
    NoContact,
    Observed,
    PodEnding,
    PodFact,
    PodState,
    Reason,
    RetainedRun,
    UserRequest,
    decide,
)
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.decision import (
    AcknowledgeFailures,
    CreatePod,
    KeepPod,
    KillPod,
    MarkForDeletion,
    RaiseEpoch,
    SetDesired,
)
from rljob_operator.core.membership import Candidate, assign
from rljob_operator.core.observed import ProcessFact
from rljob_operator.core.queue import QueueFact
from tests.unit.core.worlds import REPLICAS, START, make_coordinator, make_policy, make_queue


@dataclass(slots=True)
class Pod:
    """A pod of a role's Deployment."""

    uid: str
    role: Role
    created: float
    restarts: int = 0
    restarted: float | None = None
    """When its container began again."""
    state: PodState = PodState.RUNNING
    ending: PodEnding | None = None
    exit_code: int | None = None
    reason: str = ""
    last_message: str = ""
    asked_to_end: bool = False
    has_run: bool = True
    returns: bool = False
    """Its container has ended, and its kubelet starts it again."""
    marked: bool = False
    deaf: bool = False
    """Its launcher polls and carries out nothing."""
    placed: bool = True
    terminates_by: float | None = None
    """While it is taken away and still runs."""
    waiting: str | None = None
    """What its rank waits for."""
    silent: float = 0.1
    """Seconds since its last poll and beat."""
    beats: float | None = None
    """Seconds since its rank's last beat, where that is another time."""
    busy_seconds: float | None = None
    """For how much longer its rank is busy by its own word."""
    order: PodOrder | None = None
    """What its launcher carries out."""

    @property
    def going(self) -> bool:
        return self.ending is not None


@dataclass
class Cluster:
    """The world of one job; `turn` is a turn of its operator."""

    policy: RestartPolicySpec = field(default_factory=make_policy)
    replicas: dict[Role, int] = field(default_factory=lambda: dict(REPLICAS))
    request: UserRequest = field(default_factory=lambda: UserRequest(revision="r1", generation=1))
    status: RLJobStatus = field(default_factory=RLJobStatus)
    now: float = START
    pods: list[Pod] = field(default_factory=list)
    epoch: int = 0
    decision_id: str = ""
    desired: DesiredState | None = None
    failures: list[Failure] = field(default_factory=list)
    step: int = 2
    recorded: int = 3
    stops: bool = True
    """Whether a pod that is deleted is gone at once."""
    starts: PodState = PodState.RUNNING
    """How far a new pod gets by itself."""
    has_room: bool = True
    """Whether a new pod finds a node."""
    required: dict[Role, int] = field(default_factory=dict)
    release_after_seconds: float | None = None
    """Of a gang."""
    born: int = 0
    secret_is_lost: bool = False
    """Then no one can talk to the coordinator."""
    answers: bool = True
    """Whether the coordinator does."""
    silent_since: float | None = None
    """Since when the operator asks in vain."""
    silent_for: Reason = Reason.COORDINATOR_UNREACHABLE
    refuses: bool = False
    """Whether it refuses all but the acknowledgement of failures."""
    infrastructure: list[ProcessFact] = field(default_factory=list)
    processes: frozenset[str] = frozenset()
    """All that the infrastructure is made of, also without a pod."""
    retained: RetainedRun | None = None
    """What an earlier job of the name has left."""
    earlier_epoch: int = 0
    """The last epoch by the word of its checkpoints."""
    autoscaling: Autoscaling | None = None
    demand: DemandObservation | None = None
    queue: QueueObservation = field(default_factory=make_queue)
    admission: QueueFact | None = None
    """What Kueue says; None: the job has no queue."""

    def turn(self, seconds: float = 1.0) -> Decision:
        """Observes, decides, persists, applies, acts."""
        self.now += seconds
        observed = self.observe()
        decision = decide(observed, self.now)
        self.status = decision.status
        self._apply()
        for action in decision.actions:
            if self.refuses and not isinstance(action, AcknowledgeFailures):
                break
            self._act(action)
        self._obey()
        return decision

    def settle(self, turns: int = 6) -> "Cluster":
        """Until there is nothing more to do."""
        for _ in range(turns):
            self.turn(0.1)
        return self

    def observe(self) -> Observed:
        """As the adapters do."""
        candidates = [Candidate(pod.uid, pod.role, pod.created, going=pod.going) for pod in self.pods]
        given = assign(self.status, candidates)
        facts = tuple(self._fact(pod, given[pod.uid]) for pod in self.pods if pod.uid in given)
        is_silent = (
            not self.answers
            or self.silent_since is not None
            or self.secret_is_lost
            or is_true(self.status, ConditionType.SUSPENDED)
        )
        coordinator = None if is_silent else self._coordinator()
        return Observed(
            policy=self.policy,
            replicas=self.replicas,
            num_rollouts=100,
            status=self.status,
            coordinator=coordinator,
            pods=facts,
            infrastructure=tuple(self.infrastructure),
            processes=self.processes,
            request=self.request,
            secret_is_lost=self.secret_is_lost,
            no_contact=self._silence(),
            retained=self.retained,
            autoscaling=self.autoscaling,
            required=self.required,
            num_worker_pods=len(self.pods),
            release_after_seconds=self.release_after_seconds,
            scale_selector="role=rollout",
            queue=self.admission,
        )

    def ask(self, **fields: object) -> None:
        """The user changes the spec."""
        self.request = replace(self.request, generation=self.request.generation + 1, **fields)  # type: ignore[arg-type]

    def pod(self, role: Role, replica: int = 0) -> Pod:
        """The pod that a replica counts on."""
        uid = self.replica(role, replica).incarnation.rpartition("/")[0]
        return next(pod for pod in self.pods if pod.uid == uid)

    def replica(self, role: Role, replica: int = 0) -> PodStatus:
        """As the status has it."""
        return next(entry for entry in self.status.roles if entry.name is role).pods[replica]

    def membership(self, role: Role) -> list[str]:
        """Names of a role's replicas."""
        found = [entry for entry in self.status.roles if entry.name is role]
        return [pod.name for entry in found for pod in entry.pods]

    def failure(self) -> tuple[str, str] | None:
        """Reason and sentence of what has failed the job."""
        condition = find(self.status, ConditionType.FAILED)
        return None if condition is None else (condition.reason, condition.message)

    def message(self, kind: ConditionType) -> str:
        """The sentence of a condition."""
        condition = find(self.status, kind)
        assert condition is not None
        return condition.message

    def end(self, pod: Pod, ending: PodEnding, *, grace: float | None = None) -> None:
        """The cluster takes a pod away; with a grace it goes on until then."""
        pod.ending, pod.state = ending, PodState.EXITED
        pod.terminates_by = None if grace is None else self.now + grace

    def restart(self, pod: Pod) -> None:
        """The kubelet starts a pod's container again; the new launcher has no order yet."""
        pod.restarts, pod.restarted, pod.order = pod.restarts + 1, self.now, None

    def _fact(self, pod: Pod, key: PodKey) -> PodFact:
        incarnation = f"{pod.uid}/{pod.restarts}"
        return PodFact(
            key,
            incarnation,
            pod.state,
            pod.created if pod.restarted is None else pod.restarted,
            exit_code=pod.exit_code,
            last_message=pod.last_message,
            ending=pod.ending,
            reason=pod.reason,
            has_run=pod.has_run,
            placed=pod.placed,
            terminates_by=pod.terminates_by,
            marked=pod.marked,
            asked_to_end=pod.asked_to_end,
        )

    def _silence(self) -> NoContact | None:
        if self.silent_since is None:
            return None
        text = "operator op asks GET http://c/v1/status: no answer"
        return NoContact(self.silent_since, self.silent_for, text, self.silent_since)

    def _apply(self) -> None:
        """Deployments: as many pods as the status has; of too many, marked ones go first, then the oldest."""
        if self.stops:
            self.pods = [pod for pod in self.pods if not pod.going or pod.terminates_by is not None]
        asleep = is_true(self.status, ConditionType.SUSPENDED) or self.status.restart.releasing
        for role in Role:
            wanted = 0 if asleep else len(self.membership(role))
            there = [pod for pod in self.pods if pod.role is role and not pod.going]
            for pod in sorted(there, key=lambda pod: (not pod.marked, pod.created))[: max(0, len(there) - wanted)]:
                self.end(pod, PodEnding.DELETED)
            for _ in range(wanted - len(there)):
                self.born += 1
                state = self.starts if self.has_room else PodState.PENDING
                self.pods.append(Pod(f"u{self.born}", role, self.now, state=state, placed=self.has_room))
        if self.stops:
            self.pods = [pod for pod in self.pods if not pod.going or pod.terminates_by is not None]

    def _act(self, action: object) -> None:
        match action:
            case RaiseEpoch():
                assert action.revision == self.request.revision
                assert self.epoch or action.epoch > self.earlier_epoch
                self.epoch, self.decision_id = action.epoch, action.decision_id
            case SetDesired(desired):
                assert desired.epoch == self.epoch
                self.desired = desired
            case AcknowledgeFailures(ids):
                self.failures = [failure for failure in self.failures if failure.id not in ids]
            case KillPod(_, incarnation) | MarkForDeletion(_, incarnation) | KeepPod(_, incarnation):
                for pod in self.pods:
                    if f"{pod.uid}/{pod.restarts}" == incarnation and isinstance(action, KillPod):
                        self.end(pod, PodEnding.DELETED)
                    elif f"{pod.uid}/{pod.restarts}" == incarnation:
                        pod.marked = isinstance(action, MarkForDeletion)
            case CreatePod(key):
                role, replica = key.role, key.replica
                for pod in self.pods:
                    if f"{pod.uid}/{pod.restarts}" == self.replica(role, replica).lost_incarnation and not pod.returns:
                        self.end(pod, PodEnding.DELETED)

    def _obey(self) -> None:
        """Launchers take their orders."""
        orders = {order.pod_uid: order for order in self.desired.pods} if self.desired is not None else {}
        for pod in self.pods:
            if pod.state is PodState.RUNNING and not pod.deaf and pod.uid in orders:
                pod.order = orders[pod.uid]

    def _coordinator(self) -> CoordinatorStatus:
        orders = {order.pod_uid: order for order in self.desired.pods} if self.desired is not None else {}
        seen = [self._seen(pod, pod.order) for pod in self.pods if pod.order is not None]
        deaf = [pod for pod in self.pods if pod.deaf and pod.order is None and pod.uid in orders]
        seen += [
            self._seen(pod, orders[pod.uid]).model_copy(update={"carried": None, "processes": [], "ranks": []})
            for pod in deaf
        ]
        return make_coordinator(
            self.status,
            seen,
            epoch=Epoch(self.epoch),
            decision_id=self.decision_id,
            desired=self.desired,
            failures=list(self.failures),
            step=self.step,
            recorded=self.recorded,
            earlier_epoch=Epoch(0 if self.epoch else self.earlier_epoch),
            demand=self.demand,
            queue=self.queue,
        )

    def _seen(self, pod: Pod, order: PodOrder) -> PodObservation:
        runs = order.phase is PodPhase.RUN
        id_ = f"{int(pod.uid[1:]):04x}{order.epoch:04x}{order.generation:04x}"
        incarnation = {"rank": 0, "pid": 7, "incarnation": id_, "epoch": order.epoch, "generation": order.generation}
        rank = RankObservation(
            **incarnation,
            state=RankState.READY,
            beat_age_seconds=pod.silent if pod.beats is None else pod.beats,
            busy=None if pod.busy_seconds is None else Busy(what="saving", seconds=pod.busy_seconds),
            busy_left_seconds=pod.busy_seconds,
            waiting=pod.waiting,
            holds=None,
        )
        return PodObservation(
            pod=order.pod,
            pod_uid=pod.uid,
            launcher="0" * 12,
            launcher_pid=1,
            container_restart_count=pod.restarts,
            poll_age_seconds=pod.silent,
            carried=order,
            processes=[RankProcess(**incarnation, exit_code=None if runs else 0)],
            engines=[],
            ranks=[rank] if runs else [],
        )


def make_cluster(**fields: object) -> Cluster:
    """A job on a cluster that is well: epoch 1, every pod ready."""
    return Cluster(**fields).settle()  # type: ignore[arg-type]
