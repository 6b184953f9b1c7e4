"""Requests of a pod's first process to the coordinator: its replica, registration, polls for orders, failure reports.

`pod` and `launcher` call it from their loops. Nothing here starts a thread; only registration waits. A failure report
is repeated until the coordinator has it; its id is its cause, so that a repetition is harmless.

    client = LauncherClient(endpoints)
    client.register(hello)
    while True:
        answer = client.collect()   # None: not there yet, or not reached
        client.turn(poll)           # the present state of the pod
        poller = select.poll()
        client.watch(poller)
        poller.poll(200)            # the time-out is needed
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import quote

from pydantic import ValidationError

from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll, ReplicaAnswer
from rljob_workers.dcs.errors import CoordinatorUnreachable
from rljob_workers.dcs.membership.coordinator_http import (
    ATTEMPT_SECONDS,
    PAUSE_SECONDS,
    Answer,
    ChannelBroken,
    CoordinatorClient,
    HttpChannel,
    accept,
)

LOG_SECONDS = 30.0
"""Between two lines about one wait."""


class WaitLog:
    """One wait: from its making, or the last `end`, on."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.end()

    def end(self) -> None:
        """It is over; the next one begins."""
        self._begun = self._logged = self._clock()

    def turn(self, sentence: str) -> None:
        """It goes on; `sentence` names who waits for what."""
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._log.info("%s (for %.0f s by now)", sentence, now - self._begun)


WAIT_SECONDS = 20.0
"""How long the coordinator may hold the question."""


REPLICA_ANSWER_SECONDS = 5.0
"""How much longer its answer may take."""


REPLICA_PAUSE_SECONDS = 1.0
"""Before the question is asked again of a coordinator that was not reached or refused."""


_log = logging.getLogger(__name__)


