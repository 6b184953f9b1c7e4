"""Failure reports on their way to the coordinator: sent again until it has taken them, without anybody waiting.

Called by `launcher` from its loop. A report is harmless twice: its id is its cause.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Endpoints
from rljob_workers.dcs.channel import ChannelBroken, HttpChannel, PendingAnswer

ANSWER_SECONDS = 5.0
"""After this long without an answer the report is sent again."""

PAUSE_SECONDS = 0.2
"""Between attempts while the coordinator is away: a restart of it takes a second or two."""

_log = logging.getLogger(__name__)


class FailureOutbox:
    """Reports in order; one in flight."""

    def __init__(self, endpoints: Endpoints, clock: Callable[[], float]) -> None:
        self._channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._clock = clock
        self._waiting: deque[Failure] = deque()
        self._in_flight: PendingAnswer | None = None
        self._not_before = 0.0

    def __len__(self) -> int:
        """Reports that the coordinator has not taken yet."""
        return len(self._waiting)

    def add(self, failure: Failure) -> None:
        """Queues a report; `turn` sends it."""
        self._waiting.append(failure)

    def fileno(self) -> int:
        """For select; -1 when no answer is awaited."""
        return -1 if self._in_flight is None else self._in_flight.fileno()

    def turn(self) -> None:
        """Collects the answer if it is there, and sends the next report. Never waits."""
        if self._in_flight is not None and self._in_flight.ready():
            self._collect(self._in_flight)
        if self._in_flight is None and self._waiting and self._clock() >= self._not_before:
            self._send(self._waiting[0])

    def close(self) -> None:
        """Closes the connection (also in a forked child, which must not speak on it)."""
        self._channel.close()

    def _send(self, failure: Failure) -> None:
        body = failure.model_dump_json().encode()
        try:
            self._in_flight = self._channel.begin("POST", "/v1/failures", body, timeout=ANSWER_SECONDS)
        except ChannelBroken as error:
            self._later(str(error))

    def _collect(self, pending: PendingAnswer) -> None:
        self._in_flight = None
        try:
            answer = pending.result()
        except ChannelBroken as error:
            self._channel.close()
            self._later(str(error))
            return
        if answer.status >= 500:
            self._later(f"status {answer.status}")
            return
        failure = self._waiting.popleft()
        if answer.status >= 400:
            # Refused for good (an older epoch's death, for one): to repeat it would hold back those behind it.
            _log.warning("report %s was refused: %s", failure.id, answer.body[:500].decode(errors="replace"))

    def _later(self, why: str) -> None:
        self._not_before = self._clock() + PAUSE_SECONDS
        _log.info("report %s is not taken yet (%s)", self._waiting[0].id, why)
