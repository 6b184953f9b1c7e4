"""What a coordinator's events wake its job for, and what is asked of it."""

import asyncio
from collections.abc import Sequence

from rljob_api.wire.observation import CoordinatorEvent, EventKind, EventPage
from rljob_operator.adapters.coordinators import WAIT_SECONDS, Coordinators
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.work_queue import Cause
from rljob_operator.coordinator_link import CoordinatorUnreachable, Transport

KEY = JobKey("ns", "job")


class Pages:
    """A coordinator that answers with these pages, then is silent."""

    def __init__(self, pages: Sequence[EventPage | None]) -> None:
        self._pages = list(pages)
        self.asked: list[str] = []
        self.is_over = asyncio.Event()

    def to(self, job: JobKey, token: str) -> Transport:
        return self

    async def send(self, method: str, path: str, body: str | None, timeout: float) -> bytes:
        self.asked.append(path)
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


def listened(*pages: EventPage | None) -> tuple[list[Cause], list[str]]:
    async def listen() -> tuple[list[Cause], list[str]]:
        causes: list[Cause] = []
        access = Pages(pages)
        coordinators = Coordinators(access, lambda key, cause: causes.append(cause), Metrics())
        (await coordinators.of(KEY, "token")).listen()
        await asyncio.wait_for(access.is_over.wait(), 30)
        await coordinators.close_all()
        return causes, access.asked

    return asyncio.run(listen())


def test_a_failure_among_steps_is_an_alarm_and_steps_alone_are_progress() -> None:
    steps = page(EventKind.PUBLISHED, EventKind.STEP_TRAINED)
    failure = page(EventKind.STEP_TRAINED, EventKind.FAILURE_REPORTED, first=3)
    causes, asked = listened(steps, failure)

    assert causes == [Cause.PROGRESS, Cause.ALARM]
    assert [path.split("after=")[1].split("&")[0] for path in asked] == ["0", "2", "4"]


def test_where_nothing_happens_nobody_is_woken() -> None:
    causes, asked = listened(page(), None, page())
    assert causes == []
    waits = [float(path.split("wait=")[1].split("&")[0]) for path in asked]
    assert all(0 < wait <= WAIT_SECONDS for wait in waits)
