"""The running samples, a row per slot: numpy columns that grow, move and shrink together with the KV cache.

Used by the scheduler only. Slots 0..count-1 run; there are no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rljob_workers.engines.torch_engine.sampling import SamplingColumns

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.length_runs import Moves
    from rljob_workers.engines.torch_engine.requests import IntArray, PromptGroup

_COLUMNS: dict[str, type[np.generic]] = {
    "batch": np.int64,
    "row": np.int64,
    "group": np.int64,
    "length": np.int64,
    "num_drawn": np.int64,
    "limit": np.int64,
    "reserved": np.int64,
    "last_token": np.int64,
    "stop_set": np.int64,
    "top_k": np.int64,
    "temperature": np.float32,
    "top_p": np.float32,
    "seed": np.uint64,
}


@dataclass(frozen=True, slots=True)
class Admission:
    """Samples first..first+count-1 of a group that start to run."""

    batch: int
    group_index: int
    group: PromptGroup
    first_sample: int
    first_row: int
    """Row of the group's sample 0 in its batch."""
    count: int
    stop_set: int


class SlotTable:
    """Columns of all running samples. Views go stale when slots are appended: take them anew."""

    def __init__(self) -> None:
        """Starts empty."""
        self.count = 0
        self._columns = {name: np.zeros(0, dtype=kind) for name, kind in _COLUMNS.items()}
        self._tokens = np.zeros((0, 0), dtype=np.int32)
        self._log_probs = np.zeros((0, 0), dtype=np.float32)

    def ints(self, name: str) -> IntArray:
        """A whole-number column over the running slots, as a view."""
        return self._columns[name][: self.count]

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[count, width]: drawn tokens; beyond `num_drawn` they mean nothing."""
        return self._tokens[: self.count]

    @property
    def log_probs(self) -> npt.NDArray[np.float32]:
        """[count, width], as `tokens`."""
        return self._log_probs[: self.count]

    def sampling(self, start: int) -> SamplingColumns:
        """Sampling parameters of slots from `start` on."""
        part = slice(start, self.count)
        columns = self._columns
        return SamplingColumns(
            temperature=columns["temperature"][part],
            top_p=columns["top_p"][part],
            top_k=columns["top_k"][part],
            seed=columns["seed"][part],
        )

    def append(self, admitted: list[Admission]) -> None:
        """Adds the samples behind the running ones, with their prompts cached and nothing drawn."""
        counts = np.array([one.count for one in admitted])
        samples = np.concatenate([np.arange(one.first_sample, one.first_sample + one.count) for one in admitted])
        start, self.count = self.count, self.count + int(counts.sum())
        self._grow(max(one.group.max_new_tokens for one in admitted))
        values = {
            "batch": [one.batch for one in admitted],
            "row": [one.first_row for one in admitted],
            "group": [one.group_index for one in admitted],
            "length": [len(one.group.prompt) for one in admitted],
            "limit": [one.group.max_new_tokens for one in admitted],
            "reserved": [one.group.longest for one in admitted],
            "stop_set": [one.stop_set for one in admitted],
            "top_k": [one.group.top_k for one in admitted],
            "temperature": [one.group.temperature for one in admitted],
            "top_p": [one.group.top_p for one in admitted],
            "seed": [one.group.seed % 2**64 for one in admitted],
        }
        for name, value in values.items():
            column = self._columns[name]
            column[start : self.count] = np.repeat(np.array(value, dtype=column.dtype), counts)
        self._columns["num_drawn"][start : self.count] = 0
        self._columns["row"][start : self.count] += samples
        self._columns["seed"][start : self.count] += samples.astype(np.uint64)  # wraps around, as the contract says

    def record(self, start: int, tokens: IntArray, log_probs: npt.NDArray[np.float32]) -> None:
        """Appends a drawn token to every slot from `start` on."""
        slots = np.arange(start, self.count)
        positions = self.ints("num_drawn")[start:]
        self._tokens[slots, positions] = tokens
        self._log_probs[slots, positions] = log_probs
        self.ints("last_token")[start:] = tokens
        positions += 1

    def move(self, moves: Moves, count: int) -> None:
        """Moves slots and keeps the first `count`."""
        for column in self._columns.values():
            column[moves.targets] = column[moves.sources]
        width = int(self.ints("num_drawn").max(initial=0))
        self._tokens[moves.targets, :width] = self._tokens[moves.sources, :width]
        self._log_probs[moves.targets, :width] = self._log_probs[moves.sources, :width]
        self.count = count

    def _grow(self, max_new_tokens: int) -> None:
        capacity, width = self._tokens.shape
        if self.count > capacity:
            capacity = max(self.count, 2 * capacity)
            for name, column in self._columns.items():
                self._columns[name] = np.zeros(capacity, dtype=column.dtype)
                self._columns[name][: column.size] = column
        width = max(width, max_new_tokens)
        if (capacity, width) == self._tokens.shape:
            return
        for name in ("_tokens", "_log_probs"):
            old = getattr(self, name)
            new = np.empty((capacity, width), dtype=old.dtype)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
