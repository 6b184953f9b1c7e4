"""Everything that a client can do, blocking: from what users hand over to what the session sends, and back.

For `client` and `interface`. Checks what the user gives; decides nothing about rows, which is the control plane's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import TensorDict

from rljob_transfer_queue.columns import Column, to_columns, to_tensordict
from rljob_transfer_queue.errors import StorageKeyNotFoundError
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.rows import Places
from rljob_transfer_queue.session import Session
from rljob_transfer_queue.settings import DEFAULTS, Servers, Settings, find_servers, wait_seconds
from rljob_workers.transfer_queue.control.connection import Subscription
from rljob_workers.transfer_queue.errors import Mismatch, RowsLost

T = TypeVar("T")
_SAMPLING = frozenset({"dp_rank", "batch_index", "task_name", "partition_id"})
RECHECK_SECONDS = 1.0
"""Longest wait for one notice: the server retains no notice for a client that was not connected."""


class BlockingCalls:
    """All that a client can do, blocking; the clients below give it its names."""

    def __init__(self, client_id: str, servers: Servers | None = None) -> None:
        """Connects when first used; `servers` None: those of RLJOB_ENDPOINTS."""
        self.client_id = client_id
        self.session = Session(client_id, servers or find_servers(None, os.environ))
        self._settings: Settings | None = None

    def get_meta(
        self,
        data_fields: Sequence[str],
        batch_size: int | None,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: Mapping[str, Any] | None = None,
    ) -> BatchMeta:
        """Rows that have all `data_fields` and that `task_name` has not had; they count as consumed by it.

        Where there are fewer than `batch_size`: an empty batch with polling_mode, else TimeoutError after a while. Mode
        `force_fetch` gives all rows of the partition, whatever they have, and consumes nothing; `insert` makes new
        ones.
        """
        fields = list(dict.fromkeys(data_fields or ()))
        match mode:
            case "fetch":
                return self._fetch(fields, batch_size, partition_id, task_name, dict(sampling_config or {}))
            case "force_fetch":
                return self.session.rows(partition_id, fields)
            case "insert":
                return self.session.insert(partition_id, _rows_wanted(batch_size), fields)
        raise ValueError(f"get_meta: mode is {mode!r}. Use 'fetch', 'force_fetch' or 'insert'.")

    def _fetch(
        self, fields: list[str], batch_size: int | None, partition: str, task: str | None, config: dict[str, Any]
    ) -> BatchMeta:
        if not task or not fields:
            raise ValueError(f"get_meta: task_name {task!r} and data_fields {fields} must both be given to fetch.")
        unknown = sorted(set(config) - _SAMPLING)
        if unknown:
            raise ValueError(f"get_meta: sampling_config has {unknown[0]!r}. Known are {', '.join(sorted(_SAMPLING))}.")
        settings, num_rows = self._in_force(), _rows_wanted(batch_size)
        question = settings.sampler.question(config)
        if num_rows % question.group:
            raise ValueError(
                f"get_meta: batch_size {num_rows} is no multiple of n_samples_per_prompt {question.group}, and only"
                " whole groups are taken."
            )
        ask = partial(self.session.claim, partition, task, num_rows, fields, question)
        answer = ask()
        if isinstance(answer, BatchMeta):
            return answer
        if settings.polling:
            return BatchMeta.empty()
        seconds = wait_seconds(os.environ)
        answer = self._await_batch(partition, ask, seconds)
        if isinstance(answer, BatchMeta):
            return answer
        raise TimeoutError(
            f"get_meta: {task} waited {seconds:g} s for {num_rows} rows of {partition} with {', '.join(fields)}; there"
            f" are {answer}. Put more, ask for fewer, or set controller.polling_mode to get an empty batch instead."
        )

    def _await_batch(self, partition: str, ask: Callable[[], BatchMeta | int], seconds: float) -> BatchMeta | int:
        """Asks at every notice of the partition, until the answer is a batch or the time is over."""
        deadline = time.monotonic() + seconds
        with closing(Subscription(self.session.servers.control_redis)) as notices:
            while True:
                notices.listen(f"tq:{partition}")
                answer = ask()
                left = deadline - time.monotonic()
                if isinstance(answer, BatchMeta) or left <= 0:
                    return answer
                notices.wait(min(left, RECHECK_SECONDS))

    def put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Callable[[Any], Any] | None = None,
    ) -> BatchMeta:
        """Fields of the rows of `metadata`, or new rows of `partition_id`. Returns the rows with all their fields."""
        if data_parser is not None:
            raise ValueError(
                "put: data_parser is not there, since no code runs in a storage unit. Parse before you put."
            )
        columns = to_columns(data)
        if metadata is None:
            if not partition_id:
                raise ValueError("put: neither metadata nor partition_id is given. Say where the rows go.")
            return self.session.put_new(partition_id, columns)
        if metadata.size != data.batch_size[0]:
            raise ValueError(f"put: the data has {data.batch_size[0]} rows, metadata has {metadata.size}.")
        if len(set(metadata.global_indexes)) != metadata.size:
            raise ValueError("put: metadata names a row twice. Name each once.")
        places = self._put_rows(columns, metadata)
        metadata.add_fields(data)
        metadata.places.update(places)
        return metadata

    def _put_rows(self, columns: Mapping[str, Column], metadata: BatchMeta) -> dict[str, Places]:
        by_partition = metadata.rows_by_partition()
        if len(by_partition) == 1:
            return self._put_part(metadata, columns)
        parts = [
            self._put_part(
                metadata.select_samples(positions), {name: each.select(positions) for name, each in columns.items()}
            )
            for positions in by_partition.values()
        ]
        return _in_order(parts, by_partition)

    def _put_part(self, rows: BatchMeta, columns: Mapping[str, Column]) -> dict[str, Places]:
        partition = rows.partition_ids[0]
        return _named(partial(self.session.put_rows, partition, rows.global_indexes, columns, rows.custom_meta))

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """The rows' values in their order. Tensor columns are jagged nested tensors, one-dimensional ones dense."""
        if not metadata.size or not metadata.field_names:
            return TensorDict({}, batch_size=[0])
        places = self._places(metadata)
        for name, each in places.items():
            if not each.kinds.all():
                row = metadata.global_indexes[int(np.argmin(each.kinds))]
                raise ValueError(f"get_data: row {row} has no {name} yet. Use select_fields or select_samples first.")
        try:
            found = self.session.read(places)
        except RowsLost:
            found = self._read_again(metadata)
        return to_tensordict(found, metadata.size)

    def _places(self, metadata: BatchMeta) -> dict[str, Places]:
        """Where the rows lie; read from the control Redis where the batch has no places, or outdated ones."""
        known = {name: metadata.places[name] for name in metadata.field_names if name in metadata.places}
        if known and self.session.changed(list(metadata.rows_by_partition())):
            known = {}
        missing = [name for name in metadata.field_names if name not in known]
        return known | self._find_places(metadata, missing) if missing else known

    def _find_places(self, metadata: BatchMeta, fields: Sequence[str]) -> dict[str, Places]:
        by_partition = metadata.rows_by_partition()
        parts = []
        for partition, positions in by_partition.items():
            numbers = [metadata.global_indexes[position] for position in positions]
            found = _named(partial(self.session.locate, partition, numbers, fields))
            absent = sorted(set(fields) - set(found.places))
            if absent:
                raise ValueError(f"get_data: no row of {partition} in this batch has {absent[0]} yet.")
            parts.append(found.places)
        return _in_order(parts, by_partition)

    def _read_again(self, metadata: BatchMeta) -> dict[str, Any]:
        """They may have been put again since the batch was taken."""
        try:
            return self.session.read(self._find_places(metadata, metadata.field_names))
        except (RowsLost, ValueError) as error:
            raise StorageKeyNotFoundError(
                f"get_data: rows {metadata.global_indexes[0]} ... of {metadata.partition_ids[0]} are not there any"
                " more: they were cleared, or their storage unit was started anew. Put them again."
            ) from error

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Stores the metadata of each row; later batches of these rows carry it too."""
        for part in metadata.chunk_by_partition():
            _named(partial(self.session.set_documents, part.partition_ids[0], part.global_indexes, part.custom_meta))

    def clear_partition(self, partition_id: str) -> None:
        """All rows of the partition and their bytes."""
        self.session.clear_partition(partition_id)

    def clear_samples(self, metadata: BatchMeta) -> None:
        """These rows and their bytes; the partition stays."""
        for part in metadata.chunk_by_partition():
            self.session.clear_rows(part.partition_ids[0], part.global_indexes)

    def get_consumption_status(
        self, task_name: str, partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Numbers of the partition's rows, and 1 for each that the task has had; (None, None) without a partition."""
        found = self.session.states(partition_id, f"c:{task_name}")
        if found is None:
            return None, None
        return torch.from_numpy(found[0]), torch.from_numpy(found[1][:, 0].astype(np.int8))

    def get_production_status(
        self, data_fields: Sequence[str], partition_id: str
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Numbers of the partition's rows, and [rows, fields] of 1 where a row has the field.

        (None, None) where there is no partition, or no row ever had one of the fields.
        """
        if not data_fields or not set(data_fields) <= self.session.fields(partition_id):
            return None, None
        found = self.session.states(partition_id, *(f"h:{name}" for name in data_fields))
        if found is None:
            return None, None
        return torch.from_numpy(found[0]), torch.from_numpy(found[1].astype(np.int8))

    def check_consumption_status(self, task_name: str, partition_id: str) -> bool:
        """Whether the task has had every row of the partition; False where there are none."""
        status = self.get_consumption_status(task_name, partition_id)[1]
        return status is not None and status.numel() > 0 and bool((status == 1).all())

    def check_production_status(self, data_fields: Sequence[str], partition_id: str) -> bool:
        """Whether every row of the partition has all of the fields."""
        status = self.get_production_status(data_fields, partition_id)[1]
        return status is not None and bool((status == 1).all())

    def reset_consumption(self, partition_id: str, task_name: str | None = None) -> bool:
        """Lets the task (None: every task) have the rows again."""
        self.session.reset(partition_id, task_name)
        return True

    def get_partition_list(self) -> list[str]:
        """All partitions."""
        return self.session.partitions()

    def kv_retrieve_meta(self, keys: Sequence[str] | str, partition_id: str, create: bool = False) -> BatchMeta:
        """Rows by key, with the fields that all of them have; keys that are not there are left out, or made."""
        wanted = _keys(keys)
        if create and len(set(wanted)) != len(wanted):
            raise ValueError(f"kv_retrieve_meta: {wanted} names a key twice. Name each once.")
        return self.session.make_keys(partition_id, wanted) if create else self.session.find_keys(partition_id, wanted)

    def kv_retrieve_keys(self, global_indexes: Sequence[int] | int, partition_id: str) -> list[str]:
        """Keys of rows; raises ValueError where a row has none."""
        numbers = [global_indexes] if isinstance(global_indexes, int) else list(global_indexes)
        found = self.session.keys_of(partition_id, numbers)
        if len(found) != len(numbers) or "" in found:
            raise ValueError(f"kv_retrieve_keys: some of the rows {numbers} of {partition_id} have no key.")
        return found

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """Partition -> key -> tag, of one partition or of all."""
        names = self.session.partitions() if partition_id is None else [partition_id]
        return {name: found for name in names if (found := self.session.list_keys(name)) is not None}

    def _in_force(self) -> Settings:
        if self._settings is None:
            text = self.session.settings()[0]
            self._settings = Settings.load(text) if text else DEFAULTS
        return self._settings


def _in_order(parts: Sequence[Mapping[str, Places]], by_partition: Mapping[str, Sequence[int]]) -> dict[str, Places]:
    """Joins what came by partition, back in the order of the batch."""
    order = np.argsort([position for positions in by_partition.values() for position in positions]).tolist()
    return {name: Places.concat([part[name] for part in parts]).select(order) for name in parts[0]}


def _rows_wanted(batch_size: int | None) -> int:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"get_meta: batch_size is {batch_size!r}. Give a number of rows from 1 on.")
    return batch_size


def _keys(keys: Sequence[str] | str) -> list[str]:
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"keys: {keys!r} is neither a key nor a list of keys, which are text.")
    if not keys:
        raise ValueError("keys: the list is empty. Name at least one key.")
    return list(keys)


def _named(work: Callable[[], T]) -> T:
    """What the control plane refuses is the caller's to mend."""
    try:
        return work()
    except Mismatch as error:
        raise ValueError(str(error)) from error
