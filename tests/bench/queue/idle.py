"""W7: what waiting costs. 200 clients ask for rows that never come, in 8 processes; CPU of all of them and of Redis.

A role waits in turns of a quarter of a second, between which it beats (the beats are not part of this). `one wait` is
a single claim with a deadline as long as the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rljob_api.spec.queue import Waiting
from rljob_workers.rank_loop import TURN_SECONDS
from tests.bench.queue.channel import START_SECONDS, Child
from tests.bench.queue.contestants import OurQueue
from tests.bench.queue.figures import Figure, Unit
from tests.bench.queue.job import OurJob
from tests.bench.queue.processes import cpu_seconds
from tests.bench.queue.progress import report
from tests.bench.queue.shape import make_shape
from tests.bench.queue.workloads import tiny

NUM_PROCESSES = 8
CLIENTS_PER_PROCESS = 25
SETTLE_SECONDS = 3.0
"""Connecting is not waiting."""


@dataclass(frozen=True, slots=True)
class _Case:
    title: str
    waiting: Waiting
    turn_seconds: float


_CASES = (
    _Case("Notify, in turns", Waiting.NOTIFY, TURN_SECONDS),
    _Case("Notify, one wait", Waiting.NOTIFY, 3600.0),
    _Case("Poll, in turns", Waiting.POLL, TURN_SECONDS),
)


def measure_idle(contestants: Sequence[OurQueue], seconds: float) -> list[Figure]:
    figures = []
    for case in _CASES:
        clients = Figure("w7", f"{case.title}: 200 clients", Unit.PERCENT_OF_CORE)
        control = Figure("w7", f"{case.title}: control Redis", Unit.PERCENT_OF_CORE)
        for one in contestants:
            report(f"w7: {one.name}, {case.title}, {seconds:.0f} s")
            used = _used(one, case, seconds)
            clients.add(one.name, 100 * used[0] / seconds)
            control.add(one.name, 100 * used[1] / seconds)
        figures += [clients, control]
    return figures


def _used(contestant: OurQueue, case: _Case, seconds: float) -> tuple[float, float]:
    """CPU seconds of all clients and of the control Redis."""
    with ExitStack() as stack:
        job = OurJob(contestant.transport, contestant.num_units, contestant.program, make_shape(tiny()))
        stack.callback(job.close)
        children = []
        for _ in range(NUM_PROCESSES):
            children.append(Child("tests.bench.queue.idle_client"))
            stack.callback(children[-1].close)
        for child in children:
            child.send(
                "wait",
                endpoints=job.endpoints.model_dump_json(),
                incarnations=[job.begin_incarnation().model_dump_json() for _ in range(CLIENTS_PER_PROCESS)],
                waiting=case.waiting.value,
                seconds=seconds + 2 * SETTLE_SECONDS,
                turn_seconds=case.turn_seconds,
            )
        for child in children:
            child.answer(START_SECONDS)
        time.sleep(SETTLE_SECONDS)
        pids, control = [child.pid for child in children], job.servers.pids[:1]
        before = cpu_seconds(pids), cpu_seconds(control)
        time.sleep(seconds)
        after = cpu_seconds(pids), cpu_seconds(control)
        for child in children:
            child.ask("end")
        return after[0] - before[0], after[1] - before[1]
