"""What the samples of each row of the data have earned so far, and what a group adds to it.

The queue counts it, in jobs with a curriculum (`control/lua/curriculum.lua`), in the call that makes the samples part
of the queue or refuses them, so that a call that is sent again counts once. No I/O and no torch: users import
`PassRates` by way of `rljob_workers.data.curriculum`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

_SCORE = struct.Struct("<IId")


_RATE = np.dtype([("draws", "<u4"), ("samples", "<u4"), ("passed", "<u4"), ("nothing", "<u4"), ("total", "<f8")])


_COUNTED = ("draws", "samples", "passed", "total")


MAX_ROWS = 5_000_000
"""Of the data of a job with a curriculum: the rates, 24 bytes a row, are one value of the control Redis. A function
that reads so many holds it up for about a second, and clients give it up after `control_silence_seconds`."""


@dataclass(frozen=True, slots=True)
class GroupScore:
    """What the samples of one draw have earned."""

    samples: int = 0
    """Those that could be scored."""
    passed: int = 0
    total: float = 0.0
    """Sum of their rewards."""

    @classmethod
    def of(cls, rewards: Collection[float], pass_reward: float) -> Self:
        """Of samples with these rewards; one passes with `pass_reward` or more."""
        return cls(len(rewards), sum(reward >= pass_reward for reward in rewards), float(sum(rewards)))

    def pack(self) -> bytes:
        """16 bytes, as the queue's functions read them."""
        return _SCORE.pack(self.samples, self.passed, self.total)


UNSCORED = GroupScore()
"""No sample has a score, or none is counted."""


@dataclass(frozen=True, slots=True, eq=False)
class PassRates:
    """Of each row of the data, in the order of the data; each field is an array of one number a row."""

    draws: npt.NDArray[np.int64]
    """How often it was drawn, and is done with. One with draws and without samples could not be used: its samples could
    not be scored, or it was too long."""
    samples: npt.NDArray[np.int64]
    """Samples of it that were scored, those of groups that a filter refused among them."""
    passed: npt.NDArray[np.int64]
    """Those of them whose reward was at least `rollout.curriculum.passReward`."""
    total_reward: npt.NDArray[np.float64]
    """Sum of their rewards."""

    def __len__(self) -> int:
        """Rows of the data."""
        return len(self.draws)

    @property
    def pass_rate(self) -> npt.NDArray[np.float64]:
        """Share of the samples that passed; NaN for a row that has none."""
        return _ratio(self.passed, self.samples)

    @property
    def mean_reward(self) -> npt.NDArray[np.float64]:
        """Of the samples; NaN for a row that has none."""
        return _ratio(self.total_reward, self.samples)

    @classmethod
    def parse(cls, packed: bytes, num_rows: int) -> Self:
        """Of the function `pass_rates`, which ends at the last row that was drawn."""
        found = np.zeros(num_rows, _RATE)
        known = np.frombuffer(packed, _RATE)[:num_rows]
        found[: len(known)] = known
        draws, samples, passed = (found[name].astype(np.int64) for name in ("draws", "samples", "passed"))
        return cls(draws, samples, passed, found["total"].astype(np.float64))


def _ratio(
    total: npt.NDArray[np.int64] | npt.NDArray[np.float64], count: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    found = np.full(len(count), np.nan)
    np.divide(total, count, out=found, where=count > 0)
    return found


def rates_table(packed: bytes) -> list[list[int | float]]:
    """For a checkpoint: row, draws, samples, passed and total of each row that was drawn."""
    known = np.frombuffer(packed, _RATE)
    rows = np.flatnonzero(known["draws"])
    columns = [known[name][rows].tolist() for name in _COUNTED]
    return list(map(list, zip(rows.tolist(), *columns, strict=True)))


def packed_rates(table: object) -> bytes:
    """What `rates_table` was made of. Raises ValueError or TypeError for anything that it does not give."""
    if not isinstance(table, list):
        raise TypeError(f"rates: {table!r:.40} is no list")
    if not table:
        return b""
    numbers = np.array(table, np.float64)
    if numbers.shape != (len(table), 1 + len(_COUNTED)):
        raise ValueError(f"rates: a row has {1 + len(_COUNTED)} numbers")
    rows, counts = numbers[:, 0], numbers[:, :-1]
    if not (rows.max() < MAX_ROWS and counts.min() >= 0 and counts.max() < 2**32):
        raise ValueError("rates: a row or a count is out of range")
    packed = np.zeros(int(rows.max()) + 1, _RATE)
    for name, column in zip(_COUNTED, numbers.T[1:], strict=True):
        packed[name][rows.astype(np.int64)] = column
    return packed.tobytes()
