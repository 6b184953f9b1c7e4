"""The status of an RLJob. Conditions are authoritative; `phase` is derived for display.

Operators of several versions read and write it, one after another: values may be added to phases and condition types,
and fields to every object, and an operator keeps those that it does not know.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AliasChoices, Field, WithJsonSchema

from rljob_api.base import OPEN, StatusModel
from rljob_api.names import Epoch, Role
from rljob_api.times import Time


def _renamed(written: str, later: str) -> Any:  # noqa: ANN401 - as pydantic's Field
    """A text whose name is to change: read by both names, so that the release after this may write the later one.

    Written is the name that the release before reads: by another one it would know neither pods nor epoch.
    """
    return Field("", validation_alias=AliasChoices(written, later), serialization_alias=written)


class Phase(StrEnum):
    """A one-word summary of the conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    """It was Running, and its coordinator cannot be reached now."""
    RESTARTING = "Restarting"
    STALLED = "Stalled"
    DRAINING = "Draining"
    INTERRUPTED = "Interrupted"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETING = "Deleting"
    """It is being deleted, and a finalizer keeps it: its pods end, or have ended."""


class ConditionType(StrEnum):
    """Types of conditions."""

    ACCEPTED = "Accepted"
    """The operator takes care of the job (a cluster's condition, as Progressing and Suspended are)."""
    COORDINATOR_REACHABLE = "CoordinatorReachable"
    """The coordinator answers the operator (a cluster's condition): while False, the job's state is unknown."""
    RECONCILING = "Reconciling"
    """True while the newest spec is not accepted, for tools that know no Accepted; absent otherwise."""
    READY = "Ready"
    """Unknown where the job was well when it was last observed, and cannot be observed now. On a cluster, absent once
    the job has succeeded or is suspended."""
    PROGRESSING = "Progressing"
    """True from the start until the job has ended or is suspended."""
    SUSPENDED = "Suspended"
    ADMITTED = "Admitted"
    """Kueue has given the job its quota (of jobs with a queue). While False the job is suspended, or about to be."""
    VOLUME_EXPANDED = "VolumeExpanded"
    """The checkpoint claim has the size that the spec asks for; there only once that has become larger."""
    TRACKERS_FED = "TrackersFed"
    """The pods of telemetry.reportTo run (a cluster's condition, of jobs that have such): the job waits for none."""
    RESTARTING = "Restarting"
    STALLED = "Stalled"
    """No step comes; on a cluster also of a job that has failed."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"
    """False while the job drains, true once it has stopped. A new start removes it."""


ANY_TEXT = WithJsonSchema({"type": "string"})
"""The CRD accepts any value, so that both an older and a newer operator can write."""

AnyPhase = Annotated[Phase | str, OPEN, ANY_TEXT]
AnyConditionType = Annotated[ConditionType | str, OPEN, ANY_TEXT]


class Condition(StatusModel):
    """As metav1.Condition."""

    type: AnyConditionType
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class RankStatus(StatusModel):
    """A rank's process (local runs only)."""

    rank: int
    pid: int


class EngineStatus(StatusModel):
    """An engine's process (local runs only)."""

    engine: int = 0
    """Index within the pod."""
    pid: int


class PodStatus(StatusModel):
    """One replica of a role."""

    name: str
    ready: bool
    generation: int
    launcher_pid: int | None = None
    """Only where `rljob run` is the supervisor."""
    engine_pid: int | None = None
    """Engine 0's."""
    engines: list[EngineStatus] = []
    ranks: list[RankStatus] = []
    incarnation: str = _renamed("life", "incarnation")
    """`{pod uid}/{container restart count}` that the job counts on; empty until the pod exists."""
    lost_incarnation: str = _renamed("lostLife", "lostIncarnation")
    """The incarnation that was given up last: this one is to be replaced."""
    draining: bool = False
    """The replica is one too many: it finishes or hands back its work and goes."""
    drain_ordered_at: Time | None = None
    ordered_at: Time = 0.0
    """When the pod was last ordered to start again (in place, as a new pod, or in a new epoch)."""
    unregistered: int = 0
    """How often in a row its ranks did not begin in time. After the second time the pod is replaced."""


class RoleStatus(StatusModel):
    """One role."""

    name: Annotated[Role, ANY_TEXT]
    """An operator that does not know the role cannot take care of the job, and reports that."""
    replicas: int
    ready: int
    failures: int
    """Since the last global restart (and within windowSeconds)."""
    failure_times: list[Time] = []
    """Times of these failures."""
    pods: list[PodStatus] = []


class RestartStatus(StatusModel):
    """The persisted memory of the restart policy."""

    epoch: Epoch = Epoch(0)
    decision_id: str = _renamed("decisionId", "epochId")
    """Id of the decision that began the epoch: another epoch of the same number has another one."""
    global_restarts: int = 0
    counted_towards_max: int = 0
    backoff_until: Time | None = None
    scope: str | None = None
    reason: str | None = None
    """Why the last restart was decided, a stable reason; None before the first."""
    message: str | None = None
    """Why the present epoch, or the last restart in place, was begun: a sentence."""
    decided_at: Time | None = None
    """When the epoch was decided."""
    opened: Epoch = Epoch(0)
    """Highest epoch that the coordinator was seen to have."""
    opened_at: Time | None = None
    """When it was first seen to have this epoch."""
    consecutive: int = 0
    """Global restarts since a checkpoint was last recorded: the n of the backoff."""
    checkpoint: int | None = None
    """Version of the last recorded checkpoint when the last global restart was decided."""
    revision: str = ""
    """Digest of the part of the spec that this epoch runs with (`rljob_api.revision`)."""
    proven_revision: str | None = None
    """The one with which an engine of the job was up last: what keeps another engine from starting since is of its
    pod. None: none was up yet, in a local run since its start."""
    releasing: bool = False
    """A gang gives its pods back: none is made before all of them have gone."""
    handled_request: str = ""
    """Id of the last spec.restartRequest that was carried out."""


