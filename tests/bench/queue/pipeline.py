"""W6: the pipeline of a job. Four producers, four forward tasks that depend on each other's fields, one trainer.

First at full speed, then with producers that are held to a share of what it reached: only then a wait says how long
the queue takes, and not how long its slowest consumer does. Waits are those of the forward tasks: the trainer takes
whole slices in order. Each process is one client; the main process is the coordinator.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.bench.queue.channel import START_SECONDS, Child
from tests.bench.queue.contestants import OurQueue
from tests.bench.queue.figures import Figure, Unit
from tests.bench.queue.job import OurJob
from tests.bench.queue.pipeline_shape import PARTITION_ROWS, TASKS, TRAIN, Clocks, make_shape
from tests.bench.queue.processes import private_mebibytes
from tests.bench.queue.progress import report

NUM_PRODUCERS = 4
PACE = 0.4
PACED_SHARE = 8
"""The held run has so many times fewer rows."""
SWEEP_EVERY = 4
"""Partitions."""
MAX_GROWTH_MEBIBYTES = 16.0
"""Of all processes together, from a quarter to the end: 80 bytes for each of 196k rows."""


def measure_pipeline(contestants: Sequence[OurQueue], num_rows: int) -> list[Figure]:
    speed = Figure("w6", "all rows through 5 tasks", Unit.ROWS_PER_SECOND)
    waits = {
        (pace, share): Figure("w6", f"wait p{share}, {title}", Unit.MILLISECONDS)
        for pace, title in ((0.0, "full speed"), (PACE, f"held to {PACE:.0%}"))
        for share in (50, 99)
    }
    memory = {
        (who, when): Figure("w6", f"memory of {who}, {when}", Unit.MEBIBYTES)
        for who in ("Redis", "clients")
        for when in ("1/4", "end")
    }
    growth = {
        who: Figure("w6", f"memory of {who}, growth", Unit.MEBIBYTES, limit=MAX_GROWTH_MEBIBYTES)
        for who in ("Redis", "clients")
    }
    for one in contestants:
        report(f"w6: {one.name}, {num_rows} rows at full speed")
        with _Pipeline(one, num_rows) as pipeline:
            used = pipeline.run(0.0)
            rate = pipeline.rows_per_second()
            _add_waits(waits, one.name, 0.0, pipeline)
        speed.add(one.name, rate)
        for who, (quarter, end) in used.items():
            memory[who, "1/4"].add(one.name, quarter)
            memory[who, "end"].add(one.name, end)
            growth[who].add(one.name, end - quarter)
        fewer = max(4 * PARTITION_ROWS, num_rows // PACED_SHARE // PARTITION_ROWS * PARTITION_ROWS)
        report(f"w6: {one.name}, {fewer} rows at {PACE * rate:.0f} rows/s")
        with _Pipeline(one, fewer) as pipeline:
            pipeline.run(PACE * rate)
            _add_waits(waits, one.name, PACE, pipeline)
    return [speed, *waits.values(), *memory.values(), *growth.values()]


def _add_waits(waits: dict[tuple[float, int], Figure], name: str, pace: float, pipeline: _Pipeline) -> None:
    all_waits = np.concatenate([pipeline.clocks.waits(task) for task in TASKS if task is not TRAIN])
    for share in (50, 99):
        waits[pace, share].add(name, 1e3 * float(np.percentile(all_waits, share)))


class _Pipeline:
    """All processes of one run."""

    def __init__(self, contestant: OurQueue, num_rows: int) -> None:
        self._num_rollouts = num_rows // PARTITION_ROWS
        self._num_rows = num_rows
        self._stack = ExitStack()
        try:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-q-"))
            self.clocks = Clocks(Path(folder), num_rows)
            self._job = OurJob(contestant.transport, contestant.num_units, contestant.program, make_shape(num_rows))
            self._stack.callback(self._job.close)
            self._clients = [self._child() for _ in range(NUM_PRODUCERS + len(TASKS))]
            for client in self._clients:
                client.send(
                    "open",
                    endpoints=self._job.endpoints.model_dump_json(),
                    incarnation=self._job.begin_incarnation().model_dump_json(),
                    folder=folder,
                    num_rows=num_rows,
                )
            for client in self._clients:
                client.answer(START_SECONDS)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
        broken = self._job.admin.check() if error[0] is None else []
        self._stack.close()
        assert not broken, f"invariants of the queue are broken: {broken}"

    def run(self, rows_per_second: float) -> dict[str, tuple[float, float]]:
        """To the last row; gives the MiB of Redis and of the clients at a quarter and at the end."""
        producers, forwards, trainer = (
            self._clients[:NUM_PRODUCERS],
            self._clients[NUM_PRODUCERS:-1],
            self._clients[-1],
        )
        for producer in producers:
            producer.send("produce", rows_per_second=rows_per_second / NUM_PRODUCERS)
        for forward, task in zip(forwards, TASKS, strict=False):
            forward.send("forward", task=task.name)
        used = {"Redis": (0.0, 0.0), "clients": (0.0, 0.0)}
        reported = time.monotonic()
        for rollout in range(self._num_rollouts):
            trainer.ask("train", rollout=rollout)
            self._published(rollout + 1)
            if rollout + 1 == max(1, self._num_rollouts // 4):
                used = {who: (now, now) for who, now in self._memory().items()}
            if time.monotonic() > reported + 10:
                reported = time.monotonic()
                report(f"w6: {(rollout + 1) * PARTITION_ROWS} of {self._num_rows} rows")
        used = {who: (used[who][0], now) for who, now in self._memory().items()}
        produced = sum(producer.answer()["rows"] for producer in producers)
        read = [forward.answer()["rows"] for forward in forwards]
        missed = self.clocks.missed()
        assert not missed, f"rows were not all seen by {missed}"
        assert {produced, *read} == {self._num_rows}, f"{produced} rows were made and {read} were read"
        return used

    def rows_per_second(self) -> float:
        began, ended = self.clocks.span()
        return self._num_rows / (ended - began)

    def _published(self, version: int) -> None:
        self._job.publish(version)
        self.clocks.published = version
        if version % SWEEP_EVERY == 0:
            self._job.admin.sweeper.sweep()

    def _memory(self) -> dict[str, float]:
        return {
            "Redis": private_mebibytes(self._job.servers.pids),
            "clients": private_mebibytes(client.pid for client in self._clients),
        }

    def _child(self) -> Child:
        child = Child("tests.bench.queue.pipeline_client")
        self._stack.callback(child.close)
        return child
