"""The clock that the operator goes by: the API server's, read from the Date of its answers.

The API server stamps what the operator compares with the present: creation and deletion of pods. What the operator
writes into a status is read by the next leader, on another machine. So `kube` and `cluster` read the machine's own
clock nowhere but here. Called by `kube.api` for every answer. Does no I/O.
"""

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

TOLERANCE_SECONDS = 3.0
"""A difference that is left as it is: several API servers behind one address differ by less, and a clock that follows
each of them would go back and forth."""


DATE_SECONDS = 1.0
"""A Date has whole seconds, cut off: the moment lies within this time after it."""


Clock = Callable[[], float]
"""Unix time in seconds."""


_log = logging.getLogger(__name__)


class ApiClock:
    """Unix time by the API server's clock; by this machine's before the first answer.

    Between two answers it goes on with the monotonic clock, so that a step of this machine's clock changes nothing.

    sent = clock.begin()
    ...                                      # the request, until the head of its answer has come
    clock.answered(date, sent)               # the moment of `date` lies between the two
    """

    def __init__(self, own: Clock = time.time, monotonic: Clock = time.monotonic) -> None:
        self._own = own
        self._monotonic = monotonic
        self._offset = own() - monotonic()
        self._last = ""

    def __call__(self) -> float:
        """Unix time, now."""
        return self._monotonic() + self._offset

    def begin(self) -> float:
        """The start of a request, as `answered` takes it."""
        return self._monotonic()

    def answered(self, date: str, sent: float) -> None:
        """Corrects the time by an answer that the API server has dated; a text that is no date is passed over.

        The Date bounds the time from both sides, the more loosely the longer the answer took: a late one that agrees
        with what is known changes nothing.
        """
        if date == self._last:  # the first answer of a second bounds it as well as the others do
            return
        self._last = date
        try:
            at = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = at - self._monotonic(), at + DATE_SECONDS - sent
        if least - TOLERANCE_SECONDS <= self._offset <= most + TOLERANCE_SECONDS:
            return
        self._offset = (least + most) / 2
        ahead = self._own() - self()
        _log.warning(
            "the clock of this machine is %.0f s %s that of the API server, by which the operator goes",
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )
