"""What `decide` may know: the policy, the persisted status, and facts about pods, processes and the coordinator.

Built by the observer. A fact is what a platform can see of a pod from outside; what the pod reports of itself comes by
way of the coordinator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from rljob_api.names import Role
from rljob_api.roles import RoleTopology
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import RestartPolicySpec, RestartRequestSpec
from rljob_api.spec.roles import AutoscalingSpec
from rljob_api.status import AcceptedStatus, PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_api.wire.observation import CoordinatorStatus, PodObservation, ServerState
from rljob_operator.core.queue import BY_USER, Hold, QueueFact
from rljob_operator.core.reasons import Reason


class PodState(StrEnum):
    """A pod as its platform sees it."""

    PENDING = "Pending"
    """Not started, or its first process is not past its start-up."""
    RUNNING = "Running"
    EXITED = "Exited"


class PodEnding(StrEnum):
    """Why a pod goes that nothing of its own has ended. The value is what `failureRules.podReasons` matches."""

    EVICTED = "Evicted"
    PREEMPTED = "PreemptionByScheduler"
    NODE_LOST = "NodeLost"
    DELETED = "Deleted"
    OUTDATED = "Outdated"
    """Its template was changed: the Deployment replaces it."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """What prevents a pod, a process or the job from running."""

    reason: str
    """A stable name: the platform's (Unschedulable, FailedCreate ...) or a `Reason`; "" where there is none."""
    sentence: str
    """The message of the platform or the coordinator."""


@dataclass(frozen=True, slots=True)
class PodFact:
    """The newest incarnation of one pod."""

    pod: PodKey
    incarnation: str
    """`{pod uid}/{container restart count}`."""
    state: PodState
    started_at: float
    """Unix time in seconds."""
    launcher_pid: int | None = None
    exit_code: int | None = None
    """How this incarnation ended; of one that runs, how the container's incarnation before it ended. -N for signal
    N."""
    last_message: str = ""
    """The last line of a process that ended, or the platform's message of why the pod does not run."""
    ending: PodEnding | None = None
    """Set as soon as the platform reports it; the state is then EXITED, whatever still runs."""
    reason: str = ""
    """The platform's name for that end, e.g. OOMKilled, which `failureRules.podReasons` matches as well; of a pod that
    cannot run, the name of what blocks it, e.g. ImagePullBackOff."""
    returns: bool = False
    """The platform starts this container again by itself, at once: the pod need not be deleted."""
    up_at: float | None = None
    """Unix time from which its first process can be expected to register; None: from its start on."""
    has_run: bool = True
    """One of its containers has been started, now or before."""
    placed: bool = True
    """It has a node."""
    terminates_by: float | None = None
    """Unix time by which a pod that is taken away has to have ended; None: it stays, or nothing of it runs."""
    stopped: bool = False
    """Its first process is stopped (SIGSTOP): it takes no order and does not end by itself. Local runs only."""
    asked_to_end: bool = False
    """This incarnation, or the container's one before it, was ended by its kubelet although its loop turned, and the
    pod stays: its probes were not answered in time."""
    marked: bool = False
    """It has a deletion cost: its Deployment takes it first when it shrinks."""
    memory_note: str = ""
    """The owner of the memory limit that its container has exceeded, now or before it was started again."""


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """An infrastructure process: coordinator, control, storage-0 ..."""

    name: str
    pid: int | None
    """None where it is a pod's."""
    alive: bool
    exits: tuple[float, ...] = ()
    """Unix times of its unplanned ends, oldest first (a bounded number of the newest)."""
    num_restarts: int = 0
    stopped: bool = False
    """It is there and does nothing (SIGSTOP). Only a local run observes that."""
    exit_code: int | None = None
    last_message: str = ""
    down_since: float | None = None
    """Unix time since when its pod does not run; None while it does, and where it is no pod's."""
    reason: str = ""
    """The platform's name for what prevents it from running: ImagePullBackOff, Unschedulable ..."""
    waits_for: str = ""
    """The platform's sentence for that."""


@dataclass(frozen=True, slots=True)
class NoContact:
    """Why the coordinator does not answer, on a cluster."""

    since: float
    """Unix time of the last answer."""
    reason: Reason
    """INFRASTRUCTURE_DOWN: its pod does not run. Else a request failed."""
    message: str
    """The request and its failure; without times, so that it stays the same as long as the cause does."""
    reason_since: float
    """Unix time: it was for this reason since."""


