"""The parts that every role gets, and what its main loop does between two pieces of work: beat, wait, claim, count.

Used by rollout, training and scoring, and by the assembly. Knows the session and the queue, and no engine or trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_api.roles import RoleTopology
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import loading_seconds
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.membership.counters import LOOP_SECONDS
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import LeaseLost
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady

TURN_SECONDS = 0.25
"""Longest silence of a waiting main loop; far below any heartbeat timeout."""


class Draining(Exception):
    """The pod was ordered to drain while the loop waited."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """What the assembly makes for the role of any rank."""

    context: RankContext
    spec: RLJobSpec
    topology: RoleTopology
    session: RankSession
    queue: TransferQueueClient
    timeline: Timeline

    @property
    def partitions(self) -> range:
        """Those that were not trained and recorded when this epoch began."""
        return range(self.session.welcome.restore.version, self.spec.rollout.num_rollouts)

    @property
    def share(self) -> int:
        """Rows that one claimant takes at once: its part of a rollout, in whole groups."""
        groups = -(-self.spec.rollout.batch_size // len(self.topology.gangs))
        return groups * self.spec.rollout.samples_per_prompt

    def loading(self, what: str, *read: str | Path | None) -> AbstractContextManager[None]:
        """Announced as busy for as long as reading these files and folders may take; a missing one counts as empty."""
        seconds = loading_seconds(sum(_bytes_of(Path(path)) for path in read if path is not None))
        return self.session.busy(what, seconds)


def _bytes_of(path: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in path.iterdir()) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def count_claim(session: RankSession, batch: Batch, seconds: float) -> None:
    """Notes for `/metrics` that `batch` was claimed after so long a wait."""
    session.counters["queue_claims"] += 1
    session.counters["queue_rows"] += len(batch.rows)
    session.counters["queue_wait_seconds"] += seconds


def _leases(answer: Batch | Exhausted) -> tuple[str, ...]:
    return (answer.lease,) if isinstance(answer, Batch) and answer.lease else ()


class ForwardClaims(Protocol):
    """What gives rows of a forward task: a queue client, or what shares one among ranks."""

    def claim(self, task: str, partitions: range, max_rows: int, *, timeout: float) -> Claim:
        """See `TransferQueueClient.claim`."""


@dataclass(frozen=True, slots=True)
class RowServer:
    """Claims rows of `task` and works on them."""

    session: RankSession
    queue: ForwardClaims
    task: str
    max_rows: int
    """Rows of one claim; a replica takes no more than its share of a partition."""
    work: Callable[[Batch], None]
    draining: Callable[[], bool]
    """Whether this rank leaves, asked in every turn without rows: of a gang all do, or none."""
    counts: bool = True
    """Whether its rows are this rank's to count: of a gang they are one rank's."""

    def serve_partitions(self, partitions: range) -> None:
        """Works on batches, oldest partition first, until every row of `partitions` is consumed.

        A lease that was lost meanwhile costs the work and nothing else: its rows are claimed again, by any replica.
        Raises Draining when the pod shall drain, IncarnationOver when this incarnation is fenced.
        """
        while not isinstance(batch := self._await_claim(partitions), Exhausted):
            with suppress(LeaseLost):
                self.work(batch)
                if self.counts:
                    self.session.advance(len(batch.rows))

    def serve_again(self, partitions: range) -> None:
        """Works on what is ready now of partitions that were done: rows, or results, may have been lost since."""
        while isinstance(batch := self.queue.claim(self.task, partitions, self.max_rows, timeout=0), Batch):
            self.session.pulse(leases=_leases(batch))
            with suppress(LeaseLost):
                self.work(batch)

    def _await_claim(self, partitions: range) -> Batch | Exhausted:
        """Claims in turns until there is work, beating in between."""
        began = time.monotonic()
        while True:
            answer = self.queue.claim(self.task, partitions, self.max_rows, timeout=TURN_SECONDS)
            if not isinstance(answer, NotReady):
                if isinstance(answer, Batch) and self.counts:
                    count_claim(self.session, answer, time.monotonic() - began)
                self.session.pulse(leases=_leases(answer))
                return answer
            self.session.pulse(waiting=answer.waiting_for, leases=())
            if self.draining():
                raise Draining


def idle_until_ordered(
    session: RankSession,
    holds: WeightId | None = None,
    *,
    serve: Callable[[], None] | None = None,
    draining: Callable[[], bool] | None = None,
) -> None:
    """Beats until the pod shall drain; a rank that is done does not exit by itself. `serve` is called in every turn.

    `draining` takes the place of the session's: of a gang all ranks leave, or none.
    """
    while not (session.draining if draining is None else draining()):
        if serve is not None:
            serve()
        session.pulse(waiting="the end of the job", leases=(), holds=holds)
        time.sleep(TURN_SECONDS)


class LostTime:
    """Counts from when it is made; called from one thread, at least as often as the rank beats.

    lost = LostTime(session.counters, STARVED_SECONDS)
    while working:
        ...
        lost.count(share)       of the time since the last call
    """

    def __init__(
        self, counters: MutableMapping[str, float], name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` is the counter of the time that was lost."""
        self._counters = counters
        self._name = name
        self._clock = clock
        self._counted_at = clock()
        counters[LOOP_SECONDS] = counters[name] = 0.0

    def count(self, share: float) -> None:
        """The time since the last call; `share` of it, from 0 to 1, was lost."""
        now = self._clock()
        passed, self._counted_at = now - self._counted_at, now
        self._counters[LOOP_SECONDS] += passed
        self._counters[self._name] += share * passed
