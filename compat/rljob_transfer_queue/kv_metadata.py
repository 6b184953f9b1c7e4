"""`KVBatchMeta`: rows by the user's own keys. Knows no connection."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rljob_transfer_queue.joining import agreed_info


@dataclass
class KVBatchMeta:
    """What `kv_put` and `kv_batch_put` return and `kv_batch_get_by_meta` takes."""

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    """The tags of each row."""
    partition_id: str | None = None
    fields: list[str] | None = None
    """Fields that all rows have."""
    extra_info: dict[str, Any] | None = field(default_factory=dict)
    """About the batch; never leaves the process."""

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(
                f"KVBatchMeta: there are {len(self.keys)} keys and {len(self.tags)} tags. Give a tag for each key."
            )
        for name, given in (("keys", self.keys), ("fields", self.fields or [])):
            if len(set(given)) != len(given):
                raise ValueError(f"KVBatchMeta: {name} has something twice. Name each once.")
        self.tags = copy.deepcopy(self.tags)
        self.extra_info = copy.deepcopy(self.extra_info)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def __len__(self) -> int:
        return self.size

    def __str__(self) -> str:
        return f"KVBatchMeta(size={self.size}, field_names={self.fields}, extra_info={self.extra_info})"

    def select_keys(self, keys_to_select: Sequence[str]) -> KVBatchMeta:
        """The rows of these keys, in that order."""
        if len(set(keys_to_select)) != len(keys_to_select):
            raise ValueError("select_keys: a key is there twice. Name each once.")
        missing = sorted(set(keys_to_select) - set(self.keys))
        if missing:
            raise RuntimeError(f"select_keys: {missing} are no keys of this batch. Choose among {self.keys}.")
        return self._at([self.keys.index(key) for key in keys_to_select])

    def reorder(self, indexes: Sequence[int]) -> None:
        """Puts the rows in that order, in place."""
        if len(indexes) != self.size:
            raise ValueError(f"reorder: {len(indexes)} indexes were given for {self.size} rows. Name every row once.")
        if len(set(indexes)) != len(indexes):
            raise ValueError("reorder: an index is there twice. Name every row once.")
        self.keys = [self.keys[index] for index in indexes]
        self.tags = [self.tags[index] for index in indexes]

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """Cuts into so many parts whose sizes differ by one at most; some are empty if there are fewer rows."""
        base, longer = divmod(self.size, chunks)
        edges = [index * base + min(index, longer) for index in range(chunks + 1)]
        return [self._at(range(first, last)) for first, last in pairwise(edges)]

    def _at(self, indices: Sequence[int]) -> KVBatchMeta:
        return KVBatchMeta(
            [self.keys[index] for index in indices],
            [self.tags[index] for index in indices],
            self.partition_id,
            self.fields,
            self.extra_info,
        )

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """The rows of all parts, which must be of one partition and have the same fields; empty ones are left out."""
        parts = [part for part in data if part is not None and part.size]
        if not parts:
            return cls()
        first = parts[0]
        for part in parts:
            if part.fields is not None and set(part.fields) != set(first.fields or ()):
                raise ValueError(f"KVBatchMeta.concat: one part has fields {part.fields}, another {first.fields}.")
            if part.partition_id != first.partition_id:
                raise ValueError(
                    f"KVBatchMeta.concat: parts are of partitions {part.partition_id} and {first.partition_id}."
                )
        return cls(
            [key for part in parts for key in part.keys],
            [tag for part in parts for tag in part.tags],
            first.partition_id,
            first.fields,
            agreed_info("KVBatchMeta.concat", [part.extra_info for part in parts]) or None,
        )