@dataclass(frozen=True, slots=True)
class RefusedSpec:
    """A spec that the API server took and that cannot work."""

    generation: int
    """metadata.generation of it."""
    message: str
    """What is wrong with it and the cure."""
    reason: Reason = Reason.INVALID_SPEC
    """Or ObjectRefused: the API server would not take what it is made of."""


@dataclass(frozen=True, slots=True)
class RetainedRun:
    """What an earlier job of this name has left: a claim with the checkpoints of the same run."""

    claim: str
    recorded: int | None = None
    """The last recorded version when that job ended or was suspended; None where it did neither."""
    folder: str | None = None
    """Its folder, below the checkpoint path."""


@dataclass(frozen=True, slots=True)
class VolumeFact:
    """The claim that was made for the job. Sizes are as Kubernetes writes them."""

    claim: str
    wanted: str
    """What the spec asks for."""
    size: str
    """What the claim asks for."""
    capacity: str | None
    """What the volume has; None while there is none."""
    is_large_enough: bool
    """Whether that is what the claim asks for, or more."""
    platform_message: str = ""
    """The platform's message of why it is not yet."""
    refusal: str = ""
    """Why the claim may not ask for what the spec does."""


@dataclass(frozen=True, slots=True)
class TrackerFact:
    """The pod that feeds a tracker."""

    tracker: str
    """As telemetry.reportTo names it."""
    runs: bool
    reason: str = ""
    """A stable one; empty while nothing keeps it from being fed, as `trouble` is."""
    trouble: str = ""

    @property
    def sentence(self) -> str:
        """For users, where there is trouble."""
        return f"telemetry.reportTo: {self.tracker}: {self.trouble}. The job does not wait for it."


