"""The restart core: `decide(observed, now) -> Decision`, a policy per file, everything pure.

Called by the supervisor of a job: `rljob run` on one machine, the operator on a cluster. It knows neither processes
nor pods of either, only facts about them; it does no I/O and reads no clock. The caller persists `Decision.status`
first, then carries out `Decision.actions` in order, then emits `Decision.events`.
"""

from rljob_operator.core.decide import decide
from rljob_operator.core.decision import (
    AcknowledgeFailures,
    Action,
    CreatePod,
    Decision,
    DeleteJob,
    Event,
    KeepPod,
    KillPod,
    MarkForDeletion,
    RaiseEpoch,
    RestartInfrastructure,
    SetDesired,
    Stop,
)
from rljob_operator.core.membership import Candidate, assign
from rljob_operator.core.observed import (
    Autoscaling,
    NoContact,
    Observed,
    PodEnding,
    PodFact,
    PodState,
    ProcessFact,
    RefusedSpec,
    RetainedRun,
    TrackerFact,
    UserRequest,
    VolumeFact,
)
from rljob_operator.core.reasons import Reason
from rljob_operator.core.start import begin

__all__ = [
    "AcknowledgeFailures",
    "Action",
    "Autoscaling",
    "Candidate",
    "CreatePod",
    "Decision",
    "DeleteJob",
    "Event",
    "KeepPod",
    "KillPod",
    "MarkForDeletion",
    "NoContact",
    "Observed",
    "PodEnding",
    "PodFact",
    "PodState",
    "ProcessFact",
    "RaiseEpoch",
    "Reason",
    "RefusedSpec",
    "RestartInfrastructure",
    "RetainedRun",
    "SetDesired",
    "Stop",
    "TrackerFact",
    "UserRequest",
    "VolumeFact",
    "assign",
    "begin",
    "decide",
]
