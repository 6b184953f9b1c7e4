"""Many producer and consumer processes on one queue, some of which are killed and followed by others.

RLJOB_STRESS_ROLLOUTS makes it longer.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from rljob_api.names import Epoch, Role, RolloutId
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Fenced, LeaseLost
from rljob_workers.transfer_queue.types import (
    Batch,
    Exhausted,
    GroupRows,
    QueueShape,
    QueueTiming,
    Task,
    TaskKind,
    Ticket,
    Withheld,
)
from tests.integration.children import die_with_tests
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.weights import weight

NUM_ROLLOUTS = int(os.environ.get("RLJOB_STRESS_ROLLOUTS", "8"))
NUM_PRODUCERS, NUM_CONSUMERS = 8, 16
NUM_KILLS = 16
ENDS_WITHIN_SECONDS = 60.0 * NUM_ROLLOUTS
FIRST = Task("first", TaskKind.FORWARD, ("tokens",), ("scores",))
SECOND = Task("second", TaskKind.FORWARD, ("tokens", "scores"), ("marks",))
TRAIN = Task("train", TaskKind.TRAINING, ("tokens", "scores", "marks"))
SHAPE = QueueShape(
    batch_size=64,
    samples_per_prompt=8,
    max_staleness=NUM_ROLLOUTS,
    num_rollouts=NUM_ROLLOUTS,
    max_prompt_kills=1000,
    max_attempts=1000,
    generated_fields=("tokens",),
    tasks=(FIRST, SECOND, TRAIN),
)


@pytest.fixture
def job(servers: Servers) -> Iterator[Job]:
    made = Job(servers, SHAPE, timing=QueueTiming(lease_seconds=1.0))
    yield made
    made.close()


class Crew:
    """The processes: each has an incarnation, a file that it writes what it did to, and perhaps a successor."""

    def __init__(self, job: Job, folder: Path, random: Random) -> None:
        self._job, self._folder, self._random = job, folder, random
        self._serials = 0
        self.pids: dict[RankKey, int] = {}
        self.killed: set[int] = set()
        """Serials of those that were killed while they worked."""
        self._serial_of: dict[RankKey, int] = {}
        for replica in range(NUM_PRODUCERS):
            self.start(RankKey(role=Role.ROLLOUT, replica=100 + replica))
        for replica in range(NUM_CONSUMERS):
            self.start(RankKey(role=Role.ACTOR_FWD, replica=100 + replica))

    def start(self, key: RankKey) -> None:
        """A new incarnation, which ends the one that the rank had."""
        self._serials += 1
        incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=secrets.token_hex(6))
        self._job.admin.begin_incarnation(incarnation)
        work = produce if key.role is Role.ROLLOUT else consume
        self._serial_of[key] = self._serials
        self.pids[key] = _forked(self._job, incarnation, work, self._serials, self._folder / f"{self._serials}.log")

    def strike(self) -> None:
        """SIGKILL of anybody, at any place; a successor takes over, or the leases end by time."""
        key = self._random.choice(sorted(self.pids, key=str))
        self._kill(key)
        if key.role is Role.ROLLOUT or self._random.random() < 0.5:
            self.start(key)

    def stop(self) -> None:
        for key in list(self.pids):
            self._kill(key)

    def _kill(self, key: RankKey) -> None:
        pid = self.pids.pop(key)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.killed.add(self._serial_of[key])


def _forked(job: Job, incarnation: Incarnation, work: Callable[..., None], serial: int, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_tests()
        torch.set_num_threads(1)
        with log.open("w", buffering=1) as out:
            try:
                queue = TransferQueueClient(job.servers.endpoints, SHAPE, incarnation, timing=job.timing)
                work(queue, serial, lambda line: print(line, file=out))
            except Fenced:
                pass
            except BaseException as error:
                print(f"failed {error!r}", file=out)
    finally:
        os._exit(0)


def tokens_of(rollout: int, row: int) -> list[int]:
    return [rollout * SHAPE.rows_per_partition + row] * (1 + row % 5)


def produce(queue: TransferQueueClient, _serial: int, _note: Callable[[str], None]) -> None:
    while True:
        tickets = queue.claim_tickets(weight(0), 4, 0.2)
        if not isinstance(tickets, Withheld):
            queue.put_groups([_group(ticket) for ticket in tickets])


def _group(ticket: Ticket) -> GroupRows:
    num = SHAPE.samples_per_prompt
    rows = [
        torch.tensor(tokens_of(ticket.rollout_id, ticket.group * num + index), dtype=torch.int32)
        for index in range(num)
    ]
    return GroupRows(ticket, {"tokens": Jagged.from_rows(rows)}, [weight(0)] * num, [weight(0)] * num)


def consume(queue: TransferQueueClient, serial: int, note: Callable[[str], None]) -> None:
    """Notes every put before and after it: the number of the put is what it writes."""
    random, puts = Random(serial), 0
    while True:
        task = random.choice((FIRST, SECOND))
        batch = queue.claim(task.name, range(NUM_ROLLOUTS), random.randint(1, 40), timeout=0.05)
        if not isinstance(batch, Batch):
            if isinstance(batch, Exhausted):
                time.sleep(0.05)
            continue
        for row, tokens in zip(batch.rows.tolist(), batch.columns["tokens"].rows(), strict=True):
            if tokens.tolist() != tokens_of(batch.rollout_id, row):
                note(f"wrong train_{batch.rollout_id} row {row}: {tokens.tolist()}")
        puts += 1
        number = serial * 100_000 + puts
        rows = ",".join(map(str, batch.rows.tolist()))
        note(f"tries {number} {task.name} {batch.rollout_id} {rows}")
        try:
            queue.put(batch, {task.writes[0]: Jagged.scalars(torch.full((len(batch.rows),), number))}, weight=None)
        except LeaseLost:
            continue
        note(f"did {number} {task.name} {batch.rollout_id} {rows}")


def test_every_row_is_consumed_once_by_each_task_under_kills(job: Job, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    random = Random(seed)
    crew = Crew(job, tmp_path, random)
    deadline = time.monotonic() + ENDS_WITHIN_SECONDS
    strikes = sorted(random.randrange(NUM_ROLLOUTS * SHAPE.rows_per_partition * 2) for _ in range(NUM_KILLS))
    try:
        while (done := rows_done(job)) < NUM_ROLLOUTS * SHAPE.rows_per_partition * 2:
            assert time.monotonic() < deadline, f"seed {seed}: {done} rows are done; {job.admin.stats()}"
            while strikes and done >= strikes[0]:
                strikes.pop(0)
                crew.strike()
            time.sleep(0.02)
    finally:
        crew.stop()
    for rollout in range(NUM_ROLLOUTS):
        assert_consumed_once(job, tmp_path, crew.killed, rollout)
    job.prove()


def rows_done(job: Job) -> int:
    with job.servers.control.admin() as admin:
        names = [f"p:{rollout}:done" for rollout in range(NUM_ROLLOUTS)]
        return sum(int(admin.hget(name, task.name) or 0) for name in names for task in (FIRST, SECOND))


def assert_consumed_once(job: Job, folder: Path, killed: set[int], rollout: int) -> None:
    """What stands in each row was written by the one put that succeeded, or by one that was killed on the way."""
    lines = [line.split() for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    assert [line for line in lines if line[0] not in ("tries", "did")] == []
    answer = job.actor.claim_training(TRAIN.name, RolloutId(rollout), 0, SHAPE.rows_per_partition, 0, 1, timeout=10)
    assert isinstance(answer, Batch)
    for task in (FIRST, SECOND):
        tries, did = puts_of(lines, "tries", task, rollout), puts_of(lines, "did", task, rollout)
        written = [column.item() for column in answer.columns[task.writes[0]].rows()]
        for row, number in zip(answer.rows.tolist(), written, strict=True):
            assert number in tries[row]
            assert did[row] in ([number], []), f"{task.name} row {row}: {did[row]}, written is {number}"
            assert did[row] or number // 100_000 in killed
    counts = Counter(answer.rows.tolist())
    assert sorted(counts) == list(range(SHAPE.rows_per_partition))


def puts_of(lines: list[list[str]], verb: str, task: Task, rollout: int) -> dict[int, list[int]]:
    """Row -> numbers of the puts that it was part of."""
    found: dict[int, list[int]] = {row: [] for row in range(SHAPE.rows_per_partition)}
    for what, number, name, at, rows in (line for line in lines if len(line) == 5):
        if (what, name, int(at)) == (verb, task.name, rollout):
            for row in rows.split(","):
                found[int(row)].append(int(number))
    return found
