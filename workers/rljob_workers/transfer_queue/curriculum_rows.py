"""Rows of the data that a curriculum chooses for draws, and what the samples of each row have earned.

For `data.curriculum`, reached through `TransferQueueClient.curriculum`, in jobs that have one. The first choice of a
draw stands for all ranks: `control/lua/curriculum.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_workers.transfer_queue.pass_rates import PassRates
from rljob_workers.transfer_queue.rank_calls import RankCalls

_NO_ROW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class CurriculumRows:
    """Looks up and chooses; see `data.curriculum.ChosenRows`."""

    calls: RankCalls

    def chosen(self, draws: range) -> list[int | None]:
        """The row of the data of each draw; None where none is chosen yet."""
        waiting = f"{self.calls} looks up the rows of {len(draws)} draws"
        (packed,) = self.calls.read("chosen", draws.start, len(draws), waiting=waiting)
        return [None if row == _NO_ROW else row for row in np.frombuffer(packed, "<u4").tolist()]

    def choose(self, draws: Sequence[int], rows: Sequence[int]) -> list[int]:
        """Chooses a row for each draw, and gives the rows that stand: what was chosen before is not changed."""
        packed = [np.array(numbers, "<u4").tobytes() for numbers in (draws, rows)]
        (chosen,) = self.calls.change("choose", *packed, waiting=f"{self.calls} chooses the rows of {len(draws)} draws")
        return [int(row) for row in np.frombuffer(chosen, "<u4")]

    def pass_rates(self, num_rows: int) -> PassRates:
        """What the samples of each of the data's rows have earned so far."""
        (packed,) = self.calls.read("pass_rates", waiting=f"{self.calls} reads the pass rates")
        return PassRates.parse(packed, num_rows)
