"""The workers: how many turns at the same time, and of which urgency."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rljob_operator.kube.errors import ApiUnreachable, LeadershipLost, refusal
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.work_queue import ALARM_SHARE, SETTLE_SECONDS, NextTurn, Urgency, Workers

CONCURRENCY = 2 * ALARM_SHARE


class Turns:
    """Turns that last until they are released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = asyncio.Event()
        self.answers: dict[str, NextTurn] = {}
        self.errors: dict[str, Exception] = {}

    async def turn(self, key: str) -> NextTurn | None:
        self.begun.append(key)
        await self.release.wait()
        if key in self.errors:
            raise self.errors.pop(key)
        return self.answers.pop(key, None)


def with_workers(test: Callable[[Workers[str], Turns], Awaitable[None]], concurrency: int = CONCURRENCY) -> None:
    async def run() -> None:
        turns = Turns()
        workers: Workers[str] = Workers(turns.turn, concurrency, Metrics())
        running = asyncio.create_task(workers.run())
        try:
            await asyncio.wait_for(test(workers, turns), 30)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_an_alarm_has_a_turn_at_once_where_progress_waits_for_a_slow_server() -> None:
    async def test(workers: Workers[str], turns: Turns) -> None:
        for number in range(3 * CONCURRENCY):
            workers.wake(f"p{number}", Urgency.PROGRESS)
        allowed = CONCURRENCY - CONCURRENCY // ALARM_SHARE
        await until(lambda: len(turns.begun) == allowed)
        await until(lambda: workers.depth() == 3 * CONCURRENCY - allowed)
        workers.wake("alarm", Urgency.ALARM)
        await until(lambda: "alarm" in turns.begun)
        assert turns.begun == [f"p{number}" for number in range(allowed)] + ["alarm"]
        turns.release.set()
        await until(lambda: len(turns.begun) == 3 * CONCURRENCY + 1)

    with_workers(test)


def test_with_one_turn_at_a_time_both_causes_are_served() -> None:
    async def test(workers: Workers[str], turns: Turns) -> None:
        turns.release.set()
        workers.wake("progress", Urgency.PROGRESS)
        workers.wake("alarm", Urgency.ALARM)
        await until(lambda: len(turns.begun) == 2)
        assert turns.begun == ["alarm", "progress"]

    with_workers(test, concurrency=1)


class Clock:
    """Stands in for the module `time`: the burst is short, however slow the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_burst_of_news_of_a_new_pod_is_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("rljob_operator.kube.work_queue.time", clock)

    async def test(workers: Workers[str], turns: Turns) -> None:
        turns.release.set()
        for _ in range(6):
            workers.wake("a", Urgency.PROGRESS)
            await asyncio.sleep(0)
        clock.now = SETTLE_SECONDS
        await until(lambda: bool(turns.begun))
        clock.now += 1.0  # another turn would be due by now
        await until(lambda: workers.depth() == 0)
        assert turns.begun == ["a"]

    with_workers(test)


def test_what_a_turn_wants_to_see_again_it_sees() -> None:
    async def test(workers: Workers[str], turns: Turns) -> None:
        turns.release.set()
        turns.answers["a"] = NextTurn(-1.0, Urgency.ALARM)
        workers.wake("a", Urgency.ALARM)
        await until(lambda: turns.begun == ["a", "a"])

    with_workers(test)


@pytest.mark.parametrize(
    ("error", "is_a_defect"),
    [
        pytest.param(ApiUnreachable("no answer"), False, id="the API server is away"),
        pytest.param(refusal("patch", 409, "Conflict", "somebody else was first"), False, id="the API server says no"),
        pytest.param(LeadershipLost("not renewed"), False, id="another replica leads"),
        pytest.param(TimeoutError(), False, id="the turn took too long"),
        pytest.param(KeyError("spec"), True, id="a defect"),
    ],
)
def test_only_a_defect_is_logged_with_where_it_happened(
    caplog: pytest.LogCaptureFixture, error: Exception, is_a_defect: bool
) -> None:
    async def test(workers: Workers[str], turns: Turns) -> None:
        turns.release.set()
        turns.errors["a"] = error
        workers.wake("a", Urgency.ALARM)
        await until(lambda: turns.begun == ["a", "a"])
        assert workers.lease_lost.is_set() == isinstance(error, LeadershipLost)

    with_workers(test)
    [record] = caplog.records
    assert record.getMessage().startswith("a: ")
    assert bool(record.exc_info) == is_a_defect


def test_a_turn_that_takes_too_long_is_given_up_with_a_sentence_and_taken_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rljob_operator.kube.work_queue.TURN_SECONDS", 0.1)

    async def test(workers: Workers[str], turns: Turns) -> None:
        workers.wake("slow", Urgency.ALARM)
        await until(lambda: len(turns.begun) == 2)

    with_workers(test)
    assert "slow: a turn was given up, since it took longer than 0.1 s; again in" in caplog.text


def test_a_cancellation_that_comes_together_with_a_change_ends_them() -> None:
    """As when a job is deleted and the operator stopped: it went on for ever with nothing to do."""

    async def run() -> None:
        turns = Turns()
        turns.release.set()
        turns.answers["job"] = NextTurn(60.0)
        workers: Workers[str] = Workers(turns.turn, CONCURRENCY, Metrics())
        running = asyncio.create_task(workers.run())
        workers.wake("job", Urgency.ALARM)
        await until(lambda: not turns.answers)
        await asyncio.sleep(0.05)  # it waits for a change, or until the look is due
        workers.wake("job", Urgency.ALARM)
        await asyncio.sleep(0)  # the change has come, and who waits for it does not know yet
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done

    asyncio.run(run())
