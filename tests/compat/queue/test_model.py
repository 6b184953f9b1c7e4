"""Random calls on the real servers, each answer compared with a model of a few lines."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tensordict import TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.samplers import BaseSampler, GRPOGroupNSampler, SequentialSampler
from tests.compat.queue.conftest import MakeClient, stored_chunks
from tests.integration.transfer_queue.servers import Servers

FIELDS = ("a", "b", "c")
TASKS = ("s", "t")
STEPS = 120


class Model:
    """One partition: rows in the order in which they came."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.order: list[int] = []
        self.values: dict[int, dict[str, int]] = {}
        """Rows that are not cleared."""
        self.consumed: dict[str, set[int]] = {task: set() for task in TASKS}

    def ready(self, task: str, fields: list[str]) -> list[int]:
        groups = [self.order[first : first + self.group] for first in range(0, len(self.order), self.group)]
        return [row for rows in groups if self._is_whole(rows, task, fields) for row in rows]

    def _is_whole(self, rows: list[int], task: str, fields: list[str]) -> bool:
        return len(rows) == self.group and all(
            row in self.values and row not in self.consumed[task] and set(fields) <= set(self.values[row])
            for row in rows
        )


class Run:
    """A client, the model, and what both received."""

    def __init__(self, client: TransferQueueClient, group: int, random: Random) -> None:
        self.client = client
        self.random = random
        self.model = Model(group)
        self.number = 0

    def step(self) -> None:
        self.random.choice([self.put_new, self.put_more, self.claim, self.claim, self.clear, self.reset, self.read])()

    def put_new(self) -> None:
        # Large ones, too: numbers of rows go by pages.
        count = self.random.choice([1, 2, 5, 300])
        meta = self.client.put(self._data(self._some_fields(), count), partition_id="p")
        assert not set(meta.global_indexes) & set(self.model.order)
        self.model.order += meta.global_indexes
        self.model.values |= {row: {} for row in meta.global_indexes}
        self._note(meta.global_indexes)

    def put_more(self) -> None:
        rows = self._some_rows()
        if rows:
            self.client.put(self._data(self._some_fields(), len(rows)), metadata=self._meta(rows))
            self._note(rows)

    def claim(self) -> None:
        task, fields, group = self.random.choice(TASKS), self._some_fields(), self.model.group
        count = group * self.random.choice([1, 2, 40])
        ready = self.model.ready(task, fields)
        expected = ready[:count] if len(ready) >= count else []
        found = self.client.get_meta(fields, count, "p", task_name=task)
        assert found.global_indexes == expected
        self.model.consumed[task] |= set(expected)
        self._check(found)

    def clear(self) -> None:
        rows = self._some_rows()
        if rows:
            self.client.clear_samples(self._meta(rows))
            for row in rows:
                del self.model.values[row]

    def reset(self) -> None:
        task = self.random.choice(TASKS)
        self.client.reset_consumption("p", task)
        self.model.consumed[task].clear()

    def read(self) -> None:
        found = self.client.get_meta(list(FIELDS), None, "p", mode="force_fetch")
        assert found.global_indexes == [row for row in self.model.order if row in self.model.values]
        for task in TASKS:
            indexes, status = self.client.get_consumption_status(task, "p")
            if indexes is not None and status is not None:
                reported = dict(zip(indexes.tolist(), status.tolist(), strict=True))
                assert {row for row, state in reported.items() if state} == self.model.consumed[task] & set(reported)

    def _data(self, fields: list[str], count: int) -> TensorDict:
        self.last = {}
        for name in fields:
            self.last[name] = list(range(self.number, self.number + count))
            self.number += count
        return TensorDict({name: torch.tensor(values) for name, values in self.last.items()}, batch_size=[count])

    def _note(self, rows: list[int]) -> None:
        for name, values in self.last.items():
            for row, value in zip(rows, values, strict=True):
                self.model.values[row][name] = value

    def _check(self, found: BatchMeta) -> None:
        if not found.size:
            return
        # As a batch from elsewhere, which has to be looked up, and as it came.
        for batch in (found, self._meta(found.global_indexes, found.field_names)):
            data = self.client.get_data(batch)
            for name in found.field_names:
                expected = [self.model.values[row][name] for row in found.global_indexes]
                assert data[name].tolist() == expected

    def _meta(self, rows: list[int], fields: list[str] | None = None) -> BatchMeta:
        return BatchMeta(rows, ["p"] * len(rows), {name: {} for name in fields or []})

    def _some_fields(self) -> list[str]:
        return self.random.sample(FIELDS, self.random.randint(1, len(FIELDS)))

    def _some_rows(self) -> list[int]:
        live = list(self.model.values)
        return self.random.sample(live, min(len(live), self.random.choice([1, 3, 50])))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sampler", [SequentialSampler(), GRPOGroupNSampler(4)], ids=["rows", "groups"])
def test_answers_are_those_of_the_model(
    make_client: MakeClient, servers: Servers, sampler: BaseSampler, seed: int
) -> None:
    client = make_client(sampler)
    group = sampler.n_samples_per_prompt if isinstance(sampler, GRPOGroupNSampler) else 1
    run = Run(client, group, Random(seed))
    for _ in range(STEPS):
        run.step()
    for row in list(run.model.values):
        client.clear_samples(run._meta([row]))
    assert stored_chunks(servers) == 0
