"""What a decision is: its name, the next status, the actions in their order, the events, and when to look again."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.names import Epoch, Role, Scope
from rljob_api.status import Phase, RLJobStatus
from rljob_api.wire.epochs import DesiredState
from rljob_api.wire.identity import PodKey
from rljob_operator.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Tell the coordinator; succeeds again for the same epoch and decision."""

    epoch: Epoch
    decision_id: str
    reason: str
    revision: str = ""
    """Of the spec that the epoch runs with: the one that was observed when this was decided."""


@dataclass(frozen=True, slots=True)
class SetDesired:
    """Tell the coordinator what every pod shall do."""

    desired: DesiredState


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create this pod, under a uid that was never used before."""

    pod: PodKey


@dataclass(frozen=True, slots=True)
class KillPod:
    """Kill this life of a pod at once, with everything in it."""

    pod: PodKey
    life: str


@dataclass(frozen=True, slots=True)
class MarkForDeletion:
    """Let the Deployment take this pod first when it shrinks."""

    pod: PodKey
    life: str


@dataclass(frozen=True, slots=True)
class KeepPod:
    """Take that mark back."""

    pod: PodKey
    life: str


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
    """Names what happened: whoever tells it again, as after a restart of its own, tells the same event. "": nobody
    would know of it any more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Persist `status`, carry out `actions` in order (stop at the first that fails), then emit `events`."""

    status: RLJobStatus
    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    look_again_at: float
    """Unix time; earlier if anything is observed."""


def decision_id(epoch: Epoch, reason: str, causes: Iterable[str]) -> str:
    """Derived from what was decided, so that a decision taken twice has one name; at most 64 characters.

    The same epoch, reason and causes (in any order) give the same id.
    """
    text = "\n".join([reason, *sorted(causes)])
    return f"e{epoch}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
