"""The coordinators of all jobs: status requests of a turn, event long polls between turns, and their silence.

A turn waits a bounded time for an answer; a late answer wakes the job. A coordinator that is down costs a retry with
backoff. What follows from its silence is decided by the core.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rljob_api.base import cut
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind
from rljob_operator.coordinator_client.follower import QUIET, CoordinatorFollower, FollowerLimits
from rljob_operator.coordinator_client.link import (
    MOST_BYTES,
    CoordinatorError,
    CoordinatorLink,
    CoordinatorTransport,
    CoordinatorUnreachable,
)
from rljob_operator.core import Event, NoContact, Reason
from rljob_operator.core.notices import REPLAY_SECONDS, REPORTED, reported
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.views import JobKey, PodView
from rljob_operator.kube.work_queue import Urgency
from rljob_operator.rate_limit import Rate, backoff_seconds

_ALARMS = frozenset(
    {
        EventKind.FAILURE_REPORTED,
        EventKind.UNIT_LOST,
        EventKind.ROWS_LOST,
        EventKind.PROMPT_SET_ASIDE,
        EventKind.STATE_LOST,
    }
)
"""Events of the coordinator that something may have to be restarted for."""


def urgency_of_events(events: Iterable[CoordinatorEvent]) -> Urgency:
    """Of events of the coordinator."""
    return Urgency.ALARM if any(event.kind in _ALARMS for event in events) else Urgency.PROGRESS


def urgency_of_status(seen: CoordinatorStatus) -> Urgency:
    """Of an answer of the coordinator that came when its turn was over."""
    return Urgency.ALARM if seen.failures else Urgency.PROGRESS


LONGEST_MESSAGE = 300
"""Characters of an answer in a message: an answer may be anything."""


class CoordinatorContact:
    """Since when one job's coordinator is silent, and why."""

    def __init__(self, who: str, clock: Clock) -> None:
        """`who` requests: messages name it, since lost packets are searched for from both ends."""
        self._who = who
        self._clock = clock
        self._silence: NoContact | None = None

    def answered(self) -> None:
        """It answered."""
        self._silence = None

    def refused(self, error: CoordinatorError, seconds: float) -> None:
        """A request that took so long had no usable answer."""
        kind = CoordinatorUnreachable
        reason = Reason.COORDINATOR_UNREACHABLE if isinstance(error, kind) else Reason.COORDINATOR_REFUSED
        self._silent(reason, f"operator {self._who} asks the coordinator: {shown(str(error))}", self._clock() - seconds)

    def has_no_ready_pod(self, pods: Sequence[PodView]) -> None:
        """None of these, the coordinator's pods, takes requests."""
        staying = [pod for pod in pods if not pod.deleting]
        why = f"its pod {staying[-1].name} is not ready" if staying else "it has no pod"
        self._silent(Reason.INFRASTRUCTURE_DOWN, f"coordinator ({why})", self._clock())

    def not_asked(self, reason: Reason, why: str) -> NoContact:
        """There is a pod, and it cannot be asked."""
        return self._silent(reason, why, self._clock())

    def silence(self) -> NoContact | None:
        """What the core may know; None while it answers, and until the first request has ended."""
        return self._silence

    def _silent(self, reason: Reason, message: str, at: float) -> NoContact:
        before = self._silence
        since = at if before is None else min(before.since, at)
        reason_since = at if before is None or before.reason is not reason else min(before.reason_since, at)
        self._silence = NoContact(since, reason, message, reason_since)
        return self._silence


def shown(text: str) -> str:
    """An answer of another process as one printable line."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 2 * LONGEST_MESSAGE]).split())
    return cut(line, LONGEST_MESSAGE)


PATIENCE_SECONDS = 1.0
"""A coordinator that takes longer to answer does not delay what can be decided without it. It is not waited for again
before it has been faster: where many are out of reach, their turns would leave none for the others."""


FIRST_PATIENCE_SECONDS = 0.2
"""The same for the first request: when an operator begins, that is all of them."""


WAIT_SECONDS = 30.0
"""How long an events request is held open; the coordinator allows no more. While nothing happens but steps, it is how
old the status gets. A little less each time, so that the jobs do not all write theirs at the same moment."""


RETRY_SECONDS = (0.2, 10.0)


MOST_UNREPORTED = 64
"""Events that wait for their job's turn: of more than that, the last."""


EARLIER_EVENTS = 100
"""So many events before the first answer are received: an earlier operator may not have reported them."""


STATUS_SECONDS = 10.0
"""A coordinator that does not answer a status request in this time is reported to be out of reach."""


LISTENING = Rate(burst=20, every_seconds=1.0)
"""How often events are requested of one coordinator. A restart of its job takes a dozen requests; a coordinator that
always has events gets one a second."""


