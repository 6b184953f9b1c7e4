"""What `decide` may know: the policy, the persisted status, and facts about pods, processes and the coordinator.

Built by whoever observes. A fact is what a platform can see of a pod from outside; what the pod says of itself comes by
way of the coordinator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_api.names import Role
from rljob_api.spec import RestartPolicySpec, RestartRequestSpec
from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorStatus, PodObservation


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
class PodFact:
    """The newest life of one pod."""

    pod: PodKey
    life: str
    """`{pod uid}/{container restart count}`."""
    state: PodState
    started_at: float
    """Unix time in seconds."""
    launcher_pid: int | None = None
    exit_code: int | None = None
    """How this life ended; of one that runs, how the container's life before it ended. -N for signal N."""
    last_words: str = ""
    """The last that was said by whoever ended, or by the platform of why it does not run."""
    ending: PodEnding | None = None
    """Set as soon as the platform has said so; the state is then EXITED, whatever still runs."""
    reason: str = ""
    """The platform's word for that end, e.g. OOMKilled, which `failureRules.podReasons` matches as well; of a pod that
    is kept from running, the word for that, e.g. ImagePullBackOff."""
    returns: bool = False
    """The platform starts this container again by itself, at once: nobody has to delete the pod."""
    up_at: float | None = None
    """Unix time from which its first process can be expected to register; None: from its start on."""
    has_run: bool = True
    """One of its containers has been started, now or before."""
    marked: bool = False
    """It has a deletion cost: its Deployment takes it first when it shrinks."""


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
    exit_code: int | None = None
    last_words: str = ""
    down_since: float | None = None
    """Unix time since when its pod does not run; None while it does, and where it is no pod's."""
    reason: str = ""
    """The platform's word for what keeps it from running: ImagePullBackOff, Unschedulable ..."""
    waits_for: str = ""
    """The platform's sentence for that."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user's spec asks of a job on a cluster, beside its restart policy. A local run has none."""

    revision: str = ""
    """Digest of what an epoch runs with; another one than the status remembers needs a new epoch."""
    outdated: bool = False
    """Pods of an older template than the one that is wanted now are still there: a new epoch is opened when they are
    gone."""
    suspend: bool = False
    request: RestartRequestSpec | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    generation: int = 0
    """metadata.generation, for observedGeneration; 0 in a local run."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision is made from."""

    policy: RestartPolicySpec
    replicas: Mapping[Role, int]
    """Role -> number of pods; a role that the job does not have is absent."""
    num_rollouts: int
    status: RLJobStatus
    """As last persisted."""
    coordinator: CoordinatorStatus | None = None
    """None while it does not answer."""
    pods: tuple[PodFact, ...] = ()
    infrastructure: tuple[ProcessFact, ...] = ()
    interrupted_at: float | None = None
    """Unix time at which the user asked the job to stop."""
    wishes: Wishes = Wishes()
    secret_is_lost: bool = False
    """The job's Secret is gone and its content is not known: nobody can talk to the coordinator, no pod can start."""
    scale_selector: str = ""
    """Label selector of the rollout pods, for whoever scales them; empty in a local run."""
    _facts: Mapping[PodKey, PodFact] = field(init=False, repr=False, compare=False)
    _seen: Mapping[tuple[PodKey, str], PodObservation] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every policy asks for every pod: to search each time would cost the square of their number.
        seen = self.coordinator.pods if self.coordinator is not None else []
        object.__setattr__(self, "_facts", {fact.pod: fact for fact in reversed(self.pods)})
        object.__setattr__(self, "_seen", {(pod.pod, life_of(pod)): pod for pod in reversed(seen)})

    @property
    def on_cluster(self) -> bool:
        """Whether the job is an object of a cluster, with what its spec may ask there."""
        return self.wishes.generation > 0

    def fact(self, pod: PodKey) -> PodFact | None:
        """The platform's fact about `pod`."""
        return self._facts.get(pod)

    def seen(self, pod: PodKey, life: str) -> PodObservation | None:
        """What this life of `pod` says of itself, or None."""
        return self._seen.get((pod, life))


def life_of(seen: PodObservation) -> str:
    """The life that a pod observation speaks of, spelled as in `PodFact.life`."""
    return f"{seen.pod_uid}/{seen.container_restart_count}"
