"""The coordinators of all jobs: who is woken by what they report, and what is asked of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, EventPage, ServerState
from rljob_operator.cluster.coordinators import WAIT_SECONDS, CoordinatorContact, JobCoordinator, JobCoordinators
from rljob_operator.coordinator_client.link import CoordinatorTooLong, CoordinatorUnreachable
from rljob_operator.core import begin
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.work_queue import Urgency
from tests.unit.core.worlds import REPLICAS, START, key, make_coordinator, make_failure

KEY = JobKey("ns", "job")
PATIENCE = "rljob_operator.cluster.coordinators.PATIENCE_SECONDS"
FIRST_PATIENCE = "rljob_operator.cluster.coordinators.FIRST_PATIENCE_SECONDS"
EARLIER_EVENTS = "rljob_operator.cluster.coordinators.EARLIER_EVENTS"
FOR_EVER = 3600.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is waited for, however slow the machine; a test of one that is slow says so."""
    for name in (PATIENCE, FIRST_PATIENCE):
        monkeypatch.setattr(name, FOR_EVER)
    monkeypatch.setattr(EARLIER_EVENTS, 0)


class Answers:
    """A coordinator that gives these statuses and these pages, each in their order, then is silent. None: an error."""

    def __init__(
        self, statuses: Sequence[CoordinatorStatus | None], pages: Sequence[EventPage | CoordinatorTooLong | None] = ()
    ) -> None:
        self._statuses = list(statuses)
        self._pages = list(pages)
        self.asked_for_status = 0
        self.asked_for_events: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.may_report = asyncio.Event()
        self.may_report.set()
        self.is_reported = asyncio.Event()
        """Set when there is no page left."""

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        answer: CoordinatorStatus | EventPage | CoordinatorTooLong | None
        if path == "/v1/status":
            self.asked_for_status += 1
            await self.may_answer.wait()
            answer = self._statuses.pop(0)
        else:
            self.asked_for_events.append(path)
            await self.may_report.wait()
            if not self._pages:
                self.is_reported.set()
                await asyncio.Event().wait()
            answer = self._pages.pop(0)
        if answer is None:
            raise CoordinatorUnreachable("it is away")
        if isinstance(answer, CoordinatorTooLong):
            raise answer
        return answer.model_dump_json().encode()

    def listened_after(self) -> list[int]:
        return [int(path.split("after=")[1].split("&")[0]) for path in self.asked_for_events]


class Woken:
    """Who is woken."""

    def __init__(self) -> None:
        self.urgencies: list[Urgency] = []
        self.at_all = asyncio.Event()

    def wake(self, key: JobKey, urgency: Urgency) -> None:
        self.urgencies.append(urgency)
        self.at_all.set()


def page(*kinds: EventKind, first: int = 1) -> EventPage:
    reported = [CoordinatorEvent(id=first + n, kind=kind, at=0.0, epoch=1, message="") for n, kind in enumerate(kinds)]
    return EventPage(events=reported, oldest=1)


def status(last_event: int = 0, failures: int = 0, server: ServerState = ServerState.OPEN) -> CoordinatorStatus:
    job, _ = begin(RLJobStatus(), REPLICAS, START)
    failed = [make_failure(job, key(Role.ACTOR))] * failures
    return make_coordinator(job, (), failures=failed, last_event=last_event, server=server)


def with_coordinator(
    make: Callable[[], Answers],
    test: Callable[[JobCoordinator, Answers, Woken], Awaitable[None]],
    clock: Callable[[], float] = lambda: 0.0,
) -> Woken:
    """Answers take no time by this clock."""

    async def run() -> Woken:
        answers, woken = make(), Woken()
        coordinators = JobCoordinators(lambda key, token: answers, woken.wake, Metrics(), time.time, clock)
        try:
            await asyncio.wait_for(
                test(await coordinators.of(KEY, "token", CoordinatorContact("op", time.time), 10), answers, woken), 10
            )
        finally:
            await coordinators.close_all()
        return woken

    return asyncio.run(run())


