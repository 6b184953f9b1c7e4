"""Several sources of prompts as one, mixed by weights.

The stream is cut into blocks, and in each every source has the same number of places (`block_counts`); a block's own
shuffle says which. So the source of the n-th prompt, and how many of its prompts came before, are functions of weights,
seed and n alone: a cursor of one number resumes all of them, and each source is in the order that it has by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from rljob_api.spec.data import block_counts
from rljob_workers.data.prompts import Prompt, RowSource, shuffled_position

_RETAINED_BLOCKS = 8
"""Blocks whose places are known, since prompts are asked for nearly in turn."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The row that comes at a place of the stream."""

    source: int
    index: int
    """In the stream of that source."""


class Mixing:
    """Which source comes when."""

    def __init__(self, weights: Sequence[float], seed: int | None) -> None:
        """At least one weight. Without a seed the sources of a block are spread evenly."""
        self._counts = block_counts(list(weights))
        self._size = sum(self._counts)
        self._seed = seed
        self._spread = _spread(self._counts)
        self._block = lru_cache(_RETAINED_BLOCKS)(self._draws)

    def draw(self, index: int) -> Draw:
        """At place `index` >= 0 of the stream."""
        block, place = divmod(index, self._size)
        source, before = self._block(block)[place]
        return Draw(source, block * self._counts[source] + before)

    def _draws(self, block: int) -> list[tuple[int, int]]:
        """For each place of a block its source, and how many of its prompts the block has before it."""
        met = [0] * len(self._counts)
        draws = []
        for place in range(self._size):
            source = self._spread[self._shuffled(place, block)]
            draws.append((source, met[source]))
            met[source] += 1
        return draws

    def _shuffled(self, place: int, block: int) -> int:
        if self._seed is None:
            return place
        return shuffled_position(place, self._size, seed=self._seed, pass_number=block)


def _spread(counts: Sequence[int]) -> list[int]:
    """Each source as often as it counts, as far apart as may be."""
    places = [((turn + 0.5) / count, source) for source, count in enumerate(counts) for turn in range(count)]
    return [source for _, source in sorted(places)]


class MixedPrompts(RowSource):
    """Prompts of several sources."""

    def __init__(self, sources: Sequence[RowSource], mixing: Mixing) -> None:
        """As many sources as the mixing has weights."""
        self._sources = list(sources)
        self._first_rows = list(accumulate((len(source) for source in self._sources[:-1]), initial=0))
        self._mixing = mixing

    def __len__(self) -> int:
        """Rows of all sources together: small ones with large weights begin again before others have ended."""
        return sum(len(source) for source in self._sources)

    def at(self, index: int, /) -> Prompt:
        """From the source whose turn it is."""
        draw = self._mixing.draw(index)
        return replace(self._sources[draw.source].at(draw.index), index=index)

    def of_row(self, row: int, index: int) -> Prompt:
        """Rows are counted through the sources, in their order."""
        source = bisect_right(self._first_rows, row) - 1
        return self._sources[source].of_row(row - self._first_rows[source], index)
