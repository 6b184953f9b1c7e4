"""`StreamingDataset` and `StreamingDataLoader`: micro-batches of one data-parallel rank as PyTorch data.

For users. Each worker process of a loader has a client of its own.
"""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader, IterableDataset

from rljob_transfer_queue import interface
from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.settings import Servers

Part = tuple[TensorDict, BatchMeta]
EMPTY_SECONDS = 0.05
"""Between two questions where there are not enough rows."""


def fetch_batch(
    tq_client: TransferQueueClient,
    data_fields: Sequence[str],
    batch_size: int,
    partition_id: str,
    task_name: str,
    sampling_config: Mapping[str, Any],
    batch_index: int,
) -> tuple[TensorDict | None, BatchMeta]:
    """The next batch of a rank; None where there are not enough rows."""
    meta = tq_client.get_meta(
        data_fields,
        batch_size,
        partition_id,
        task_name=task_name,
        sampling_config={**sampling_config, "batch_index": batch_index},
    )
    return (tq_client.get_data(meta), meta) if meta.size else (None, meta)


def chunk_batch_fn(td: TensorDict, batch_meta: BatchMeta, micro_batch_size: int = 1) -> list[Part]:
    """Cuts a batch into micro-batches; the last may be smaller."""
    if not isinstance(td, TensorDict):
        raise TypeError(f"chunk_batch_fn: {type(td).__name__} is no TensorDict.")
    num_rows = td.batch_size[0] if td.batch_size else 0
    if not isinstance(micro_batch_size, int) or not 0 < micro_batch_size <= num_rows:
        raise ValueError(f"micro_batch_size: {micro_batch_size!r} must be from 1 to the batch's {num_rows} rows.")
    nested = {name: value for name, value in td.items() if isinstance(value, torch.Tensor) and value.is_nested}
    rows = {name: (value.unbind(), value.layout) for name, value in nested.items()}
    dense = td.select(*(name for name in td.keys() if name not in nested))  # noqa: SIM118 - its own iteration is by row
    parts = []
    for first in range(0, num_rows, micro_batch_size):
        cut = slice(first, min(first + micro_batch_size, num_rows))
        part = dense[cut]
        for name, (values, layout) in rows.items():
            part[name] = torch.nested.as_nested_tensor(list(values[cut]), layout=layout)
        parts.append((part, batch_meta[cut]))
    return parts


class StreamingDataset(IterableDataset[Part]):
    """Batches of `batch_size` rows for one data-parallel rank, cut into micro-batches; kept for further passes.

    dataset = StreamingDataset(config, 64, 8, ["input_ids"], "train_0", "actor_train", dp_rank=rank)
    for data, meta in StreamingDataLoader(dataset): ...
    dataset.reset()                  the same batches again
    dataset.step("train_1")          the next partition

    Needs the RankAwareSampler and polling_mode. Without `should_check_consumption_status` it never ends by itself.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | Servers | None,
        batch_size: int,
        micro_batch_size: int,
        data_fields: Sequence[str],
        partition_id: str,
        task_name: str,
        dp_rank: int,
        should_check_consumption_status: bool = False,
        fetch_batch_fn: Callable[..., tuple[TensorDict | None, BatchMeta]] | None = None,
        process_batch_fn: Callable[..., Sequence[Part]] | None = None,
    ) -> None:
        """`config`: as for `init`, or None for the servers of this process's `init`."""
        for name, value, least in (("micro_batch_size", micro_batch_size, 1), ("dp_rank", dp_rank, 0)):
            if value < least:
                raise ValueError(f"StreamingDataset: {name} {value} must be greater than or equal to {least}.")
        if not data_fields:
            raise ValueError("StreamingDataset: data_fields is empty. Name at least one field.")
        self._servers = interface.servers_of(config)
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.data_fields = list(data_fields)
        self.partition_id = partition_id
        self.task_name = task_name
        self.sampling_config = {"dp_rank": dp_rank}
        self.should_check_consumption_status = should_check_consumption_status
        self._fetch = fetch_batch_fn or fetch_batch
        self._process = process_batch_fn or chunk_batch_fn
        self._client: TransferQueueClient | None = None
        self._client_process = 0
        self.buffer: list[Part] = []
        """Batches that were fetched from this partition."""
        self.batch_index = 0

    def __iter__(self) -> Iterator[Part]:
        """Goes on where it was; see `reset` and `step`."""
        if self._client is None or self._client_process != os.getpid():
            # A worker of a loader is a fork and must not speak on its parent's connections.
            self._client = TransferQueueClient(f"dataset-{secrets.token_hex(4)}", self._servers)
            self._client_process = os.getpid()
            weakref.finalize(self, self._client.close)
        while not self._is_over(self._client):
            if self.batch_index < len(self.buffer):
                data, meta = self.buffer[self.batch_index]
                self.batch_index += 1
                yield from self._process(data, meta, micro_batch_size=self.micro_batch_size)
                continue
            found, meta = self._fetch(
                tq_client=self._client,
                data_fields=self.data_fields,
                batch_size=self.batch_size,
                partition_id=self.partition_id,
                task_name=self.task_name,
                sampling_config=self.sampling_config,
                batch_index=self.batch_index,
            )
            if found is None:
                time.sleep(EMPTY_SECONDS)
            else:
                self.buffer.append((found, meta))

    def _is_over(self, client: TransferQueueClient) -> bool:
        return (
            self.should_check_consumption_status
            and self.batch_index >= len(self.buffer)
            and client.check_consumption_status(self.task_name, self.partition_id)
        )

    def reset(self) -> None:
        """The next pass begins with the first batch; what was fetched is not fetched again."""
        self.batch_index = 0

    def step(self, partition_id: str) -> None:
        """Goes on to another partition."""
        self.buffer = []
        self.batch_index = 0
        self.partition_id = partition_id


class StreamingDataLoader(DataLoader[Part]):
    """Micro-batches (data, meta) of a `StreamingDataset`; further arguments are those of PyTorch's DataLoader."""

    def __init__(self, dataset: StreamingDataset, num_workers: int = 0, **options: Any) -> None:  # noqa: ANN401
        options.setdefault("collate_fn", _as_it_is)
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **options)
        self._streaming = dataset

    def reset(self) -> None:
        """See `StreamingDataset.reset`."""
        self._streaming.reset()

    def step(self, partition_id: str) -> None:
        """See `StreamingDataset.step`."""
        self._streaming.step(partition_id)

    def get_buffer(self) -> list[Part]:
        """Batches that were fetched in this process."""
        return self._streaming.buffer


def _as_it_is(data: Part) -> Part:
    return data