@dataclass(frozen=True, slots=True)
class UserRequest:
    """What the user's spec asks of a job on a cluster, beside its restart policy. A local run has hardly any."""

    revision: str = ""
    """Digest of what an epoch runs with; another one than the status remembers needs a new epoch."""
    outdated: bool = False
    """Pods of an older template than the one that is wanted now are still there: a new epoch is opened when they are
    gone."""
    suspend: bool = False
    restart_request: RestartRequestSpec | None = None
    active_deadline_seconds: int | None = None
    startup_deadline_seconds: int | None = None
    """Also in a local run."""
    ttl_seconds_after_finished: int | None = None
    generation: int = 0
    """metadata.generation of the spec that all this is from; 0 in a local run."""
    accepted: AcceptedStatus | None = None
    """What is to be remembered of that spec."""
    refusal: RefusedSpec | None = None
    """There is a newer spec, and it cannot work."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """What scales the rollouts by itself."""

    spec: AutoscalingSpec
    max_staleness: int
    """Rollouts that may be begun before what was begun last is trained: how long a change takes to show."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> Self | None:
        """That of a job; None where the user, or another controller, scales it."""
        autoscaling = spec.roles.rollout.autoscaling
        return None if autoscaling is None else cls(autoscaling, spec.rollout.max_staleness)


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision is made from."""

    policy: RestartPolicySpec
    replicas: Mapping[Role, int]
    """Role -> number of pods; a role that the job does not have is absent. Of autoscaled rollouts what the spec begins
    with; `decide` puts the number in its place that was decided last."""
    num_rollouts: int
    status: RLJobStatus
    """As last persisted."""
    coordinator: CoordinatorStatus | None = None
    """None while it does not answer."""
    pods: tuple[PodFact, ...] = ()
    infrastructure: tuple[ProcessFact, ...] = ()
    processes: frozenset[str] = frozenset()
    """Names of all that the infrastructure is made of, also of what has no pod; empty in a local run, whose processes
    are always there."""
    interrupted_at: float | None = None
    """Unix time at which the user asked the job to stop."""
    request: UserRequest = UserRequest()
    unmade: Mapping[Role, Blocker] = field(default_factory=dict)
    """Roles whose pods their platform refuses to make, and why."""
    blockers: tuple[Blocker, ...] = ()
    """What blocks the job as a whole: objects that the API server refuses, orders that the coordinator refuses."""
    secret_is_lost: bool = False
    """The job's Secret is gone and its content is not known: the coordinator takes no request, no pod can start."""
    required: Mapping[Role, int] = field(default_factory=dict)
    """Role -> pods that the job begins with, where that is not all of them: a gang's rollouts."""
    no_contact: NoContact | None = None
    """Why the coordinator does not answer; None while it does, while a first request is open, and in a local run, whose
    coordinator is its own child."""
    retained: RetainedRun | None = None
    """None in a local run: its folder has a status, and with it all that was before."""
    volume: VolumeFact | None = None
    """None where the job has no claim that was made for it."""
    job_file_was_edited: bool = False
    """Pods may have read the job's file as another client had left it, which is restored: what refused it starts again
    with the right one."""
    trackers: tuple[TrackerFact, ...] | None = None
    """Of those whose pods are there. None: the job reports to none, or is a local run, whose supervisor feeds them."""
    num_worker_pods: int = 0
    """Pods of roles that exist, in any state and of any number; not counted in a local run."""
    release_after_seconds: float | None = None
    """How long a gang that has no room for one of its pods keeps the others; None: it is no gang."""
    scale_selector: str = ""
    """Label selector of the rollout pods, for the scale subresource; empty in a local run."""
    autoscaling: Autoscaling | None = None
    """None: the user, or another controller, sets the number of rollouts."""
    topologies: Mapping[Role, RoleTopology] = field(default_factory=dict)
    """Role -> its shape; a role that is absent here has gangs of one pod, or is one."""
    queue: QueueFact | None = None
    """None: the job has no queue."""
    facts: Mapping[PodKey, PodFact] = field(init=False, repr=False, compare=False)
    """The platform's fact about each pod."""
    observations: Mapping[tuple[PodKey, str], PodObservation] = field(init=False, repr=False, compare=False)
    """What each incarnation of a pod reports of itself by way of the coordinator."""
    on_cluster: bool = field(init=False, repr=False, compare=False)
    """The job is an object of a cluster, with what its spec may ask there."""
    open_coordinator: CoordinatorStatus | None = field(init=False, repr=False, compare=False)
    """None while it does not answer, and while it opens the control state: then it refuses requests, and does not know
    yet what has happened."""
    scales: bool = field(init=False, repr=False, compare=False)
    """Rollouts come and go while the job runs: a local run has only autoscaling for that."""

    def __post_init__(self) -> None:
        # Every policy asks for every pod: to search each time would cost the square of their number.
        coordinator = self.coordinator
        seen = coordinator.pods if coordinator is not None else []
        is_open = coordinator is not None and coordinator.server is not ServerState.OPENING
        on_cluster = self.request.generation > 0
        object.__setattr__(self, "facts", {fact.pod: fact for fact in reversed(self.pods)})
        object.__setattr__(self, "observations", {(pod.pod, incarnation_of(pod)): pod for pod in reversed(seen)})
        object.__setattr__(self, "on_cluster", on_cluster)
        object.__setattr__(self, "open_coordinator", coordinator if is_open else None)
        object.__setattr__(self, "scales", on_cluster or self.autoscaling is not None)

    @property
    def hold(self) -> Hold | None:
        """Why nothing of the job shall run; the user's suspension first."""
        if self.request.suspend:
            return BY_USER
        return None if self.queue is None else self.queue.hold

    @property
    def first_replicas(self) -> Mapping[Role, int]:
        """Role -> pods that the job begins with, and cannot be without. Others join it when it runs."""
        return {**self.replicas, **self.required}


def incarnation_of(seen: PodObservation) -> str:
    """The incarnation that a pod observation is of, spelled as in `PodFact.incarnation`."""
    return f"{seen.pod_uid}/{seen.container_restart_count}"


def pod_uid(incarnation: str) -> str:
    """The uid of the pod whose incarnation this is; "" where there is none."""
    return incarnation.rpartition("/")[0]


def ordered_processes(status: RLJobStatus, pod: PodStatus, seen: PodObservation) -> list[RankProcess]:
    """Processes that the launcher of `pod` has started by its present order."""
    order = (status.restart.epoch, pod.generation)
    return [process for process in seen.processes if (process.epoch, process.generation) == order]
