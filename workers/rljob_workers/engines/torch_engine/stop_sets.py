"""Which tokens end which samples: a row per distinct set of stop tokens, so that one look-up serves all slots.

Used by the scheduler only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.requests import IntArray

_MAX_SETS = 256
"""More sets than this are forgotten once nothing runs: a set costs a byte per token of the vocabulary."""


class StopSets:
    """A table [sets, vocabulary] of booleans that grows with the sets that are asked for."""

    def __init__(self, vocab_size: int) -> None:
        """Starts empty."""
        self._vocab_size = vocab_size
        self._indices: dict[frozenset[int], int] = {}
        self._table = np.zeros((0, vocab_size), dtype=np.bool_)

    def index_of(self, tokens: frozenset[int]) -> int:
        """The row of this set. Tokens beyond the vocabulary can never be drawn and are left out."""
        if tokens not in self._indices:
            row = np.zeros((1, self._vocab_size), dtype=np.bool_)
            row[0, [token for token in tokens if token < self._vocab_size]] = True
            self._indices[tokens] = self._table.shape[0]
            self._table = np.concatenate([self._table, row])
        return self._indices[tokens]

    def forget_if_many(self) -> None:
        """Bounds the memory; only while no slot refers to a row."""
        if len(self._indices) > _MAX_SETS:
            self.__init__(self._vocab_size)  # type: ignore[misc]  # empty again

    def contains(self, rows: IntArray, tokens: IntArray) -> npt.NDArray[np.bool_]:
        """Whether `tokens[i]` is in the set of row `rows[i]`."""
        found: npt.NDArray[np.bool_] = self._table[rows, tokens]
        return found
