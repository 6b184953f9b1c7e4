"""The contract of a curriculum, in the model that random schedules compare the queue with.

A draw keeps the row that was chosen for it first, and none is chosen for again. Each draw that is over counts once for
its row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Self

from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore
from rljob_workers.transfer_queue.types import Ticket

ROWS = 5
"""Of the data: each is drawn several times."""


class Lessons:
    """Rows of draws, and what the samples of each row have earned."""

    def __init__(self, random: Random, window: int) -> None:
        """`window`: draws that are chosen for at once."""
        self._random = random
        self._window = window
        self._rows: dict[int, int] = {}
        """By draw, the row that was chosen first: those of recorded draws as well, which never return."""
        self._rates: dict[int, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
        """Draws, samples, passed and total reward by row."""

    def at_this_moment(self) -> Self:
        """What stands where the queue goes back to it. Who chooses what goes on."""
        return deepcopy(self, {id(self._random): self._random})

    def choose(self, queue: TransferQueueClient, tickets: Sequence[Ticket]) -> list[str]:
        """A rank looks up the windows of its tickets, and has a row for each of their draws. Gives what is broken."""
        broken: list[str] = []
        for first in sorted({ticket.prompt_index // self._window * self._window for ticket in tickets}):
            draws = range(first, first + self._window)
            known = zip(draws, queue.curriculum.chosen(draws), strict=True)
            again = [draw for draw, row in known if row is None and draw in self._rows]
            found = queue.curriculum.choose(draws, [self._random.randrange(ROWS) for _ in draws])
            broken += [f"draw {draw} was of row {self._rows[draw]}, and is chosen for again" for draw in again]
            broken += [
                f"draw {draw} was of row {self._rows[draw]}, and is of row {row}"
                for draw, row in zip(draws, found, strict=True)
                if self._rows.setdefault(draw, row) != row
            ]
        return broken

    def count(self, draw: int, score: GroupScore = UNSCORED) -> None:
        """The draw is over."""
        if draw in self._rows:
            numbers = (1, score.samples, score.passed, score.total)
            rates = self._rates[self._rows[draw]]
            rates[:] = [before + more for before, more in zip(rates, numbers, strict=True)]

    def differing(self, queue: TransferQueueClient) -> list[str]:
        """What the queue has counted otherwise."""
        rates = queue.curriculum.pass_rates(ROWS)
        columns = (rates.draws, rates.samples, rates.passed, rates.total_reward)
        found = {row: [column[row].item() for column in columns] for row in range(ROWS)}
        return [
            f"row {row} has {found[row]}, not {self._rates[row]}" for row in found if found[row] != self._rates[row]
        ]
