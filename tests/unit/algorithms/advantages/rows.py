"""Rows as a token estimator gets them, and what it should give, token by token in float64 loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.estimator import AdvantageRows
from rljob_workers.algorithms.objective import MaskedRows


@dataclass(frozen=True)
class Row:
    """A response: of each token whether the model drew it, with the value before it and its penalty."""

    reward: float
    masks: Sequence[int]
    values: Sequence[float]
    penalties: Sequence[float]
    cut_off: bool = False
    valid: bool = True

    @cached_property
    def drawn(self) -> list[int]:
        """Places of tokens that count."""
        return [place for place, drawn in enumerate(self.masks) if drawn and self.valid]

    def token_rewards(self) -> dict[int, float]:
        """By place."""
        return {
            place: (self.reward if place == self.drawn[-1] else 0.0) - self.penalties[place] for place in self.drawn
        }


def make_row(
    reward: float,
    masks: Sequence[int],
    values: Sequence[float] = (),
    penalties: Sequence[float] = (),
    *,
    cut_off: bool = False,
    valid: bool = True,
) -> Row:
    """Without values or penalties all of them are 0."""
    zeros = [0.0] * len(masks)
    return Row(reward, masks, values or zeros, penalties or zeros, cut_off, valid)


def as_rows(rows: Sequence[Row], samples: int = 1) -> AdvantageRows:
    """All of them, group by group."""
    return AdvantageRows(
        rewards=torch.tensor([row.reward if row.valid else 0.0 for row in rows]),
        valid=torch.tensor([row.valid for row in rows]),
        samples=samples,
        masks=MaskedRows(
            torch.tensor([mask * row.valid for row in rows for mask in row.masks]),
            torch.tensor([len(row.masks) for row in rows]),
        ),
        cut_off=torch.tensor([row.cut_off for row in rows]),
        values=torch.tensor([value for row in rows for value in row.values], dtype=torch.float32),
        penalties=torch.tensor([penalty for row in rows for penalty in row.penalties], dtype=torch.float32),
    )


_NUMBERS = st.floats(-4, 4, width=32)


@st.composite
def some_rows(draw: st.DrawFn, samples: int = 1) -> list[Row]:
    """Whole groups, with tools' tokens anywhere, rows that do not count, and rows without a drawn token."""
    rows = []
    for _ in range(samples * draw(st.integers(1, 4))):
        masks = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
        numbers = st.lists(_NUMBERS, min_size=len(masks), max_size=len(masks))
        flags = draw(st.tuples(st.booleans(), st.integers(0, 3)))
        rows.append(Row(draw(_NUMBERS), masks, draw(numbers), draw(numbers), flags[0], valid=flags[1] > 0))
    return rows


def whitened_by_hand(values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Mean 0, and 1 for the variance, of the numbers of (row, place)."""
    if not values:
        return {}
    mean = sum(values.values()) / len(values)
    variance = sum((value - mean) ** 2 for value in values.values()) / max(len(values) - 1, 1)
    return {place: (value - mean) / (variance + 1e-8) ** 0.5 for place, value in values.items()}


def as_tokens(rows: Sequence[Row], values: dict[tuple[int, int], float]) -> torch.Tensor:
    """[tokens] float64, with 0 where nothing is said."""
    places = [(number, place) for number, row in enumerate(rows) for place in range(len(row.masks))]
    return torch.tensor([values.get(place, 0.0) for place in places], dtype=torch.float64)
