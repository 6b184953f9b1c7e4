"""One process of W6: a producer of groups, a forward task or the trainer. Computes nothing; moves real rows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from rljob_api.names import Lineage, RolloutId, WeightVersion
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, Exhausted, GroupRows, Ticket, Withheld
from tests.bench.queue.channel import Handler, serve
from tests.bench.queue.pipeline_shape import GROUP_ROWS, PARTITION_ROWS, TASKS, TRAIN, Clocks, make_shape

PUT_GROUPS = 8
FORWARD_ROWS = 256
TRAINING_ROWS = 512
TURN_SECONDS = 0.25
WITHHELD_SECONDS = 0.02
"""A rollout asks again when it holds newer weights; here it looks for them so often."""
PATIENCE_SECONDS = 120.0
"""Without any progress: then something is broken."""


class PipelineClient:
    """Runs one of its orders to the end of the data."""

    def open(self, endpoints: str, incarnation: str, folder: str, num_rows: int) -> dict[str, int]:
        self._shape = make_shape(num_rows)
        self._clocks = Clocks(Path(folder), num_rows)
        self._queue = TransferQueueClient(
            Endpoints.model_validate_json(endpoints), self._shape, Incarnation.model_validate_json(incarnation)
        )
        chance = torch.Generator().manual_seed(1)
        lengths = torch.randint(8, 17, (GROUP_ROWS,), generator=chance)
        self._columns = {
            "tokens": Jagged.from_lengths(torch.zeros(int(lengths.sum()), dtype=torch.int32), lengths),
            "response_lengths": Jagged.scalars(lengths),
            "rewards": Jagged.scalars(torch.zeros(GROUP_ROWS)),
        }
        return {}

    def produce(self, rows_per_second: float) -> dict[str, int]:
        """Groups until there is no ticket left; at most so many rows a second, 0: as many as it can."""
        produced, began, progress = 0, time.monotonic(), time.monotonic()
        while True:
            held = _weight(self._clocks.published)
            tickets = self._queue.claim_tickets(held, PUT_GROUPS, WITHHELD_SECONDS)
            if tickets is Withheld.NONE_OPEN:
                return {"rows": produced}
            if isinstance(tickets, Withheld):
                assert time.monotonic() < progress + PATIENCE_SECONDS, f"no ticket: {tickets}"
                continue
            progress = time.monotonic()
            if rows_per_second:
                time.sleep(max(0.0, began + produced / rows_per_second - time.monotonic()))
            made_by = [held] * GROUP_ROWS
            accepted = self._queue.put_groups([GroupRows(each, self._columns, made_by, made_by) for each in tickets])
            assert all(accepted), "a group was refused"
            self._stamp_groups(tickets, time.monotonic())
            produced += len(tickets) * GROUP_ROWS

    def forward(self, task: str) -> dict[str, int]:
        """Claims and writes until every row of every partition is done."""
        field = next(one for one in TASKS if one.name == task).writes[0]
        done, progress = 0, time.monotonic()
        while True:
            batch = self._queue.claim(task, range(self._shape.num_rollouts), FORWARD_ROWS, timeout=TURN_SECONDS)
            if isinstance(batch, Exhausted):
                return {"rows": done}
            if not isinstance(batch, Batch):
                assert time.monotonic() < progress + PATIENCE_SECONDS, f"no rows: {batch.waiting_for}"
                continue
            progress = time.monotonic()
            self._clocks.stamp(task, batch.rollout_id, batch.rows, progress)
            self._queue.put(batch, {field: self._derived(batch)}, weight=_weight(self._clocks.published))
            self._clocks.stamp(field, batch.rollout_id, batch.rows, time.monotonic())
            done += len(batch.rows)

    def train(self, rollout: int) -> dict[str, int]:
        """One rollout, in slices."""
        num_slices = PARTITION_ROWS // TRAINING_ROWS
        for index in range(num_slices):
            batch = self._claim_training(rollout, index)
            self._clocks.stamp(TRAIN.name, rollout, batch.rows, time.monotonic())
        self._queue.commit_training(TRAIN.name, RolloutId(rollout), range(num_slices))
        return {}

    def handlers(self) -> dict[str, Handler]:
        return {call.__name__: call for call in (self.open, self.produce, self.forward, self.train)}

    def _claim_training(self, rollout: int, index: int) -> Batch:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            batch = self._queue.claim_training(
                TRAIN.name, RolloutId(rollout), index, TRAINING_ROWS, 0, 1, timeout=TURN_SECONDS
            )
            if isinstance(batch, Batch):
                return batch
            assert time.monotonic() < until, batch

    def _derived(self, batch: Batch) -> Jagged:
        """A number per token, or per row where the task reads no tokens."""
        tokens = batch.columns.get("tokens")
        if tokens is None:
            return Jagged.scalars(torch.zeros(len(batch.rows)))
        return Jagged(torch.zeros(tokens.values.shape[0]), tokens.offsets)

    def _stamp_groups(self, tickets: list[Ticket], moment: float) -> None:
        for ticket in tickets:
            rows = np.arange(GROUP_ROWS, dtype=np.uint32) + np.uint32(ticket.group * GROUP_ROWS)
            self._clocks.stamp("generated", ticket.rollout_id, rows, moment)


def _weight(version: int) -> WeightId:
    return WeightId(lineage=Lineage(1), version=WeightVersion(version))


if __name__ == "__main__":
    serve(PipelineClient().handlers())
