"""A process with one client of our queue: the calls of a rollout, a forward role and a trainer, timed."""

from __future__ import annotations

import time
from typing import Any

import torch

from rljob_api.names import Lineage, RolloutId, WeightVersion
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, GroupRows
from tests.bench.queue.channel import serve
from tests.bench.queue.client import BenchClient
from tests.bench.queue.shape import READ, TRAIN, make_shape
from tests.bench.queue.workloads import GROUP_ROWS, Workload, make_columns, rows_between, wrong_rows

WAIT_SECONDS = 10.0


class OurClient(BenchClient):
    """One partition (rollout) per round; results, training and publishing come after what is timed."""

    def open(self, endpoints: str, incarnation: str, workload: dict[str, Any]) -> Any:
        self._workload = Workload(**workload)
        self._columns = make_columns(self._workload)
        self._groups = [
            {field: rows_between(column, first, first + GROUP_ROWS) for field, column in self._columns.items()}
            for first in range(0, self._workload.num_rows, GROUP_ROWS)
        ]
        shape = make_shape(self._workload)
        self._queue = TransferQueueClient(
            Endpoints.model_validate_json(endpoints), shape, Incarnation.model_validate_json(incarnation)
        )
        self._got: list[Batch] = []
        return {}

    def put(self, turn: int) -> dict[str, Any]:
        """`put` has put_groups only, `put+tickets` also the draw of the tickets."""
        weight = _weight(turn)
        put_seconds = ticket_seconds = 0.0
        for _ in range(0, self._workload.num_rows, self._workload.put_rows):
            limit = self._workload.put_rows // GROUP_ROWS
            began = time.perf_counter()
            tickets = self._queue.claim_tickets(weight, limit, WAIT_SECONDS)
            drawn = time.perf_counter()
            assert isinstance(tickets, list), tickets
            assert len(tickets) == limit, tickets
            made_by = [weight] * GROUP_ROWS
            groups = [GroupRows(ticket, self._groups[ticket.group], made_by, made_by) for ticket in tickets]
            handed = time.perf_counter()
            accepted = self._queue.put_groups(groups)
            put_seconds += time.perf_counter() - handed
            ticket_seconds += drawn - began
            assert all(accepted), "a group was refused"
        return {"put": put_seconds, "put+tickets": put_seconds + ticket_seconds}

    def claim(self, turn: int, times: int, task: str) -> dict[str, Any]:
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            batch = self._claim(turn, WAIT_SECONDS)
            seconds.append(time.perf_counter() - began)
            assert isinstance(batch, Batch), batch
            assert len(batch.rows) == self._workload.claim_rows, batch
            self._got.append(batch)
        return {"claim": seconds}

    def drain(self, turn: int, start_at: float) -> dict[str, Any]:
        time.sleep(max(0.0, start_at - time.monotonic()))
        began, numbers, requests = time.monotonic(), [], 0
        while isinstance(batch := self._claim(turn, 0), Batch):
            self._got.append(batch)
            numbers.extend(batch.rows.tolist())
            requests += 1
        return {"began": began, "ended": time.monotonic(), "numbers": numbers, "requests": requests}

    def verify(self) -> dict[str, Any]:
        wrong = []
        for batch in self._got:
            wrong += wrong_rows(self._columns, {field: batch.columns[field].rows() for field in self._columns})
        return {"wrong": wrong[:5], "rows": sum(len(batch.rows) for batch in self._got)}

    def finish(self, turn: int) -> dict[str, Any]:
        """Results for what was claimed."""
        for batch in self._got:
            score = Jagged.scalars(torch.zeros(len(batch.rows)))
            self._queue.put(batch, {READ.writes[0]: score}, weight=_weight(turn))
        self._got.clear()
        return {}

    def clear(self, turn: int) -> dict[str, Any]:
        """One optimizer step on the whole partition; the queue admin publishes and sweeps after it."""
        rollout, rows = RolloutId(turn), self._workload.num_rows
        batch = self._queue.claim_training(TRAIN.name, rollout, 0, rows, 0, 1, timeout=WAIT_SECONDS)
        assert isinstance(batch, Batch), batch
        self._queue.commit_training(TRAIN.name, rollout, [0])
        return {}

    def give_back(self) -> dict[str, Any]:
        for batch in reversed(self._got):
            self._queue.release(batch)
        self._got.clear()
        return {}

    def _claim(self, turn: int, timeout: float) -> object:
        return self._queue.claim(READ.name, range(turn, turn + 1), self._workload.claim_rows, timeout=timeout)


def _weight(turn: int) -> WeightId:
    return WeightId(lineage=Lineage(1), version=WeightVersion(turn))


if __name__ == "__main__":
    client = OurClient()
    serve({"open": client.open, **client.handlers()})
