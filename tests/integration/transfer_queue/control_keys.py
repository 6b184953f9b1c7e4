"""The keys of the control Redis as its administrator reads them, in the words of the queue.

For tests. Trusts no function of the queue's own and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import redis

from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.row_format import ChunkRef, parse_chunk
from rljob_workers.transfer_queue.types import ForwardPolicy, QueueShape, Task

_UNPACK = """
local out, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do out[#out + 1] = {all[i], cmsgpack.unpack(all[i + 1])} end
return out
"""


@dataclass
class Control:
    """The keys of the control Redis, read when they are asked for."""

    admin: redis.Redis
    shape: QueueShape
    _records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def meta(self) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.hash("q:meta").items()}

    def number(self, name: str) -> int:
        return int(self.meta.get(name, b"0"))

    @cached_property
    def partitions(self) -> list[int]:
        return self.places("q:partitions")

    @cached_property
    def live(self) -> set[str]:
        return {name.decode() for name in self.hash("q:live")}

    @cached_property
    def units(self) -> dict[int, int]:
        return {int(unit): int(generation) for unit, generation in self.hash("q:units").items()}

    @cached_property
    def dead(self) -> list[ChunkRef]:
        keys: Any = self.admin.keys("q:dead:*")
        lists: list[Any] = [self.admin.lrange(key, 0, -1) for key in keys]
        return [parse_chunk(line) for lines in lists for line in lines]

    def hash(self, key: str) -> dict[bytes, bytes]:
        found: Any = self.admin.hgetall(key)
        return dict(found)

    def places(self, key: str) -> list[int]:
        found: Any = self.admin.zrange(key, 0, -1)
        return [int(place) for place in found]

    def packed(self, key: str) -> dict[str, Any]:
        """A hash of packed lists."""
        if key not in self._records:
            found: Any = self.admin.eval(_UNPACK, 1, key)
            self._records[key] = {name.decode(): record for name, record in found}
        return self._records[key]

    def string(self, key: str) -> bytes:
        found: Any = self.admin.get(key)
        return bytes(found or b"")

    def chunks(self, r: int) -> dict[bytes, ChunkRef]:
        return {name: parse_chunk(line) for name, line in self.hash(f"p:{r}:chunks").items()}

    @property
    def partials(self) -> dict[int, ChunkRef]:
        """Prompt -> what was generated of its group."""
        return {int(prompt): parse_chunk(line) for prompt, (_, line) in self.packed("q:partials").items()}

    def masks(self, r: int) -> Any:
        return np.frombuffer(self.string(f"p:{r}:mask"), "<u4")

    def mask_of(self, fields: Iterable[str]) -> int:
        order = self.shape.fields
        return sum(1 << order.index(name) for name in set(fields))

    def groups(self, r: int) -> dict[int, Any]:
        """Group -> [state, attempt, prompt, ticket, rejected prompts, attempts that were refused]."""
        return {int(group): record for group, record in self.packed(f"p:{r}:groups").items()}

    def listed(self, r: int, task: Task) -> list[int]:
        """Rows on the task's ready list."""
        name = f"p:{r}:q:{task.name}"
        found: Any
        if task.name in self.shape.steps:
            found = self.admin.zrange(name, 0, -1)
            entries = [int.from_bytes(member, "big") for member in found]
        else:
            found = self.admin.lrange(name, 0, -1)
            entries = [int(entry) for entry in found]
        whole = {
            ClaimPolicy.GROUP: self.shape.samples_per_prompt,
            ForwardPolicy.PARTITION: self.shape.rows_per_partition,
        }
        num = whole.get(task.policy, 1)
        return [entry * num + index for entry in entries for index in range(num)]

    def leased(self, r: int, task: Task) -> list[int]:
        """Rows under a lease of the task, once for every lease."""
        leases = self.packed("q:lease").values()
        mine = [packed for name, at, _, packed, _ in leases if (name.decode(), at) == (task.name, r)]
        return [row for packed in mine for row in np.frombuffer(packed, "<u4").tolist()]

    def batched(self, r: int, task: Task) -> list[int]:
        """Rows of the training batches that were claimed."""
        return [row for packed in self.hash(f"p:{r}:b:{task.name}").values() for row in np.frombuffer(packed, "<u4")]
