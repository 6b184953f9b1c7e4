"""Hindrances: what a turn was refused, remembered for the next one, which says so in the job's Ready.

A turn decides before it writes, so that what is refused is known only afterwards. Pure but for that memory.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rljob_operator.adapters.apply import Outcome, Refusal
from rljob_operator.core.observed import Obstacle
from rljob_operator.core.reasons import Reason

PATIENCE_SECONDS = 5.0
"""A coordinator that makes itself anew refuses for a moment."""

LEFT_OVER = "objects that are being deleted still have names of this job's objects"


@dataclass(slots=True)
class Hindrances:
    """Of one job."""

    clock: Callable[[], float] = time.time
    _objects: tuple[Refusal, ...] = ()
    _waits: bool = False
    _refusal: str = ""
    _refused_since: float | None = field(default=None)

    def applied(self, outcome: Outcome) -> None:
        """What became of the job's objects in this turn."""
        self._objects = tuple(each for each in outcome.refusals if not each.passes)
        self._waits = outcome.waits

    def ordered(self) -> None:
        """The coordinator has taken all orders."""
        self._refused_since = None

    def refused(self, answer: str) -> None:
        """The coordinator has refused an order."""
        self._refusal = answer
        if self._refused_since is None:
            self._refused_since = self.clock()

    def obstacles(self, claimed: Iterable[Refusal] = ()) -> tuple[Obstacle, ...]:
        """All that stands; `claimed`: what was refused in this very turn."""
        objects = dict.fromkeys(str(each) for each in (*claimed, *self._objects) if not each.passes)
        found = [Obstacle(Reason.OBJECT_REFUSED.value, sentence) for sentence in objects]
        if self._waits:
            found.append(Obstacle(Reason.EARLIER_JOB.value, LEFT_OVER))
        if self._refused_since is not None and self.clock() - self._refused_since >= PATIENCE_SECONDS:
            found.append(Obstacle(Reason.COORDINATOR_REFUSED.value, f"the coordinator refuses: {self._refusal}"))
        return tuple(found)
