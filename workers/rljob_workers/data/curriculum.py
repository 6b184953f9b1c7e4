"""Which row of the data a draw is of, in jobs with a curriculum: a function of the user's chooses, once for a window.

Used by the rollout's loop, from its own thread. What was chosen is in the control Redis, durably and once for each
draw: of two ranks that ask the function for the same draws, the first to answer decides. Users import `ChoosesRows`
and `PassRates` from here.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from rljob_workers.transfer_queue.pass_rates import MAX_ROWS, PassRates
from rljob_workers.user_functions import FinalCalls, Signature, load_called

if TYPE_CHECKING:
    from rljob_api.spec.curriculum import CurriculumSpec
    from rljob_workers.data.prompts import Prompt, RowSource

__all__ = ["ChoosesRows", "Curriculum", "CurriculumPrompts", "PassRates"]


FIELD = "rollout.curriculum.function"


_OWN = Signature(2, "rates, draws", "def choose(rates, draws): return [draw % len(rates) for draw in draws]")


class ChoosesRows(Protocol):
    """A user's curriculum: which rows of the data come next."""

    def __call__(self, rates: PassRates, draws: Sequence[int], /) -> Sequence[int]:
        """The row of each of `draws`, from 0 to len(rates) - 1; a row may come more than once.

        `draws` are positions in the job's stream of prompts, in their order, each given once: mostly as many as
        rollout.batchSize. A function that draws lots seeds them by `draws[0]`. It is called between two turns of a
        rank's loop: it should return within seconds. Whatever it raises fails the job.
        """
        ...


class Curriculum:
    """A user's function, its result checked."""

    def __init__(self, name: str, function: ChoosesRows) -> None:
        """`name`: its import path."""
        self._calls = FinalCalls(
            f"{FIELD}: {name}", lambda rates, draws: _listed(function(rates, draws), len(draws) + 1)
        )

    @classmethod
    def load(cls, spec: CurriculumSpec) -> Curriculum:
        """Raises ValueError, with a sentence, where the function cannot be loaded."""
        function = load_called(FIELD, spec.function, "rollout.curriculum.path", spec.path, _OWN, "is called")
        return cls(spec.function, function)

    def choose(self, rates: PassRates, draws: Sequence[int]) -> list[int]:
        """A row for each of `draws`.

        Raises ValueError, which fails the job, for what the function raises, and for anything but as many rows.
        """
        what = f"draws {draws[0]} to {draws[-1]}"
        chosen = self._calls.answer(what, rates, draws)
        rows = _as_rows(chosen)
        if rows is None or len(rows) != len(draws):
            if rows is None:
                found = f"{chosen!r:.200}"
            else:
                found = f"{len(rows)} rows" if len(rows) < len(draws) else f"more than {len(draws)} rows"
            raise ValueError(
                f"{self._calls.where} returned {found} for {what}. Return a row for each of the {len(draws)}."
            )
        wrong = next((row for row in rows if not 0 <= row < len(rates)), None)
        if wrong is not None:
            raise ValueError(
                f"{self._calls.where} returned row {wrong} for {what}, and the data has rows 0 to {len(rates) - 1}."
                " Return rows of the data."
            )
        return rows


def _listed(chosen: Any, most: int) -> object:  # noqa: ANN401 - what a user returns
    """A list of the first `most` of it: what is lazy computes them here, and may raise. As it is where it has none."""
    try:
        rows = iter(chosen)
    except TypeError:
        return chosen
    return list(islice(rows, most))


def _as_rows(chosen: object) -> list[int] | None:
    """None for what is no list of whole numbers."""
    try:
        return [operator.index(row) for row in chosen]  # type: ignore[attr-defined]  # what a user returns
    except TypeError:
        return None


class ChosenRows(Protocol):
    """The part of `TransferQueueClient.curriculum` that is needed."""

    def chosen(self, draws: range, /) -> list[int | None]:
        """The row of each draw; None where none is chosen."""
        ...

    def choose(self, draws: Sequence[int], rows: Sequence[int], /) -> list[int]:
        """Chooses; gives the rows that stand."""
        ...

    def pass_rates(self, num_rows: int, /) -> PassRates:
        """Pass rates of all rows of the data."""
        ...


_RETAINED_WINDOWS = 64
"""Windows whose rows are known without asking: those that are in work are of a few."""


class CurriculumPrompts:
    """Prompts of draws, in the order that the curriculum gives."""

    def __init__(self, source: RowSource, rows: ChosenRows, curriculum: Curriculum, window: int) -> None:
        """`window`: draws that are chosen for at once. Raises ValueError where the data has too many rows."""
        if len(source) > MAX_ROWS:
            raise ValueError(
                f"{FIELD}: the data has {len(source)} rows, and pass rates are counted for {MAX_ROWS} at most, since"
                " they are read at once. Remove rollout.curriculum, or train on a part of the data."
            )
        self._source = source
        self._rows = rows
        self._curriculum = curriculum
        self._window = window
        self._known: OrderedDict[int, list[int]] = OrderedDict()

    def at(self, index: int, /) -> Prompt:
        """The prompt of draw `index`. ValueError where the user's function cannot choose, or data has become less."""
        window, place = divmod(index, self._window)
        if window not in self._known:
            self._known[window] = self._rows_of(window)
            while len(self._known) > _RETAINED_WINDOWS:
                self._known.popitem(last=False)
        row = self._known[window][place]
        if row >= len(self._source):
            raise ValueError(
                f"rollout.curriculum: row {row} was chosen for draw {index}, and the data has {len(self._source)} rows"
                " now. Put back the data that the job began with."
            )
        return self._source.of_row(row, index)

    def _rows_of(self, window: int) -> list[int]:
        draws = range(window * self._window, (window + 1) * self._window)
        found = dict(zip(draws, self._rows.chosen(draws), strict=True))
        # Some are chosen where the job had another batchSize before.
        open_draws = [draw for draw, row in found.items() if row is None]
        if open_draws:
            wanted = self._curriculum.choose(self._rows.pass_rates(len(self._source)), open_draws)
            found |= zip(open_draws, self._rows.choose(open_draws, wanted), strict=True)
        return [row for row in found.values() if row is not None]