class StalenessStatus(StatusModel):
    """r minus the oldest version, of the last step and over the job."""

    current: int = 0
    max: int = 0


class TrainingStatus(StatusModel):
    """Progress."""

    step: int | None = None
    """Last trained rollout id."""
    total_steps: int = 0
    weight_version: int | None = None
    checkpoint: int | None = None
    """Version of the last recorded checkpoint."""
    checkpoint_folder: str | None = None
    """Its folder, below the checkpoint path."""
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    staleness: StalenessStatus = StalenessStatus()
    queue_depth: int = 0
    rows_dropped: int = 0
    """Rows that went when storage was full, as last reported."""
    reward: float | None = None
    last_report_time: Time | None = None


class SetFigureStatus(StatusModel):
    """The main figure of a set."""

    name: str
    """The set's."""
    metric: str
    """mean@k."""
    value: float


class EvaluationStatus(StatusModel):
    """The newest evaluation."""

    version: int
    """The version that was evaluated."""
    step: int | None = None
    """The rollout whose training made it; null for version 0."""
    sets: list[SetFigureStatus] = []
    """Sets of which any answer was scored."""
    summary: str = ""
    """All of it in a line: `gsm8k 0.62 @ 40`."""


class ProcessStatus(StatusModel):
    """An infrastructure process: coordinator, control, storage-0 ..."""

    name: str
    pid: int | None = None
    """Only where `rljob run` is the supervisor."""
    restarts: int = 0
    restarts_in_vain: int = 0
    """Restarts on a cluster since the job last became Ready or trained a step."""


class DemandMark(StatusModel):
    """The coordinator's counts at the end of a step, from which on a direction of autoscaling is judged."""

    since: Time
    """When the coordinator began to count."""
    at: Time
    """When the step ended."""
    step: int
    actor_seconds: float
    starved_seconds: float
    rollout_seconds: float
    withheld_seconds: float


class ScalingStatus(StatusModel):
    """Numbers that the scale subresource reports, and the last decision of autoscaling."""

    replicas: int = 0
    """Rollout replicas that exist."""
    selector: str = ""
    """Label selector of their pods; empty in a local run."""
    desired: int = 0
    """Rollout replicas that are wanted: those of the spec, or what autoscaling has decided."""
    reason: str = ""
    """Why autoscaling decided last, a stable reason; empty before, and without it. So are the next two."""
    message: str = ""
    """The same in a sentence."""
    last_decision: Time | None = None
    judged_replicas: int | None = None
    """Ready rollout replicas whose work autoscaling judges, or judged last. With another number it starts again."""
    judged_from_step: int | None = None
    """The step at whose end it begins: until then the actor gets what was begun before."""
    up_since: DemandMark | None = None
    """From where on it is judged whether more are wanted."""
    down_since: DemandMark | None = None
    """From where on it is judged whether fewer are wanted."""


class DefaultsStatus(StatusModel):
    """Defaults that depended on the rest of the spec when the job began (`open_defaults`)."""

    actor_fwd: bool = True
    """Whether there is that role."""
    advantages: bool = True
    """Whether there is that role."""
    engine: str = ""
    """roles.rollout.engine.kind."""
    head_dtype: str = ""
    """model.headDtype, where it is another type than that of the model."""
    iters_per_train_update: int = 1
    """training.itersPerTrainUpdate."""
    sets_inherit: bool = False
    """Whether sets of the evaluation take from training what they do not say."""


class AcceptedStatus(StatusModel):
    """The spec that the operator goes by."""

    generation: int = 0
    """metadata.generation that it had."""
    digest: str = ""
    """Digest of the job's file in its ConfigMap, where the spec is read again when a later one is refused."""
    defaults: DefaultsStatus | None = None
    """Values of fields that are not given, for as long as this job exists; None: they are resolved again."""


class TolerationStatus(StatusModel):
    """As core/v1 has it."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class PodSetStatus(StatusModel):
    """Placement that Kueue's flavors add to the pods of a set."""

    name: str
    node_selector: dict[str, str] = {}
    tolerations: list[TolerationStatus] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class QueueStatus(StatusModel):
    """The admission that the job was started with last."""

    name: str
    """The LocalQueue."""
    cluster_queue: str
    pod_sets: list[PodSetStatus] = []
    """The sets whose flavors add something."""


class RLJobStatus(StatusModel):
    """`status` of the resource, and `status.json` of a run folder."""

    phase: AnyPhase = Phase.PENDING
    reason: str = ""
    """Why the phase is what it is, or while all is well the reason of the last restart; a stable reason."""
    observed_generation: int = 0
    accepted: AcceptedStatus | None = None
    """On a cluster: the last spec that was accepted. While a later one is refused the job goes on by this one."""
    conditions: list[Condition] = []
    roles: list[RoleStatus] = []
    restart: RestartStatus = RestartStatus()
    training: TrainingStatus = TrainingStatus()
    evaluation: EvaluationStatus | None = None
    """None before the first."""
    scaling: ScalingStatus = ScalingStatus()
    queue: QueueStatus | None = None
    """None for a job that was started without a queue, or not yet."""
    infrastructure: list[ProcessStatus] = []
    started_at: Time | None = None
    """When the job was accepted or resumed last."""
    active_seconds: float = 0.0
    """How long it has run before that, suspended time left out."""
    waiting_since: Time | None = None
    """Since when it has wanted to run and has not been Ready; None while it is, and while nothing is wanted."""
    ended_at: Time | None = None
    """When it succeeded or failed."""