def listened(*pages: EventPage | None) -> tuple[list[Urgency], Answers]:
    made: list[Answers] = []

    async def listen(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        made.append(answers)
        await coordinator.status()
        await answers.is_reported.wait()

    woken = with_coordinator(lambda: Answers([status()], pages), listen)
    return woken.urgencies, made[0]


def test_a_failure_among_steps_is_an_alarm_and_steps_alone_are_progress() -> None:
    steps = page(EventKind.PUBLISHED, EventKind.STEP_TRAINED)
    failure = page(EventKind.STEP_TRAINED, EventKind.FAILURE_REPORTED, first=3)
    urgencies, answers = listened(steps, failure)

    assert urgencies == [Urgency.PROGRESS, Urgency.ALARM]
    assert answers.listened_after() == [0, 2, 4]


def test_where_nothing_happens_no_one_is_woken() -> None:
    urgencies, answers = listened(page(), None, page())
    assert urgencies == []
    waits = [float(path.split("wait=")[1].split("&")[0]) for path in answers.asked_for_events]
    assert all(0 < wait <= WAIT_SECONDS for wait in waits)


def test_what_was_reported_before_the_first_status_is_not_asked_for() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        assert await coordinator.status() is not None
        await answers.is_reported.wait()
        assert answers.listened_after() == [7, 8], "the status says what came of the first seven"
        assert woken.urgencies == [Urgency.ALARM]

    after_the_status = page(EventKind.FAILURE_REPORTED, first=8)
    with_coordinator(lambda: Answers([status(last_event=7)], [after_the_status]), test)


def test_no_one_listens_before_there_is_a_status() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        assert await coordinator.status() is None
        assert answers.asked_for_events == []
        assert await coordinator.status() is not None
        await answers.is_reported.wait()
        assert answers.listened_after() == [7]

    with_coordinator(lambda: Answers([None, status(last_event=7)]), test)


def test_a_coordinator_that_has_not_read_its_state_yet_is_not_asked_for_all_that_ever_happened() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        for _ in range(3):
            assert await coordinator.status() is not None
        await answers.is_reported.wait()
        assert answers.listened_after() == [7, 7]

    opening, opened = status(server=ServerState.OPENING), status(last_event=7)
    with_coordinator(lambda: Answers([opening, opened, opening], [None]), test)


def test_a_coordinator_that_numbers_its_events_again_from_below_is_received() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_report.clear()
        for _ in range(2):
            await coordinator.status()
        answers.may_report.set()
        await answers.is_reported.wait()
        assert answers.listened_after() == [7, 3, 4]
        assert woken.urgencies == [Urgency.ALARM]

    statuses = [status(last_event=7), status(last_event=3)]
    with_coordinator(lambda: Answers(statuses, [None, page(EventKind.FAILURE_REPORTED, first=4)]), test)


def test_what_an_earlier_operator_may_not_have_reported_is_received_and_reported_if_it_is_recent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        await coordinator.status()
        await answers.is_reported.wait()
        assert answers.listened_after() == [4, 7]
        assert [event.message for event in coordinator.take_unreported(RLJobStatus())] == ["recent"]
        assert coordinator.take_unreported(RLJobStatus()) == []

    monkeypatch.setattr(EARLIER_EVENTS, 3)
    kinds = (EventKind.UNIT_LOST, "old"), (EventKind.UNIT_LOST, "recent"), (EventKind.STEP_TRAINED, "step")
    now = time.time()
    before = [
        CoordinatorEvent(id=5 + n, kind=kind, at=0.0 if text == "old" else now, epoch=1, message=text)
        for n, (kind, text) in enumerate(kinds)
    ]
    with_coordinator(lambda: Answers([status(last_event=7)], [EventPage(events=before, oldest=1)]), test)


def test_what_comes_after_the_first_answer_is_news_whatever_the_clock_of_the_coordinators_node() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        await coordinator.status()
        await answers.is_reported.wait()
        assert [event.message for event in coordinator.take_unreported(RLJobStatus())] == ["an hour behind"]

    lost = CoordinatorEvent(id=8, kind=EventKind.UNIT_LOST, at=time.time() - 3600, epoch=1, message="an hour behind")
    with_coordinator(lambda: Answers([status(last_event=7)], [EventPage(events=[lost], oldest=1)]), test)


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, Urgency.PROGRESS), (1, Urgency.ALARM), (None, Urgency.PROGRESS)], ids=str
)
def test_an_answer_that_comes_late_is_an_alarm_only_if_it_reports_a_failure(
    monkeypatch: pytest.MonkeyPatch, failures: int | None, expected: Urgency
) -> None:
    """None: it is an error."""

    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_answer.clear()
        assert await coordinator.status() is None
        answers.may_answer.set()
        await woken.at_all.wait()
        assert await coordinator.status() == answer
        assert woken.urgencies == [expected]

    monkeypatch.setattr(FIRST_PATIENCE, 0.0)
    answer = None if failures is None else status(failures=failures)
    with_coordinator(lambda: Answers([answer]), test)


