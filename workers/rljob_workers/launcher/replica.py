"""Which replica a pod is: asked of the coordinator until it says so, without anybody waiting inside a call.

Called by `pod` before there is a launcher. A pod that nobody ordered (yet) asks on and on; it costs a request in 20 s.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from urllib.parse import quote

from pydantic import ValidationError

from rljob_api.wire.identity import Endpoints, PodKey
from rljob_api.wire.launchers import ReplicaAnswer
from rljob_workers.dcs.channel import Answer, ChannelBroken, HttpChannel, PendingAnswer
from rljob_workers.launcher.wait_log import WaitLog

WAIT_SECONDS = 20.0
"""How long the coordinator may hold the question."""
ANSWER_SECONDS = 5.0
"""How much longer its answer may take."""
PAUSE_SECONDS = 1.0
"""Before the question is asked again of a coordinator that was not reached or refused."""

_log = logging.getLogger(__name__)


class ReplicaQuestion:
    """One question at a time, from a loop."""

    def __init__(self, endpoints: Endpoints, pod_uid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._url = endpoints.coordinator
        self._pod_uid = pod_uid
        self._clock = clock
        self._pending: PendingAnswer | None = None
        self._not_before = 0.0
        self._wait = WaitLog(_log, clock)
        self._why = "it has not answered yet"

    def turn(self) -> PodKey | None:
        """Asks, or takes the answer; the replica once it is known."""
        if self._pending is not None and self._pending.ready():
            pending, self._pending = self._pending, None
            found = self._hear(pending)
            if found is not None:
                return found
        if self._pending is None and self._clock() >= self._not_before:
            self._ask()
        self._wait.turn(f"pod {self._pod_uid} waits to hear from {self._url} which replica it is: {self._why}")
        return None

    def watch(self, poller: select.poll) -> None:
        """Registers what is waited for."""
        if self._pending is not None and self._pending.fileno() >= 0:
            poller.register(self._pending.fileno(), select.POLLIN)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _ask(self) -> None:
        path = f"/v1/replicas/{quote(self._pod_uid, safe='')}?wait={WAIT_SECONDS}"
        try:
            self._pending = self._channel.begin("GET", path, None, timeout=WAIT_SECONDS + ANSWER_SECONDS)
        except ChannelBroken as error:
            self._later(f"it cannot be reached ({error})")

    def _hear(self, pending: PendingAnswer) -> PodKey | None:
        try:
            answer = pending.result()
        except ChannelBroken as error:
            self._channel.close()
            self._later(f"it did not answer ({error})")
            return None
        if answer.status != 200:
            self._later(f"it refuses (status {answer.status}: {_text(answer)})")
            return None
        try:
            found = ReplicaAnswer.model_validate_json(answer.body).pod
        except ValidationError:
            self._later(f"its answer is not understood ({_text(answer)})")
            return None
        self._why = "no replica is ordered to be this pod yet"
        return found

    def _later(self, why: str) -> None:
        self._why = why
        self._not_before = self._clock() + PAUSE_SECONDS


def _text(answer: Answer) -> str:
    return answer.body[:300].decode(errors="replace")
