"""The rows of a batch, one by one. For `metadata`; their values cannot be changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_transfer_queue.metadata import BatchMeta


class SampleViews(Sequence["SampleView"]):
    """The rows of a batch, one by one."""

    def __init__(self, batch: BatchMeta) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.size

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a number gives a row, as the type says nowhere
        return SampleView(self._batch, range(len(self))[index])

    def __iter__(self) -> Iterator[SampleView]:
        return (SampleView(self._batch, index) for index in range(len(self)))


class SampleView:
    """One row of a batch; what it gives cannot be changed."""

    def __init__(self, batch: BatchMeta, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def global_index(self) -> int:
        """The row's number."""
        return self._batch.global_indexes[self._index]

    @property
    def partition_id(self) -> str:
        """Its partition."""
        return self._batch.partition_ids[self._index]

    @property
    def production_status(self) -> int:
        """1 if it has every field of the batch."""
        return int(self._batch.production_status[self._index])

    @property
    def custom_meta(self) -> Mapping[str, Any]:
        """The user's metadata of it."""
        return MappingProxyType(self._batch.custom_meta[self._index])

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Schema of each field with this row's own shape."""
        own = {}
        for name, schema in self._batch.field_schema.items():
            mine = {key: value for key, value in schema.items() if key != "per_sample_shapes"}
            mine["shape"] = self._batch.get_shapes(name)[self._index]
            own[name] = MappingProxyType(mine)
        return MappingProxyType(own)
