"""Marks that state what a change of a field means for a job that exists. A mark stands in the field's annotation.

    seed: Annotated[Seed, fixed("the samples of all rollouts so far are a function of it.")] = 0
    restart_policy: Annotated[RestartPolicySpec, LIVE] = RestartPolicySpec()

The mark of an object holds for every field in it that has none of its own. `rljob_api.revision` collects the marks: a
field that neither has nor inherits one is an error there. `rljob_api.spec` marks its fields with it. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum


class Change(StrEnum):
    """The consequence of a change of a field."""

    LIVE = "Live"
    """Nothing restarts: the operator reads the new value in its next turn, workers (where they read it too) with their
    next epoch."""
    RESTART = "Restart"
    """A new epoch, from the last recorded checkpoint."""
    GROWS = "Grows"
    """As LIVE for a larger amount; the API server refuses a smaller one."""
    REFUSED = "Refused"
    """The API server and `rljob run` refuse it."""


@dataclass(frozen=True, slots=True)
class OnChange:
    """The mark."""

    change: Change
    reason: str = ""
    """Why it cannot change, or become less: the end of the sentence that the user gets. Only where that is refused."""


LIVE = OnChange(Change.LIVE)
RESTARTS = OnChange(Change.RESTART)


def fixed(reason: str) -> OnChange:
    """A change is refused once the job exists."""
    return OnChange(Change.REFUSED, reason)


def grows(reason: str) -> OnChange:
    """A smaller amount is refused once the job exists."""
    return OnChange(Change.GROWS, reason)
