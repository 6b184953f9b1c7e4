"""Where jobs are built: large ones one at a time and never in the loop; which jobs keep what was built for them."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cluster.builds import LARGE_BYTES, BuildThreads, RetainedBuilds
from rljob_operator.kube.views import JobKey

PATIENCE_SECONDS = 60.0
"""Never measured."""


def wait_for(event: threading.Event) -> str:
    assert event.wait(PATIENCE_SECONDS)
    return threading.current_thread().name


def test_a_job_is_built_and_the_loop_turns_while_large_ones_are() -> None:
    async def turns() -> None:
        builds, over = BuildThreads(), threading.Event()
        large = [asyncio.create_task(builds.run(LARGE_BYTES + 1, partial(wait_for, over))) for _ in range(5)]
        for _ in range(3):  # each goes through the loop and a thread
            assert await builds.run(100, threading.get_ident) != threading.get_ident()
        assert not any(task.done() for task in large)
        over.set()
        assert all(name.startswith("build") for name in await asyncio.gather(*large))

    asyncio.run(turns())


def test_large_jobs_are_built_one_at_a_time() -> None:
    async def most_at_once() -> int:
        builds, lock = BuildThreads(), threading.Lock()
        running, most = 0, 0

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            threading.Event().wait(0.001)
            with lock:
                running -= 1

        await asyncio.gather(*(builds.run(LARGE_BYTES + 1, work) for _ in range(8)))
        return most

    assert asyncio.run(most_at_once()) == 1


def test_an_error_of_a_build_is_its_callers() -> None:
    def fail() -> None:
        raise ValueError("spec: no")

    async def run() -> str:
        builds = BuildThreads()
        try:
            await builds.run(LARGE_BYTES + 1, fail)
        except ValueError as error:
            return f"{error} {await builds.run(LARGE_BYTES + 1, lambda: 'and the next one')}"
        return ""

    assert asyncio.run(run()) == "spec: no and the next one"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12))))
def test_what_is_retained_is_bounded_and_is_of_the_jobs_that_had_a_turn_last(turns: list[tuple[str, int]]) -> None:
    retained = RetainedBuilds(10)
    there: dict[JobKey, int] = {}
    for name, size in turns:
        key = JobKey("ns", name)
        there.pop(key, None)
        there[key] = size
        gone = retained.used(key, size)
        assert gone == list(there)[: len(gone)]
        for each in gone:
            del there[each]
        assert sum(there.values()) <= 10
    for key in list(there):
        retained.forgotten(key)
    assert retained.used(JobKey("ns", "last"), 10) == []