class ReplicaQuestion:
    """One question at a time, from a loop."""

    def __init__(self, endpoints: Endpoints, pod_uid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._url = endpoints.coordinator
        self._pod_uid = pod_uid
        self._clock = clock
        self._not_before = 0.0
        self._wait = WaitLog(_log, clock)
        self._why = "it has not answered yet"

    def turn(self) -> PodKey | None:
        """Asks, or takes the answer; the replica once it is known."""
        found = self._collect()
        if found is not None:
            return found
        if self._channel.pending is None and self._clock() >= self._not_before:
            self._ask()
        self._wait.turn(f"pod {self._pod_uid} waits to hear from {self._url} which replica it is: {self._why}")
        return None

    def watch(self, poller: select.poll) -> None:
        """Registers what is waited for."""
        self._channel.watch(poller)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _ask(self) -> None:
        path = f"/v1/replicas/{quote(self._pod_uid, safe='')}?wait={WAIT_SECONDS}"
        try:
            self._channel.begin("GET", path, None, timeout=WAIT_SECONDS + REPLICA_ANSWER_SECONDS)
        except ChannelBroken as error:
            self._later(f"it cannot be reached ({error})")

    def _collect(self) -> PodKey | None:
        try:
            answer = self._channel.collect()
        except ChannelBroken as error:
            self._later(f"it did not answer ({error})")
            return None
        if answer is None:
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
        self._not_before = self._clock() + REPLICA_PAUSE_SECONDS


def _text(answer: Answer) -> str:
    return answer.body[:300].decode(errors="replace")


REPORT_SECONDS = 60.0
"""How long registration is tried: it must outlive a restart of the coordinator."""


NOT_FOUND = 404


ASK_AGAIN_SECONDS = 0.1
"""Before the next poll when the coordinator was not reached, is not open or knows no order yet."""


class LauncherClient:
    """One launcher's connections: for polls, for reports, and to register. Close it in a forked child."""

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
        self.reports = FailureOutbox(endpoints, clock)
        self._hello: LauncherHello | None = None
        self._polled: LauncherPoll | None = None
        self._poll_not_before = 0.0
        self._wait = WaitLog(_log, clock)
        self.registration_lost = False
        """The coordinator does not know this launcher any more: the next poll registers it again."""

    @property
    def is_polling(self) -> bool:
        """Whether a poll is on its way."""
        return self._polls.pending is not None

    def register(self, hello: LauncherHello) -> None:
        """Registers this incarnation of the launcher, fencing earlier ones. IncarnationOver, CoordinatorUnreachable."""
        self._hello = hello
        self._calls.call("POST", "/v1/launchers", hello, deadline=self._clock() + self._patience_seconds)

    def turn(self, poll: LauncherPoll) -> None:
        """Sends what is due: reports, and a poll, for which one with an older state of the pod is given up."""
        is_sent = self.is_polling and self._polled is not None and not _differs(poll, self._polled)
        if not is_sent and self._clock() >= self._poll_not_before:
            self.begin_poll(poll)
        self.reports.turn()

    def begin_poll(self, poll: LauncherPoll) -> None:
        """Reports the pod's state and asks for an order other than `poll.carried`. One poll at a time."""
        if self._hello is None:
            raise ValueError("LauncherClient.begin_poll: the launcher is not registered. Call register(hello) first.")
        path, began = f"/v1/launchers/{self._hello.launcher}/poll", self._clock()
        self._polled = poll
        try:
            if self.registration_lost:
                self.register(self._hello.model_copy(update={"seen_seq": poll.seen_seq}))
                self.registration_lost = False
            body = poll.model_dump_json().encode()
            self._polls.begin("POST", path, body, timeout=poll.wait_seconds + ATTEMPT_SECONDS)
        except (ChannelBroken, CoordinatorUnreachable):
            # An attempt that took long (nothing refuses, nothing answers) may take half of the time, and no more.
            self._poll_later(max(PAUSE_SECONDS, self._clock() - began) + ASK_AGAIN_SECONDS)

    def collect(self) -> LauncherAnswer | None:
        """The answer of a poll, once; None: it is on its way, or none came. Never waits. Raises IncarnationOver."""
        try:
            answer = self._polls.collect()
        except ChannelBroken:
            self._poll_later(ASK_AGAIN_SECONDS)
            return None
        if answer is None:
            return None
        self.registration_lost = answer.status == NOT_FOUND
        if answer.status >= 500 or self.registration_lost:
            self._poll_later(ASK_AGAIN_SECONDS)
            return None
        found = LauncherAnswer.model_validate_json(accept(answer))
        if found.order is None:
            self._poll_later(ASK_AGAIN_SECONDS)
        else:
            self._wait.end()
        return found

    def watch(self, poller: select.poll) -> None:
        """Registers what is waited for."""
        for channel in (self._polls, self.reports.channel):
            channel.watch(poller)

    def close(self) -> None:
        """Closes all connections (also in a forked child, which must not speak on its parent's)."""
        for channel in (self._calls.channel, self._polls, self.reports.channel):
            channel.close()

    def _poll_later(self, seconds: float) -> None:
        self._poll_not_before = self._clock() + seconds
        hello = self._hello
        if hello is not None:
            self._wait.turn(
                f"{hello.pod}: launcher {hello.launcher} of pod {hello.pod_uid} waits for an order from"
                f" {self._calls.url}"
            )


def _differs(poll: LauncherPoll, earlier: LauncherPoll) -> bool:
    """Whether the pod's state is another; how far ranks have come alone can wait for the next poll."""
    return (poll.carried, _incarnations(poll), poll.engines) != (
        earlier.carried,
        _incarnations(earlier),
        earlier.engines,
    )


def _incarnations(poll: LauncherPoll) -> list[tuple[int, str, int | None]]:
    return [(rank.rank, rank.incarnation, rank.exit_code) for rank in poll.ranks]


REPORT_ANSWER_SECONDS = 5.0
"""After this long without an answer the report is sent again."""


REPORT_PAUSE_SECONDS = 0.2
"""Between attempts while the coordinator is away: a restart of it takes a second or two."""


_report_log = logging.getLogger(__name__)


class FailureOutbox:
    """Reports in order; one in flight."""

    def __init__(self, endpoints: Endpoints, clock: Callable[[], float]) -> None:
        self.channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._clock = clock
        self._waiting: deque[Failure] = deque()
        self._not_before = 0.0

    def __len__(self) -> int:
        """Reports that the coordinator has not taken yet."""
        return len(self._waiting)

    def add(self, failure: Failure) -> None:
        """Queues a report; `turn` sends it."""
        self._waiting.append(failure)

    def turn(self) -> None:
        """Collects the answer if it is there, and sends the next report. Never waits."""
        self._collect()
        if self.channel.pending is None and self._waiting and self._clock() >= self._not_before:
            self._send(self._waiting[0])

    def _send(self, failure: Failure) -> None:
        body = failure.model_dump_json().encode()
        try:
            self.channel.begin("POST", "/v1/failures", body, timeout=REPORT_ANSWER_SECONDS)
        except ChannelBroken as error:
            self._later(str(error))

    def _collect(self) -> None:
        try:
            answer = self.channel.collect()
        except ChannelBroken as error:
            self._later(str(error))
            return
        if answer is None:
            return
        if answer.status >= 500:
            self._later(f"status {answer.status}")
            return
        failure = self._waiting.popleft()
        if answer.status >= 400:
            # Refused for good (an older epoch's death, for one): to repeat it would hold back those behind it.
            _report_log.warning("report %s was refused: %s", failure.id, answer.body[:500].decode(errors="replace"))

    def _later(self, why: str) -> None:
        self._not_before = self._clock() + REPORT_PAUSE_SECONDS
        _report_log.info("report %s is not taken yet (%s)", self._waiting[0].id, why)
