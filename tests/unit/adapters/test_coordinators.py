"""What a coordinator's events wake its job for, and what is asked of it."""

import asyncio
from collections.abc import Sequence

import pytest

from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, EventPage
from rljob_operator.adapters.coordinators import WAIT_SECONDS, Coordinators
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.work_queue import Urgency
from rljob_operator.coordinator_link import CoordinatorUnreachable, Transport
from rljob_operator.core import begin
from tests.unit.core.worlds import REPLICAS, START, key, make_coordinator, make_failure

KEY = JobKey("ns", "job")


class Pages:
    """A coordinator that answers with these pages, then is silent."""

    def __init__(self, pages: Sequence[EventPage | CoordinatorStatus | None]) -> None:
        self._pages = list(pages)
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_over = asyncio.Event()

    def to(self, job: JobKey, token: str) -> Transport:
        return self

    async def send(self, method: str, path: str, body: str | None, timeout: float) -> bytes:
        self.asked.append(path)
        await self.may_answer.wait()
        if not self._pages:
            self.is_over.set()
            await asyncio.Event().wait()
        page = self._pages.pop(0)
        if page is None:
            raise CoordinatorUnreachable("it is away")
        return page.model_dump_json().encode()


def page(*kinds: EventKind, first: int = 1) -> EventPage:
    told = [CoordinatorEvent(id=first + n, kind=kind, at=0.0, epoch=1, message="") for n, kind in enumerate(kinds)]
    return EventPage(events=told, oldest=1)


def listened(*pages: EventPage | None) -> tuple[list[Urgency], list[str]]:
    async def listen() -> tuple[list[Urgency], list[str]]:
        urgencies: list[Urgency] = []
        access = Pages(pages)
        coordinators = Coordinators(access, lambda key, urgency: urgencies.append(urgency), Metrics())
        (await coordinators.of(KEY, "token")).listen()
        await asyncio.wait_for(access.is_over.wait(), 30)
        await coordinators.close_all()
        return urgencies, access.asked

    return asyncio.run(listen())


def test_a_failure_among_steps_is_an_alarm_and_steps_alone_are_progress() -> None:
    steps = page(EventKind.PUBLISHED, EventKind.STEP_TRAINED)
    failure = page(EventKind.STEP_TRAINED, EventKind.FAILURE_REPORTED, first=3)
    urgencies, asked = listened(steps, failure)

    assert urgencies == [Urgency.PROGRESS, Urgency.ALARM]
    assert [path.split("after=")[1].split("&")[0] for path in asked] == ["0", "2", "4"]


def test_where_nothing_happens_nobody_is_woken() -> None:
    urgencies, asked = listened(page(), None, page())
    assert urgencies == []
    waits = [float(path.split("wait=")[1].split("&")[0]) for path in asked]
    assert all(0 < wait <= WAIT_SECONDS for wait in waits)


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, Urgency.PROGRESS), (1, Urgency.ALARM), (None, Urgency.PROGRESS)], ids=str
)
def test_an_answer_that_comes_late_is_an_alarm_only_if_it_tells_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, failures: int | None, expected: Urgency
) -> None:
    """None: it is an error."""
    monkeypatch.setattr("rljob_operator.adapters.coordinators.PATIENCE_SECONDS", 0.0)
    job, _ = begin(RLJobStatus(), REPLICAS, START)
    failed = [make_failure(job, key(Role.ACTOR))] * (failures or 0)
    answer = None if failures is None else make_coordinator(job, (), failures=failed)
    assert asyncio.run(woken_late(answer)) == [expected]


async def woken_late(answer: CoordinatorStatus | None) -> list[Urgency]:
    woken: list[Urgency] = []
    is_woken = asyncio.Event()

    def wake(key: JobKey, urgency: Urgency) -> None:
        woken.append(urgency)
        is_woken.set()

    access = Pages([answer])
    access.may_answer.clear()
    coordinator = await Coordinators(access, wake, Metrics()).of(KEY, "token")
    assert await coordinator.status() is None
    access.may_answer.set()
    await asyncio.wait_for(is_woken.wait(), 30)
    assert (await coordinator.status() is None) == (answer is None)
    return woken
