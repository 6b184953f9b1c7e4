"""Reasons: the stable names of events and conditions, each with its meaning, and the parts that messages share.

The only list of them: `events.jsonl` of a local run and the Events of a cluster use these. Alerts and tests may match
the names. Pure.
"""

from enum import StrEnum

from rljob_api.base import cut


class Reason(StrEnum):
    """Why something was decided."""

    STARTED = "Started"
    """The job was started by its user; it begins a new epoch."""
    RESUMED = "Resumed"
    """The job was started again by its user and goes on from its last recorded checkpoint."""
    EARLIER_RUN = "EarlierRun"
    """The folder was started over with --fresh: where the earlier run is, or that it was deleted."""
    STAGED_ON_DISK = "StagedOnDisk"
    """Shared memory is too small for weights on their way, which are written to a disk instead."""
    TRACKER_FAILED = "TrackerFailed"
    """A tracker is not fed, or has not got everything. The job goes on."""
    ACCEPTED = "Accepted"
    """The operator takes care of the job."""
    SECRET_LOST = "SecretLost"  # noqa: S105 - a word
    """The job's Secret was deleted, and its content is not known."""
    INVALID_SPEC = "InvalidSpec"
    """The API server took the spec, but it cannot work. The job goes on by the one that was accepted before."""
    TOO_MANY_JOBS = "TooManyJobs"
    """The namespace has as many jobs as the operator's option jobsPerNamespace allows: a new one waits."""
    NAME_TAKEN = "NameTaken"
    """An object that is not the job's has the name of one of its own, or its pods' labels."""
    STATUS_UNREADABLE = "StatusUnreadable"
    """What the job has done so far is not understood, so nothing is begun."""
    SECRET_RESTORED = "SecretRestored"  # noqa: S105 - a word
    """The job's Secret was deleted, and has been made again with the same content."""
    DURABILITY = "Durability"
    """What the loss of a node or a pod will cost the job."""
    OTHER_OPERATOR = "OtherOperator"
    """Another release of the operator takes care of the job's namespace: this one leaves the job alone."""
    OVERRIDDEN = "PodTemplateOverridden"
    """The job differs from the pod template of the operator's options, and the job takes precedence."""
    EPOCH_OPENED = "EpochOpened"
    """The coordinator has opened an epoch, and reports what is restored and kept."""
    READY = "Ready"
    """Every rank of every role is ready in the current epoch."""
    RANK_EXITED = "RankExited"
    """A process of a role died."""
    LAUNCHER_LOST = "LauncherLost"
    """The first process of a pod died, was replaced or does not answer."""
    PROBES_UNANSWERED = "ProbesUnanswered"
    """The kubelet ended a pod's first process, which turned: its probes were not answered in time. Does not count."""
    POD_EVICTED = "PodEvicted"
    """The cluster evicted a pod. Does not count, unless a rule says so; nor do the next four."""
    POD_PREEMPTED = "PodPreempted"
    """A pod of a higher priority took its place."""
    GANG_RELEASED = "GangReleased"
    """A gang cannot train, since there is no room for a pod that it has lost: it gives its other pods back and waits as
    a whole. Does not count."""
    POD_DELETED = "PodDeleted"
    """A user or controller deleted the pod."""
    NODE_LOST = "NodeLost"
    """The pod's node is gone."""
    POD_OUTDATED = "PodOutdated"
    """The pod's template was changed: another one takes its place."""
    HANG = "Hang"
    """A main loop has not beaten in time."""
    STALLED = "Stalled"
    """The step has not advanced in time."""
    QUEUE_DRAINING = "QueueDraining"
    """A user drains the queue: no ticket is given, and the job is not stalled for that."""
    TICKETS_GIVEN = "TicketsGiven"
    """The drain was taken back."""
    ROWS_DROPPED = "RowsDropped"
    """Storage was full, and rows went to make room. Nothing is restarted."""
    ROWS_LOST = "RowsLost"
    """Rows that training had claimed are gone."""
    COLUMNS_CHANGED = "ColumnsChanged"
    """A job that was resumed has another table of columns than its rows: they go on, or are generated again."""
    INPUT_CHANGED = "InputChanged"
    """A file that the run reads (data, code, weights, tokenizer) has other content than when it was read before."""
    STORAGE_UNIT_LOST = "StorageUnitLost"
    """A storage unit came back without what it held."""
    PROMPT_SET_ASIDE = "PromptSetAside"
    """A prompt that kills its worker again and again is not tried any more."""
    CHECKPOINT_GIVEN_UP = "CheckpointGivenUp"
    """A rank's part of a checkpoint did not come in time; the record before stands."""
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    """A checkpoint is not what was written: the job goes on from the newest that is. Does not count."""
    WRONG_WEIGHTS = "WrongWeights"
    """An engine reported a version and had other weights."""
    ENGINE_STALLED = "EngineStandsStill"
    """An engine answered and made no token of what it had; its rank has ended it."""
    TOOL_TEXT_CUT = "ToolTextCut"
    """A rollout function gave the tokenizer a text of which most has no room: its end was not read. Once a job."""
    FUNCTION_BLOCKS = "FunctionBlocks"
    """A rollout function blocks the event loop that all of its samples share. Once a job."""
    ENGINE_MISMATCH = "EngineMismatch"
    """Engine and trainer compute the model's own version 0 differently: the job fails, and says what to change."""
    ENGINE_CANNOT_START = "EngineCannotStart"
    """An engine has died of one cause again and again before it was ever up: the job fails with its exception. Where
    an engine of the job was up before, that one's pod is replaced, as the table says."""
    STEP_SKIPPED = "StepSkipped"
    """An optimizer step whose loss or gradient was not finite was left out."""
    GRADIENT_SPIKE = "GradientSpike"
    """An optimizer step whose gradient was far larger than those before it was taken."""
    TEMPLATE_NOT_SAVED = "ChatTemplateNotSaved"
    """The actor cannot read data.chatTemplate.file, so that checkpoints have the tokenizer's own template."""
    REWARD_RETRIED = "RewardRetried"
    """A reward has failed for answers and was asked again for them; emitted once for a reward and an epoch."""
    NOTHING_LEARNT = "NothingLearnt"
    """Steps in a row have left every sample out of the loss: a filter, cut-off answers, groups without variance."""
    NO_VARIANCE = "NoVariance"
    """In steps in a row all samples of every prompt had one reward: rewards teach nothing."""
    ENTROPY_COLLAPSED = "EntropyCollapsed"
    """In steps in a row the policy always gave the same answer, and not the right one."""
    NO_GRADIENT = "NoGradient"
    """Steps in a row had a gradient of 0, and rewards that differ."""
    ALL_CUT_OFF = "AllCutOff"
    """In steps in a row every answer was cut off, and none had a reward above 0."""
    MISMATCH_RISING = "MismatchRising"
    """In steps in a row engine and trainer differed far more than in the first ones."""
    METRIC_MISSING = "MetricMissing"
    """The metric that spec.stopWhen or checkpoint.keepBest goes by was not reported."""
    CONTROL_STATE_LOST = "ControlStateLost"
    """The control state came back without its tail."""
    EPOCH_TAKEN = "EpochTaken"
    """The coordinator has an epoch that this job's status does not know."""
    SPEC_CHANGED = "SpecChanged"
    """The user changed what an epoch runs with. Does not count."""
    RESTART_REQUESTED = "RestartRequested"
    """The user asked for a restart. Does not count."""
    ENGINE_EXITED = "EngineExited"
    """An engine server died; its launcher restarts it. Does not count."""
    EARLIER_INCARNATION = "EarlierLife"
    """A failure of an incarnation that has already been restarted. Does not count."""
    INFRASTRUCTURE_RESTARTED = "InfrastructureRestarted"
    """A process of the infrastructure died and is started again. Does not count."""
    INFRASTRUCTURE_DOWN = "InfrastructureDown"
    """A process of the infrastructure does not come back: the job waits for it and is not Ready."""
    COORDINATOR_UNREACHABLE = "CoordinatorUnreachable"
    """The coordinator does not answer, although its process runs. Nothing is counted meanwhile."""
    COORDINATOR_REFUSED = "CoordinatorRefused"
    """The coordinator refuses an order, or gives an answer that is not taken."""
    COORDINATOR_REACHABLE = "CoordinatorReachable"
    """The coordinator answers the operator."""
    INFRASTRUCTURE_FAILING = "InfrastructureFailing"
    """A process of the infrastructure dies again and again: the job fails."""
    MAX_GLOBAL_RESTARTS = "MaxGlobalRestartsExceeded"
    """One more global restart than restartPolicy.maxGlobalRestarts was needed: the job fails."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """The job has run for activeDeadlineSeconds: it fails."""
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    """The job has not been Ready for startupDeadlineSeconds: it fails, and names what it waited for."""
    FAILURE_RULE = "FailureRule"
    """One of restartPolicy.failureRules says that such a failure fails the job."""
    CONFIGURATION_ERROR = "ConfigurationError"
    """A process ended with exit code 64: the manifest cannot work, a restart would not help."""
    REPORTED = "ReportedFailure"
    """A role named a failure of the job that a restart would not help."""
    SCALED_UP = "ScaledUp"
    """More rollout replicas are wanted: they join the running job."""
    SCALED_DOWN = "ScaledDown"
    """Fewer rollout replicas are wanted: the highest ones drain, then go."""
    EVALUATED = "Evaluated"
    """A version was evaluated (spec.evaluation); the message has the means."""
    EVALUATION_UNFINISHED = "EvaluationUnfinished"
    """The job was saved while a version was being evaluated: that goes on with the job."""
    ACTOR_STARVED = "ActorStarved"
    """Autoscaling: the actor waited for rows for longer than rollouts were idle."""
    ROLLOUTS_IDLE = "RolloutsIdle"
    """Autoscaling: rollouts were idle, since tickets were withheld, for longer than the actor waited for rows."""
    BOUNDS_CHANGED = "BoundsChanged"
    """Autoscaling: minReplicas or maxReplicas no longer allow what was decided before."""
    SCALING = "Scaling"
    """The job runs; replicas that have joined it are not ready yet."""
    BACKING_OFF = "BackingOff"
    """The next epoch is opened only after restartPolicy.backoff."""
    PODS_LEAVING = "PodsLeaving"
    """Pods that are no longer wanted are still there, and what comes after them waits until they are gone."""
    CONTROL_STATE_OPENING = "ControlStateOpening"
    """The coordinator reads the control state, which takes no orders before."""
    EARLIER_JOB = "EarlierJob"
    """What is left of an earlier job of this name is still being deleted: this one begins when it is gone."""
    NO_SCHEDULER = "NoScheduler"
    """No scheduler looks at a pod: there is none of the name that the pod gives."""
    OBJECT_RESTORED = "ObjectRestored"
    """Another client changed or deleted an object of the job, which is as the operator made it again."""
    OBJECT_REFUSED = "ObjectRefused"
    """The API server does not take an object of the job: a quota, an admission webhook."""
    DRAINING = "Draining"
    """The job was interrupted or is to be suspended: what trains saves before everything stops."""
    QUEUED = "Queued"
    """The job waits for Kueue to admit it: nothing of it runs, and no pod is there."""
    ADMITTED = "Admitted"
    """Kueue has admitted the job, which begins or goes on."""
    QUOTA_TAKEN = "QuotaTaken"
    """Kueue takes the quota of the job back (a preemption, a queue that is stopped, pods that are not ready in time):
    what trains saves, every pod goes, and the job goes on when it is admitted again."""
    ADMITTED_AGAIN = "AdmittedAgain"
    """The Workload by which the job was admitted is gone, or no longer fits what the pods ask for: the job is saved,
    and admitted anew."""
    SUSPENDED = "Suspended"
    """The user suspended the job: nothing runs, and it goes on from its checkpoint when that is taken back."""
    INTERRUPTED = "Interrupted"
    """The job was interrupted and has stopped; it can be resumed."""
    DELETING = "Deleting"
    """The job is being deleted, and a finalizer keeps it: its pods end."""
    SUCCEEDED = "Succeeded"
    """All rollouts are trained and the last checkpoint is recorded."""
    STOP_CONDITION_MET = "StopConditionMet"
    """spec.stopWhen holds, and the checkpoint of that version is recorded."""


TROUBLES = frozenset(
    {
        Reason.NOTHING_LEARNT,
        Reason.NO_VARIANCE,
        Reason.ENTROPY_COLLAPSED,
        Reason.NO_GRADIENT,
        Reason.ALL_CUT_OFF,
        Reason.MISMATCH_RISING,
        Reason.METRIC_MISSING,
    }
)
"""Troubles that the steps of a job have shown: a job that succeeds names them at its end."""


LONGEST_MESSAGE = 4096
"""Characters."""


def how_ended(exit_code: int | None) -> str:
    """An exit code as part of a sentence."""
    if exit_code is None:
        return "ended"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"


def last_line(text: str) -> str:
    """The last line that is not empty: what its author wanted to be read."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def quoted(text: str) -> str:
    """The last line, to be put behind a sentence."""
    line = last_line(text)
    return f": {line}" if line else ""


def message_of_end(exit_code: int | None, text: str) -> str:
    """As `quoted`, of a process that has ended; "" of a killed one, whose last line is of something else."""
    return "" if exit_code is not None and exit_code < 0 else quoted(text)


def shortened(text: str) -> str:
    """For the status. Sentences are short; what a process reports may have any length."""
    return cut(text, LONGEST_MESSAGE)
