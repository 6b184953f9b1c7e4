"""`BatchMeta`: which rows a batch is of, what fields they have, what is known about each.

The user's handle of rows: taken from `put` and `get_meta`, cut and joined at will, handed to `get_data`, `put` and
`clear_samples`. Knows no connection. Where the rows' bytes lie travels along unseen, so that reading needs no call; a
handle that was made by hand works too, and is looked up.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tensordict import TensorDict

from rljob_transfer_queue.joining import agreed_info, joined_schemas, require_same_fields
from rljob_transfer_queue.rows import Places
from rljob_transfer_queue.schema import FieldSchema, schema_of_data
from rljob_transfer_queue.views import SampleViews

Document = dict[str, Any]


class BatchMeta:
    """Rows of one or more partitions, in an order.

    meta = client.get_meta(["input_ids"], 64, "train_0", task_name="actor_train")
    if meta.is_ready:
        for part in meta.chunk(4):
            data = client.get_data(part)
    """

    def __init__(
        self,
        global_indexes: Sequence[int],
        partition_ids: Sequence[str],
        field_schema: Mapping[str, FieldSchema] | None = None,
        production_status: npt.ArrayLike | None = None,
        extra_info: Document | None = None,
        custom_meta: Sequence[Document] | None = None,
        *,
        places: Mapping[str, Places] | None = None,
    ) -> None:
        """`production_status`: 1 for each row that has all fields (None: no row). `places`: only from the queue."""
        self.global_indexes = list(global_indexes)
        self.partition_ids = list(partition_ids)
        size = len(self.global_indexes)
        self.field_schema = {name: dict(schema) for name, schema in (field_schema or {}).items()}
        status = np.zeros(size, np.int8) if production_status is None else np.array(production_status, np.int8)
        self.production_status: npt.NDArray[np.int8] = status
        self.extra_info = dict(extra_info or {})
        self.custom_meta = [dict(each) for each in custom_meta] if custom_meta else [{} for _ in range(size)]
        self.places = dict(places or {})
        self._refuse_uneven()

    def _refuse_uneven(self) -> None:
        counts = {
            "partition_ids": len(self.partition_ids),
            "production_status": len(self.production_status),
            "custom_meta": len(self.custom_meta),
        }
        for name, schema in self.field_schema.items():
            if schema.get("per_sample_shapes") is not None:
                counts[f"field_schema[{name!r}]['per_sample_shapes']"] = len(schema["per_sample_shapes"])
        for name, count in counts.items():
            if count != self.size:
                raise ValueError(f"BatchMeta: {name} has length {count}, global_indexes has length {self.size}.")

    # --- its rows ------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.global_indexes)

    def __len__(self) -> int:
        return self.size

    @property
    def field_names(self) -> list[str]:
        """Sorted."""
        return sorted(self.field_schema)

    @property
    def is_ready(self) -> bool:
        """Every row has every field; False without rows."""
        return self.size > 0 and bool((self.production_status == 1).all())

    @property
    def samples(self) -> SampleViews:
        """Row by row."""
        return SampleViews(self)

    def get_dtypes(self, field_name: str) -> list[Any]:
        """Of every row; raises KeyError for a field that is not there."""
        return [self.field_schema[field_name].get("dtype")] * self.size

    def get_shapes(self, field_name: str) -> list[Any]:
        """Of every row; raises KeyError for a field that is not there."""
        schema = self.field_schema[field_name]
        shapes = schema.get("per_sample_shapes")
        return [schema.get("shape")] * self.size if shapes is None else list(shapes)

    def __str__(self) -> str:
        return (
            f"BatchMeta(size={self.size}, field_names={self.field_names}, is_ready={self.is_ready},"
            f" global_indexes={self.global_indexes}, extra_info={self.extra_info})"
        )

    # --- what the user adds --------------------------------------------------------------------------------------

    def get_extra_info(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - the user's own values
        """One entry of `extra_info`, which belongs to the batch and never leaves the process."""
        return self.extra_info.get(key, default)

    def set_extra_info(self, key: str, value: Any) -> None:  # noqa: ANN401 - the user's own values
        """Sets one entry."""
        self.extra_info[key] = value

    def get_all_extra_info(self) -> Document:
        """A copy of all entries."""
        return copy.deepcopy(self.extra_info)

    def update_extra_info(self, info_dict: Document) -> None:
        """Sets many."""
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:  # noqa: ANN401 - the user's own values
        """Takes one entry away and returns it, None if there is none."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        """Takes all away."""
        self.extra_info.clear()

    def has_extra_info(self, key: str) -> bool:
        """Whether there is such an entry."""
        return key in self.extra_info

    def get_all_custom_meta(self) -> list[Document]:
        """A copy of each row's metadata; `set_custom_meta` of the client stores it with the rows."""
        return copy.deepcopy(self.custom_meta)

    def update_custom_meta(self, custom_meta: Sequence[Document] | None) -> None:
        """Adds to the metadata of each row."""
        if custom_meta is None:
            return
        if len(custom_meta) != self.size:
            raise ValueError(
                f"custom_meta: {len(custom_meta)} dicts were given for {self.size} rows. Give one for each."
            )
        for mine, more in zip(self.custom_meta, custom_meta, strict=True):
            mine.update(more)

    def clear_custom_meta(self) -> None:
        """Forgets it here; the queue keeps its own."""
        self.custom_meta = [{} for _ in range(self.size)]

    def add_fields(self, tensor_dict: TensorDict, set_all_ready: bool = True) -> BatchMeta:
        """Notes the fields of `tensor_dict` in place, as `put` does with what it has stored."""
        if not tensor_dict.batch_size[0]:
            return self
        if tensor_dict.batch_size[0] != self.size:
            raise ValueError(f"add_fields: {tensor_dict.batch_size[0]} rows were given, the batch has {self.size}.")
        added = schema_of_data(tensor_dict)
        self.field_schema.update(added)
        self.places = {name: places for name, places in self.places.items() if name not in added}
        if set_all_ready:
            self.production_status[:] = 1
        return self

    # --- cutting and joining -------------------------------------------------------------------------------------

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """The rows at these positions of the batch, in that order."""
        chosen = list(sample_indices)
        if any(not 0 <= index < self.size for index in chosen):
            raise ValueError(f"select_samples: {chosen} must lie in the range from 0 to {self.size - 1}.")
        return BatchMeta(
            [self.global_indexes[index] for index in chosen],
            [self.partition_ids[index] for index in chosen],
            {name: _selected(schema, chosen) for name, schema in self.field_schema.items()},
            self.production_status[chosen],
            self.extra_info,
            [copy.deepcopy(self.custom_meta[index]) for index in chosen],
            places={name: places.select(chosen) for name, places in self.places.items()},
        )

    def select_fields(self, field_names: Sequence[str]) -> BatchMeta:
        """The same rows with only those of their fields."""
        chosen = self.copy()
        chosen.field_schema = {name: chosen.field_schema[name] for name in field_names if name in chosen.field_schema}
        chosen.places = {name: places for name, places in chosen.places.items() if name in chosen.field_schema}
        return chosen

    def copy(self) -> BatchMeta:
        """Changes of the copy do not show here."""
        return BatchMeta(
            self.global_indexes,
            self.partition_ids,
            copy.deepcopy(self.field_schema),
            self.production_status,
            copy.deepcopy(self.extra_info),
            copy.deepcopy(self.custom_meta),
            places=self.places,
        )

    def __getitem__(self, item: int | slice) -> BatchMeta:
        if isinstance(item, slice):
            return self.select_samples(range(*item.indices(self.size)))
        if not isinstance(item, int | np.integer):
            raise TypeError(f"BatchMeta: {type(item).__name__} is no index of rows. Use a number or a slice.")
        index = int(item) + self.size if item < 0 else int(item)
        if not 0 <= index < self.size:
            raise IndexError(f"BatchMeta: row {item} of {self.size}")
        return self.select_samples([index])

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """Cuts into so many parts whose sizes differ by one at most; some are empty if there are fewer rows."""
        base, longer = divmod(self.size, chunks)
        edges = [index * base + min(index, longer) for index in range(chunks + 1)]
        return [self.select_samples(range(first, last)) for first, last in pairwise(edges)]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """One part for each partition, in the order in which they first appear."""
        return [self.select_samples(indices) for indices in self.rows_by_partition().values()]

    def rows_by_partition(self) -> dict[str, list[int]]:
        """Positions of each partition's rows."""
        positions: dict[str, list[int]] = {}
        for position, partition in enumerate(self.partition_ids):
            positions.setdefault(partition, []).append(position)
        return positions

    @classmethod
    def concat(cls, data: Sequence[BatchMeta], validate: bool = True) -> BatchMeta:
        """The rows of all parts; empty ones are left out."""
        parts = [part for part in data if part is not None and part.size]
        if not parts:
            return cls.empty()
        if validate:
            require_same_fields([part.field_schema for part in parts])
        shared = [name for name in parts[0].places if all(name in part.places for part in parts)]
        return cls(
            [index for part in parts for index in part.global_indexes],
            [partition for part in parts for partition in part.partition_ids],
            joined_schemas([(part.field_schema, part.size) for part in parts]),
            np.concatenate([part.production_status for part in parts]),
            agreed_info("BatchMeta.concat", [part.extra_info for part in parts]),
            [each for part in parts for each in part.custom_meta],
            places={name: Places.concat([part.places[name] for part in parts]) for name in shared},
        )

    def union(self, other: BatchMeta) -> BatchMeta:
        """The same rows with the fields of both; where both have a value, that of `other` counts."""
        if not other or not self.size:
            return self.copy() if not other else other.copy()
        for name in ("global_indexes", "partition_ids"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"BatchMeta.union: {name} are {getattr(self, name)} and {getattr(other, name)}. Join the same rows."
                )
        mine, theirs = self.copy(), other.copy()
        places = {name: each for name, each in mine.places.items() if name not in theirs.field_schema}
        return BatchMeta(
            mine.global_indexes,
            mine.partition_ids,
            mine.field_schema | theirs.field_schema,
            mine.production_status & theirs.production_status,
            mine.extra_info | theirs.extra_info,
            [first | second for first, second in zip(mine.custom_meta, theirs.custom_meta, strict=True)],
            places=places | theirs.places,
        )

    def reorder(self, indices: Sequence[int]) -> None:
        """Puts the rows in that order, in place."""
        if len(indices) != self.size:
            raise ValueError(f"reorder: {len(indices)} indices were given for {self.size} rows. Name every row once.")
        if len(set(indices)) != self.size:
            raise ValueError("reorder: an index is there twice. Name every row once.")
        self.__dict__.update(self.select_samples(indices).__dict__)

    @classmethod
    def empty(cls, extra_info: Document | None = None) -> BatchMeta:
        """No rows: what `get_meta` answers where there are not enough."""
        return cls([], [], extra_info=extra_info)


def _selected(schema: FieldSchema, chosen: Sequence[int]) -> FieldSchema:
    selected = copy.deepcopy(schema)
    if schema.get("per_sample_shapes") is not None:
        selected["per_sample_shapes"] = [schema["per_sample_shapes"][index] for index in chosen]
    return selected
