"""Contact: since when nothing was heard of a job's coordinator, and what came back instead. Called by the reconciler.

Lost with the operator; then the job's status says since when. What follows from it is the core's to decide.
"""

import time
from collections.abc import Callable, Sequence

from rljob_api.bounded_text import cut
from rljob_operator.adapters.views import PodView
from rljob_operator.coordinator_link import CoordinatorError, CoordinatorUnreachable
from rljob_operator.core import Reason, Silence

LONGEST_WORDS = 300
"""Of what came back: it may be anything."""


class Contact:
    """With one job's coordinator."""

    def __init__(self, who: str, clock: Callable[[], float] = time.time) -> None:
        """`who` asks: whoever looks for lost packets has to know where they come from."""
        self._who = who
        self._clock = clock
        self._silence: Silence | None = None

    def heard(self) -> None:
        """It answered."""
        self._silence = None

    def refused(self, error: CoordinatorError, seconds: float) -> None:
        """A question that took so long had no answer that could be used."""
        kind = CoordinatorUnreachable
        reason = Reason.COORDINATOR_UNREACHABLE if isinstance(error, kind) else Reason.COORDINATOR_REFUSED
        self._silent(reason, f"operator {self._who} asks the coordinator: {shown(str(error))}", self._clock() - seconds)

    def nobody_there(self, pods: Sequence[PodView]) -> None:
        """None of these, the coordinator's pods, takes requests."""
        staying = [pod for pod in pods if not pod.deleting]
        why = f"its pod {staying[-1].name} is not ready" if staying else "it has no pod"
        self._silent(Reason.INFRASTRUCTURE_DOWN, f"coordinator ({why})", self._clock())

    def not_asked(self, reason: Reason, why: str) -> Silence:
        """There is a pod, and it cannot be asked."""
        return self._silent(reason, why, self._clock())

    def silence(self) -> Silence | None:
        """What the core may know; None while it answers, or where nobody has asked to the end yet."""
        return self._silence

    def _silent(self, reason: Reason, message: str, at: float) -> Silence:
        before = self._silence
        since = at if before is None else min(before.since, at)
        reason_since = at if before is None or before.reason is not reason else min(before.reason_since, at)
        self._silence = Silence(since, reason, message, reason_since)
        return self._silence


def shown(said: str) -> str:
    """What somebody else has said, in one line that can be read."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in said[: 2 * LONGEST_WORDS]).split())
    return cut(line, LONGEST_WORDS)
