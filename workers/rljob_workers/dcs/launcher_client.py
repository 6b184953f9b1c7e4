"""The launcher's side of the coordinator: registration, the long poll for orders, failure reports.

Called by the launcher, which forks: no threads here, and a poll is something that a select loop can wait for.

    client = LauncherClient(endpoints)
    client.register(hello)
    pending = client.begin_poll(poll)
    while not pending.ready():
        select.select([pending.fileno(), children], [], [], 0.2)   # fileno() anew each turn; the time-out is needed
    answer = pending.result()                                      # None: not reached, poll again
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll
from rljob_workers.dcs.channel import ChannelBroken, HttpChannel, PendingAnswer
from rljob_workers.dcs.client import ATTEMPT_SECONDS, PAUSE_SECONDS, CoordinatorClient, accept
from rljob_workers.dcs.errors import CoordinatorUnreachable

REPORT_SECONDS = 60.0
"""How long registration and failure reports are tried: they must outlive a restart of the coordinator."""
NOT_FOUND = 404


class PendingOrder:
    """A poll on its way."""

    def __init__(
        self, pending: PendingAnswer | None, not_before: float, idle: socket.socket, clock: Callable[[], float]
    ) -> None:
        self._pending = pending
        self._not_before = not_before
        self._idle = idle
        self._clock = clock
        self.registration_lost = False
        """The coordinator does not know this launcher any more; the client registers it again by itself."""

    def fileno(self) -> int:
        """For select; ask anew each turn. Never readable where the coordinator could not be reached."""
        descriptor = -1 if self._pending is None else self._pending.fileno()
        return descriptor if descriptor >= 0 else self._idle.fileno()

    def ready(self) -> bool:
        """Whether `result()` returns without waiting. Never blocks."""
        if self._pending is None:
            return self._clock() >= self._not_before
        return self._pending.ready()

    def result(self) -> LauncherAnswer | None:
        """The answer; None when the coordinator was not reached or is not open (poll again). Raises LifeOver."""
        if self._pending is None:
            return None
        try:
            answer = self._pending.result()
        except ChannelBroken:
            return None
        self.registration_lost = answer.status == NOT_FOUND
        if answer.status >= 500 or self.registration_lost:
            return None
        return LauncherAnswer.model_validate_json(accept(answer))


class LauncherClient:
    """One launcher's two connections: polls on one, everything else on the other. Close it in a forked child."""

    def __init__(
        self,
        endpoints: Endpoints,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience_seconds: float = REPORT_SECONDS,
    ) -> None:
        """`patience_seconds`: how long one call of `register` tries."""
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._calls = CoordinatorClient(endpoints, clock)
        self._polls = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._idle, self._idle_peer = socket.socketpair()
        self._hello: LauncherHello | None = None
        self._last: PendingOrder | None = None

    def register(self, hello: LauncherHello) -> None:
        """Registers this life of the launcher, fencing earlier ones. Raises LifeOver, CoordinatorUnreachable."""
        self._hello = hello
        self._calls.call("POST", "/v1/launchers", hello, deadline=self._clock() + self._patience_seconds)

    def begin_poll(self, poll: LauncherPoll) -> PendingOrder:
        """Reports the pod's state and asks for an order other than `poll.carried`. One poll at a time."""
        if self._hello is None:
            raise ValueError("LauncherClient.begin_poll: the launcher is not registered. Call register(hello) first.")
        is_lost = self._last is not None and self._last.registration_lost
        path = f"/v1/launchers/{self._hello.launcher}/poll"
        began, pending = self._clock(), None
        try:
            if is_lost:
                self.register(self._hello.model_copy(update={"seen_seq": poll.seen_seq}))
                is_lost = False
            body = poll.model_dump_json().encode()
            pending = self._polls.begin("POST", path, body, timeout=poll.wait_seconds + ATTEMPT_SECONDS)
        except (ChannelBroken, CoordinatorUnreachable):
            pass
        # An attempt that took long (nothing refuses, nothing answers) may take half of the time, and no more.
        now = self._clock()
        self._last = PendingOrder(pending, now + max(PAUSE_SECONDS, now - began), self._idle, self._clock)
        self._last.registration_lost = is_lost
        return self._last

    def report_failure(self, failure: Failure) -> None:
        """Reports a failure; durable when this returns. Same id, one failure. Raises CoordinatorUnreachable."""
        self._calls.call("POST", "/v1/failures", failure, deadline=self._clock() + REPORT_SECONDS)

    def close(self) -> None:
        """Closes all connections (also in a forked child, which must not speak on its parent's)."""
        self._calls.close()
        self._polls.close()
        self._idle.close()
        self._idle_peer.close()