LEAST_BYTES, BYTES_PER_PROCESS = 1024 * 1024, 4 * 1024
"""Of an answer: what failures and events of any job may need, and what each of its processes adds."""


ASK_AGAIN_SECONDS = (1.0, 30.0)
"""When a job whose coordinator did not answer has its next turn unasked: later each time, since a pod that comes back
is announced, and there may be many that do not."""


class JobCoordinator(CoordinatorFollower):
    """One job's. Whatever happens after its first answer and may need a decision wakes the job."""

    def __init__(
        self,
        link: CoordinatorLink,
        wake: Callable[[Urgency], None],
        contact: CoordinatorContact,
        metrics: Metrics,
        clock: Callable[[], float],
        time_of_day: Clock,
    ) -> None:
        super().__init__(link, _limits(), clock)
        self._time_of_day = time_of_day
        self._wake = wake
        self._contact = contact
        self._metrics = metrics
        self._unreported: deque[CoordinatorEvent] = deque(maxlen=MOST_UNREPORTED)

    @property
    def ask_again_seconds(self) -> float:
        """In how long to look unasked, where there was no answer. While a request is open its end wakes the job."""
        if self.is_asking:
            return ASK_AGAIN_SECONDS[1]
        return backoff_seconds(self.unanswered, *ASK_AGAIN_SECONDS)

    def take_unreported(self, status: RLJobStatus) -> list[Event]:
        """Events since the last call that the user of a job of this status should know."""
        taken = [reported(event, status) for event in self._unreported]
        self._unreported.clear()
        return [event for event in taken if event is not None]

    def receive(self, events: Sequence[CoordinatorEvent]) -> None:
        """Wakes the job, whose turn reports them."""
        since = self._time_of_day() - REPLAY_SECONDS
        # By the clocks of two machines: what came after the first answer is news whatever they say.
        news = [event for event in events if event.id > self.last_before or event.at >= since]
        self._unreported.extend(event for event in news if event.kind in REPORTED)
        self._wake(urgency_of_events(events))

    def request_ended(self, what: str, error: CoordinatorError | None) -> None:
        """Counts it. Only status requests decide whether it is out of reach: without events its status is requested."""
        if what == "status" and error is None:
            self._contact.answered()
        elif what == "status" and error is not None:
            self._contact.refused(error, self.took_seconds)
        self._metrics.coordinator_requests.labels(what, "ok" if error is None else type(error).__name__).inc()

    def answered_late(self, seen: CoordinatorStatus | None) -> None:
        """Wakes the job."""
        self._wake(Urgency.PROGRESS if seen is None else urgency_of_status(seen))


def _limits() -> FollowerLimits:
    return FollowerLimits(
        patience_seconds=PATIENCE_SECONDS,
        first_patience_seconds=FIRST_PATIENCE_SECONDS,
        wait_seconds=WAIT_SECONDS,
        retry_seconds=RETRY_SECONDS,
        spread=True,
        quiet=QUIET,
        earlier_events=EARLIER_EVENTS,
        status_seconds=STATUS_SECONDS,
        listening=LISTENING,
    )


def num_processes(job: RLJob, status: RLJobStatus) -> int:
    """Pods, ranks and engines that the coordinator may report: those of now and those that are wanted."""
    roles = job.spec.roles
    wanted = [roles.topology(role) for role in roles.present()]
    per_pod = max((1 + shape.ranks_per_pod + shape.engines for shape in wanted), default=1)
    return per_pod * (sum(shape.pods for shape in wanted) + sum(len(role.pods) for role in status.roles))


class JobCoordinators:
    """All of them, by job; one is made when its job is first asked about."""

    def __init__(
        self,
        transport: Callable[[JobKey, str], CoordinatorTransport],
        wake: Callable[[JobKey, Urgency], None],
        metrics: Metrics,
        time_of_day: Clock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._time_of_day = time_of_day
        self._clock = clock
        self._wake = wake
        self._metrics = metrics
        self._known: dict[JobKey, tuple[str, JobCoordinator]] = {}

    async def of(self, key: JobKey, token: str, contact: CoordinatorContact, num_processes: int) -> JobCoordinator:
        """The coordinator of a job; another token means another job of the same name."""
        known = self._known.get(key)
        if known is None or known[0] != token:
            await self.close(key)
            link = CoordinatorLink(self._transport(key, token))
            made = JobCoordinator(
                link, partial(self._wake, key), contact, self._metrics, self._clock, self._time_of_day
            )
            known = self._known[key] = (token, made)
        known[1].link.most_bytes = min(MOST_BYTES, LEAST_BYTES + BYTES_PER_PROCESS * num_processes)
        return known[1]

    async def close(self, key: JobKey) -> None:
        """The job is gone, over or suspended."""
        known = self._known.pop(key, None)
        if known is not None:
            await known[1].close()

    async def close_all(self) -> None:
        """Before the process ends."""
        for key in list(self._known):
            await self.close(key)
