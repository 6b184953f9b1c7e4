"""The coordinators of all jobs: asked for their status in a turn, listened to between the turns.

A turn waits for an answer only so long; a later one finds it. A coordinator that is down costs a retry with back-off.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.topology import topology_of
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.contact import Contact
from rljob_operator.adapters.coordinator import Access
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.urgency import urgency_of_events, urgency_of_status
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.work_queue import Urgency
from rljob_operator.budget import Rate
from rljob_operator.coordinator_follower import QUIET, CoordinatorFollower, Pace
from rljob_operator.coordinator_link import MOST_BYTES, CoordinatorError, CoordinatorLink
from rljob_operator.core import Event
from rljob_operator.core.told import RETOLD_SECONDS, TOLD, told

PATIENCE_SECONDS = 1.0
"""A coordinator that takes longer to answer does not keep a turn from what can be decided without it. It is not waited
for again before it has been faster: where many are out of reach, their turns would leave none for the others."""

FIRST_PATIENCE_SECONDS = 0.2
"""The same for one that was never asked: when an operator begins, that is all of them."""

WAIT_SECONDS = 30.0
"""How long a question for events is held open; the coordinator allows no more. While nothing happens but steps, it is
how old the status gets. A little less each time, so that the jobs do not all write theirs at the same moment."""

RETRY_SECONDS = (0.2, 10.0)

MOST_TOLD = 64
"""Events that wait for their job's turn: of a coordinator that tells more than that in between, the last."""

LOOK_BACK = 100
"""Of a job that it hears of first an operator listens to so many events that were before: whoever was here before it
may not have told them."""
STATUS_SECONDS = 10.0
"""A coordinator that does not say its status in this time is told to be out of reach."""

LISTENING = Rate(burst=20, every_seconds=1.0)
"""How often one is asked for events. One that restarts its job tells a dozen times; one that tells without end is
heard of every second."""

LEAST_BYTES, BYTES_PER_PROCESS = 1024 * 1024, 4 * 1024
"""Of an answer: what failures and events of any job may need, and what each of its processes adds."""

ASK_AGAIN_SECONDS = (1.0, 30.0)
"""When a job whose coordinator did not answer is looked at again unasked: later each time, since a pod that comes back
is announced, and there may be many that do not."""


class Coordinator:
    """One job's."""

    def __init__(
        self,
        link: CoordinatorLink,
        wake: Callable[[Urgency], None],
        contact: Contact,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.link = link
        self._wake = wake
        self._contact = contact
        self._metrics = metrics
        self._follower = CoordinatorFollower(link, self, _pace(), clock)
        self._told: deque[CoordinatorEvent] = deque(maxlen=MOST_TOLD)

    @property
    def ask_again_seconds(self) -> float:
        """In how long to look unasked, where there was no answer. While a question is open its end wakes the job."""
        if self._follower.is_asking:
            return ASK_AGAIN_SECONDS[1]
        return backoff_seconds(self._follower.unanswered, *ASK_AGAIN_SECONDS)

    async def status(self) -> CoordinatorStatus | None:
        """What it sees; None if it does not say so soon, then its answer wakes the job.

        Whatever happens after its first answer and may need a decision wakes the job, too.
        """
        return await self._follower.status()

    async def close(self) -> None:
        """Asks and listens no more."""
        await self._follower.close()

    def hear(self, events: Sequence[CoordinatorEvent]) -> None:
        """Wakes the job, whose turn takes from here what is to be told."""
        since = time.time() - RETOLD_SECONDS
        self._told.extend(event for event in events if event.at >= since and event.kind in TOLD)
        self._wake(urgency_of_events(events))

    def take_told(self, status: RLJobStatus) -> list[Event]:
        """What it has told since this was asked last, and the user of a job of this status should know."""
        taken = [told(event, status) for event in self._told]
        self._told.clear()
        return [event for event in taken if event is not None]

    def note_request(self, what: str, error: CoordinatorError | None) -> None:
        """Counts it. The status says whether it can be reached: where only events do not come, it is asked for that."""
        if what == "status" and error is None:
            self._contact.heard()
        elif what == "status" and error is not None:
            self._contact.refused(error, self._follower.took_seconds)
        self._metrics.coordinator_requests.labels(what, "ok" if error is None else type(error).__name__).inc()

    def wake(self, seen: CoordinatorStatus | None) -> None:
        """Wakes the job by an answer that no turn has waited for."""
        self._wake(Urgency.PROGRESS if seen is None else urgency_of_status(seen))


def _pace() -> Pace:
    return Pace(
        patience_seconds=PATIENCE_SECONDS,
        first_patience_seconds=FIRST_PATIENCE_SECONDS,
        wait_seconds=lambda: WAIT_SECONDS * random.uniform(0.8, 1.0),
        retry_seconds=lambda failures: backoff_seconds(failures, *RETRY_SECONDS) * random.uniform(0.7, 1.0),
        quiet=QUIET,
        look_back=LOOK_BACK,
        status_seconds=STATUS_SECONDS,
        listening=LISTENING,
    )


def num_processes(job: RLJob, status: RLJobStatus) -> int:
    """Pods, ranks and engines that the coordinator may tell of: those of now and those that are wanted."""
    roles = job.spec.roles
    wanted = [topology_of(roles, role) for role in roles.present()]
    per_pod = max((1 + shape.ranks_per_pod + shape.engines for shape in wanted), default=1)
    return per_pod * (sum(shape.pods for shape in wanted) + sum(len(role.pods) for role in status.roles))


class Coordinators:
    """All of them, by job; one is made when its job is first asked about."""

    def __init__(
        self,
        access: Access,
        wake: Callable[[JobKey, Urgency], None],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._clock = clock
        self._wake = wake
        self._metrics = metrics
        self._known: dict[JobKey, tuple[str, Coordinator]] = {}

    async def of(self, key: JobKey, token: str, contact: Contact, num_processes: int) -> Coordinator:
        """The coordinator of a job; another token means another job of the same name."""
        known = self._known.get(key)
        if known is None or known[0] != token:
            await self.close(key)
            link = CoordinatorLink(self._access.to(key, token))
            made = Coordinator(link, lambda urgency: self._wake(key, urgency), contact, self._metrics, self._clock)
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
