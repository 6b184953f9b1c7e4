"""What a policy may answer. A policy that has nothing to say answers None."""

from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.status import ConditionType
from rljob_api.wire.identity import PodKey
from rljob_operator.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Cause:
    """One failure of the current life of one pod."""

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
    wished: bool = False
    """By the user: there is nothing to back off from."""
    releases: bool = False
    """Every pod of a role is given back, and made anew."""


@dataclass(frozen=True, slots=True)
class RestartInPlace:
    """The pods of these causes, in the same epoch."""

    causes: tuple[Cause, ...]
    request: str = ""
    """Id of the user's request that it carries out, if any."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The actor saves; nothing is restarted any more."""

    before: ConditionType = ConditionType.INTERRUPTED
    """What comes after it: Interrupted or Suspended."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Draining is over: everything stops."""

    message: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Draining is over: every pod goes until the user wants them back."""

    message: str


Verdict = Succeed | Fail | RestartGlobal | RestartInPlace | Drain | Interrupt | Suspend
