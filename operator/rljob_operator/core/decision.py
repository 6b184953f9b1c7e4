"""The values of a decision: causes, the verdicts of policies, actions in their order, events, and the decision itself.

A policy without an answer returns None. Values only: `decide` fills them, the local supervisor and the operator carry
them out.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.names import Epoch, Role, Scope
from rljob_api.status import ConditionType, Phase, RLJobStatus
from rljob_api.wire.epochs import DesiredState
from rljob_api.wire.identity import PodKey
from rljob_api.wire.turns import StopReached
from rljob_operator.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Cause:
    """One failure of the current incarnation of one pod."""

    id: str
    reason: Reason
    pod: PodKey
    message: str
    lost: bool = False
    """The whole pod is to be replaced, not only its ranks."""
    only_global: bool = False
    """No restart in place can help."""
    counts: bool = True
    """Towards the threshold and maxGlobalRestarts. What an update or the cluster does to a healthy pod does not."""
    exit_code: int | None = None
    pod_reasons: tuple[str, ...] = ()
    """What `failureRules.podReasons` may match."""
    unregistered: bool = False
    """A rank did not begin in time: after the second time its pod is replaced."""


@dataclass(frozen=True, slots=True)
class Succeed:
    """The job is complete."""

    stop: StopReached | None = None
    """How, where stopWhen holds; None: all rollouts are trained."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The job fails for good."""

    reason: Reason
    message: str
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class RestartGlobal:
    """A new epoch."""

    reason: Reason
    message: str
    causes: tuple[Cause, ...] = ()
    role: Role | None = None
    ids: tuple[str, ...] = ()
    """What the decision id is made from, beside the epoch."""
    counts: bool = True
    by_user: bool = False
    """By the user: there is nothing to back off from."""
    releases: bool = False
    """Every pod of a role is given back, and made again."""


@dataclass(frozen=True, slots=True)
class RestartInPlace:
    """The pods of these causes, in the same epoch."""

    causes: tuple[Cause, ...]
    request: str = ""
    """Id of the user's request that it carries out, if any."""


@dataclass(frozen=True, slots=True)
class Drain:
    """What trains saves; nothing is restarted any more."""

    before: ConditionType = ConditionType.INTERRUPTED
    """What comes after it: Interrupted or Suspended."""
    why: str = "interrupted"
    """The beginning of its sentence."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Draining is over: everything stops."""

    message: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Draining is over: every pod goes until nothing holds the job back any more."""

    message: str
    reason: Reason = Reason.SUSPENDED


Verdict = Succeed | Fail | RestartGlobal | RestartInPlace | Drain | Interrupt | Suspend


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Open this epoch at the coordinator; succeeds again for the same epoch and decision."""

    epoch: Epoch
    decision_id: str
    reason: str
    revision: str = ""
    """Of the spec that the epoch runs with: the one that was observed when this was decided."""


@dataclass(frozen=True, slots=True)
class SetDesired:
    """Send the coordinator what every pod shall do."""

    desired: DesiredState


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create this pod, under a uid that was never used before."""

    pod: PodKey


@dataclass(frozen=True, slots=True)
class KillPod:
    """Kill this incarnation of a pod at once, with everything in it."""

    pod: PodKey
    incarnation: str


@dataclass(frozen=True, slots=True)
class MarkForDeletion:
    """Let the Deployment take this pod first when it shrinks."""

    pod: PodKey
    incarnation: str


@dataclass(frozen=True, slots=True)
class KeepPod:
    """Take that mark back."""

    pod: PodKey
    incarnation: str


@dataclass(frozen=True, slots=True)
class RestartInfrastructure:
    """Start this process again."""

    name: str


@dataclass(frozen=True, slots=True)
class AcknowledgeFailures:
    """The status remembers these failures: the coordinator may forget them."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The job is over: stop everything that still runs."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The job has been over for ttlSecondsAfterFinished: delete it, and everything goes with it."""


Action = (
    RaiseEpoch
    | SetDesired
    | CreatePod
    | KillPod
    | MarkForDeletion
    | KeepPod
    | RestartInfrastructure
    | AcknowledgeFailures
    | Stop
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class Event:
    """A line for the user: what was decided and why."""

    time: float
    reason: Reason
    message: str
    role: Role | None = None
    scope: Scope | None = None
    once: str = ""
    """Key of what happened: the event is emitted once per key, also by a restarted operator. "": it has no key, and a
    restarted operator does not emit it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Persist `status`, carry out `actions` in order (stop at the first that fails), then emit `events`."""

    status: RLJobStatus
    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    next_turn_at: float
    """Unix time; earlier if anything is observed."""


Step = tuple[RLJobStatus, tuple[Event, ...]]
"""What each step of a decision returns: the status as it leaves it, and the events of what it changed."""


def decision_id(epoch: Epoch, reason: str, causes: Iterable[str]) -> str:
    """Derived from what was decided, so that a decision taken twice has one name; at most 64 characters.

    The same epoch, reason and causes (in any order) give the same id.
    """
    text = "\n".join([reason, *sorted(causes)])
    return f"e{epoch}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
