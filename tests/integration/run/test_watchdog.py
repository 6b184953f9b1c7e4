"""How long what serves the ranks may be silent: longest until its first answer, since its imports take long."""

import asyncio
import sys
from typing import cast

import pytest

from rljob_api.machine.process_stat import progress_of
from rljob_operator.local.journal import Journal
from rljob_operator.local.pods import Pods
from rljob_operator.local.processes import Infrastructure
from rljob_operator.local.watchdog import LONGEST_PAUSE_SECONDS, SILENCE_LIMIT_SECONDS, START_LIMIT_SECONDS, Watchdog

from .job import stop

STOPPED_LIMIT_SECONDS = 5.0
START_SECONDS = 200.0
assert START_SECONDS > START_LIMIT_SECONDS


class Recorded(list[str]):
    """A journal that keeps the messages."""

    def note(self, _at: float, reason: str, message: str) -> None:
        assert reason == "Hang"
        self.append(message)


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("has_answered", [False, True])
def test_a_process_that_still_starts_is_given_the_time_of_a_start_unless_it_is_stopped(
    has_answered: bool, is_stopped: bool
) -> None:
    asyncio.run(watch_a_silent_coordinator(has_answered, is_stopped))


async def watch_a_silent_coordinator(has_answered: bool, is_stopped: bool) -> None:
    now, reported = [0.0], Recorded()
    infrastructure = Infrastructure(ended=lambda _: None, log_tail=lambda _: "")
    await infrastructure.start({"coordinator": lambda: asyncio.create_subprocess_exec("sleep", "300")})
    no_parent = cast(Pods, None)
    watchdog = Watchdog(
        infrastructure,
        no_parent,
        (),
        cast(Journal, reported),
        stopped_limit_seconds=STOPPED_LIMIT_SECONDS,
        start_limit_seconds=START_SECONDS,
        clock=lambda: now[0],
    )
    await watchdog.check()
    if has_answered:
        watchdog.answered("coordinator")
    limit = SILENCE_LIMIT_SECONDS if has_answered else START_SECONDS
    process = infrastructure.running("coordinator")
    assert process is not None
    if is_stopped:
        stop(process.pid)
        limit = STOPPED_LIMIT_SECONDS
    now[0] = 10 * limit  # this process was stopped, and could receive no one
    await watchdog.check()
    for _ in range(round(limit) - round(LONGEST_PAUSE_SECONDS)):
        now[0] += 1
        await watchdog.check()
    assert reported == []
    now[0] += 1
    await watchdog.check()
    idle = "" if has_answered else " and makes no progress"
    how = f"{limit + 1:.0f} s and is stopped (SIGSTOP)" if is_stopped else f"{limit:.0f} s{idle}"
    assert reported == [f"coordinator (process {process.pid}) has not answered in {how}; it is killed"]
    await asyncio.wait_for(process.wait(), 240)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param("while True: pass", id="computes"),
        pytest.param("while True: open('/dev/zero', 'rb').read(1 << 20); time.sleep(0.01)", id="reads"),
    ],
)
def test_a_start_goes_on_as_long_as_it_reads_or_computes(work: str) -> None:
    asyncio.run(watch_a_slow_start(work))


async def watch_a_slow_start(work: str) -> None:
    now, reported = [0.0], Recorded()
    infrastructure = Infrastructure(ended=lambda _: None, log_tail=lambda _: "")
    program = (sys.executable, "-c", f"import time\n{work}")
    await infrastructure.start({"coordinator": lambda: asyncio.create_subprocess_exec(*program)})
    watchdog = Watchdog(
        infrastructure,
        cast(Pods, None),
        (),
        cast(Journal, reported),
        stopped_limit_seconds=5,
        start_limit_seconds=0,
        clock=lambda: now[0],
    )
    process = infrastructure.running("coordinator")
    assert process is not None
    for _ in range(3):
        before = progress_of(process.pid)
        await watchdog.check()
        while progress_of(process.pid) == before:  # a second of its CPU, or a mebibyte
            await asyncio.sleep(0.05)
        for _ in range(round(START_LIMIT_SECONDS / LONGEST_PAUSE_SECONDS)):
            now[0] += LONGEST_PAUSE_SECONDS
            await watchdog.check()
    assert reported == []
    process.kill()
    await process.wait()


def test_the_time_before_an_answer_is_no_silence() -> None:
    asyncio.run(watch_a_coordinator_that_is_stopped_after_it_has_answered())


async def watch_a_coordinator_that_is_stopped_after_it_has_answered() -> None:
    now, reported = [0.0], Recorded()
    infrastructure = Infrastructure(ended=lambda _: None, log_tail=lambda _: "")
    await infrastructure.start({"coordinator": lambda: asyncio.create_subprocess_exec("sleep", "300")})
    watchdog = Watchdog(
        infrastructure,
        cast(Pods, None),
        (),
        cast(Journal, reported),
        stopped_limit_seconds=5,
        start_limit_seconds=START_SECONDS,
        clock=lambda: now[0],
    )
    process = infrastructure.running("coordinator")
    assert process is not None
    stop(process.pid)
    await watchdog.check()
    now[0] += 2
    watchdog.answered("coordinator")  # what it had sent before it was stopped
    for _ in range(3):
        await watchdog.check()
        now[0] += 2
    assert reported == [], "it was silent for 4 s at the last look"
    await watchdog.check()
    assert reported == [
        f"coordinator (process {process.pid}) has not answered in 6 s and is stopped (SIGSTOP); it is killed"
    ]
    await asyncio.wait_for(process.wait(), 240)