def test_an_answer_that_comes_late_is_listened_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next turn, which may be far away: an alarm would bring it."""

    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_answer.clear()
        assert await coordinator.status() is None
        answers.may_answer.set()
        await answers.is_reported.wait()
        assert answers.listened_after() == [7]

    monkeypatch.setattr(FIRST_PATIENCE, 0.0)
    with_coordinator(lambda: Answers([status(last_event=7)]), test)


@pytest.mark.parametrize("failures", [0, None], ids=str)
def test_a_question_that_is_open_keeps_no_later_turn_waiting(
    monkeypatch: pytest.MonkeyPatch, failures: int | None
) -> None:
    """None: it ends in an error."""

    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_answer.clear()
        for _ in range(3):
            assert await coordinator.status() is None
        answers.may_answer.set()
        await woken.at_all.wait()
        assert await coordinator.status() == answer
        assert answers.asked_for_status == 1
        assert woken.urgencies == [Urgency.PROGRESS], "once for each question, however often it was asked about"

    monkeypatch.setattr(FIRST_PATIENCE, 0.0)
    monkeypatch.setattr(PATIENCE, FOR_EVER)
    answer = None if failures is None else status(failures=failures)
    with_coordinator(lambda: Answers([answer]), test)


def test_one_that_was_slow_is_waited_for_again_only_after_it_was_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_answer.clear()
        assert await coordinator.status() is None
        while not answers.asked_for_status:
            await asyncio.sleep(0)
        now[0] += 2 * FOR_EVER
        answers.may_answer.set()
        await woken.at_all.wait()
        assert await coordinator.status() is None, "it could not be reached, which took it too long"

        woken.at_all.clear()
        assert await coordinator.status() is None
        await woken.at_all.wait()
        assert await coordinator.status() == status()

        answers.may_answer.clear()
        waiting = asyncio.create_task(coordinator.status())
        await asyncio.sleep(0)
        answers.may_answer.set()
        assert await waiting == status()
        assert len(woken.urgencies) == 2

    monkeypatch.setattr(FIRST_PATIENCE, 0.0)
    with_coordinator(lambda: Answers([None, status(), status()]), test, lambda: now[0])


def test_a_turn_that_is_given_up_while_it_waits_leaves_a_question_that_wakes_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_answer.clear()
        turn = asyncio.create_task(coordinator.status())
        while not answers.asked_for_status:
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait({turn})
        answers.may_answer.set()
        await woken.at_all.wait()
        assert await coordinator.status() == status()

    monkeypatch.setattr(FIRST_PATIENCE, FOR_EVER)
    with_coordinator(lambda: Answers([status()]), test)


def test_one_that_does_not_answer_is_asked_later_and_later_until_it_does() -> None:
    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        waits = []
        for _ in range(5):
            if await coordinator.status() is None:
                waits.append(coordinator.ask_again_seconds)
        assert waits == [1.0, 2.0, 4.0, 1.0]

    with_coordinator(lambda: Answers([None, None, None, status(), None]), test)


def test_events_that_are_too_long_to_be_received_are_passed_over_with_the_next_status() -> None:
    """The status says what has come of them; to ask for them again would never end."""

    async def test(coordinator: JobCoordinator, answers: Answers, woken: Woken) -> None:
        answers.may_report.clear()
        await coordinator.status()
        answers.may_report.set()
        while len(answers.asked_for_events) < 2:
            await asyncio.sleep(0)
        answers.may_report.clear()
        await coordinator.status()
        answers.may_report.set()
        await answers.is_reported.wait()
        assert answers.listened_after()[-1] == 900

    statuses = [status(last_event=7), status(last_event=900)]
    with_coordinator(lambda: Answers(statuses, [CoordinatorTooLong("GET: too long"), None]), test)
