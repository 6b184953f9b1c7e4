"""What a run makes of what its coordinator says: it is written down, and wakes the supervisor if it matters."""

from collections.abc import Callable, Sequence

from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, QueueObservation
from rljob_operator.coordinator_follower import QUIET, Pace
from rljob_operator.coordinator_link import CoordinatorError, CoordinatorUnreachable
from rljob_operator.local.journal import Journal

PATIENCE_SECONDS = 0.25
"""A coordinator that takes longer to answer does not keep the supervisor from what it can decide without it."""
WAIT_SECONDS = 10.0
RETRY_SECONDS = 0.1

PACE = Pace(
    patience_seconds=PATIENCE_SECONDS,
    first_patience_seconds=PATIENCE_SECONDS,
    wait_seconds=lambda: WAIT_SECONDS,
    retry_seconds=lambda _: RETRY_SECONDS,
)
"""Steps are written down as they come: no event is held back."""


class Listener:
    """The owner of a run's `CoordinatorFollower`."""

    def __init__(self, journal: Journal, wake: Callable[[], None], answered: Callable[[], None]) -> None:
        """`answered`: the coordinator has said something, whatever it was."""
        self._journal = journal
        self._wake = wake
        self._answered = answered
        self.queue: QueueObservation | None = None
        """As last told."""

    def hear(self, events: Sequence[CoordinatorEvent]) -> None:
        """Writes them down."""
        for event in events:
            self._journal.hear(event, self.queue)
        if any(event.kind not in QUIET for event in events):
            self._wake()

    def note_request(self, _what: str, error: CoordinatorError | None) -> None:
        """A refusal is an answer, too."""
        if not isinstance(error, CoordinatorUnreachable):
            self._answered()

    def wake(self, _seen: CoordinatorStatus | None) -> None:
        """An answer that was not waited for."""
        self._wake()
