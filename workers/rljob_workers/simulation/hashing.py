"""Whole numbers of 64 bits that are functions of others: splitmix64 (Steele, Lea, Flood 2014), without state.

Pure, over NumPy arrays; sums wrap around, so that they are the same in whatever order they are made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mixed(values: Words) -> Words:
    """A number for each that looks like chance."""
    with np.errstate(over="ignore"):
        values = values + _GAMMA
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
        return values ^ (values >> np.uint64(31))


def joined(*columns: Words) -> Words:
    """A number for each row of several columns; the order of the columns counts."""
    found = mixed(columns[0])
    with np.errstate(over="ignore"):
        for column in columns[1:]:
            found = mixed(found + column)
    return found


def words(values: npt.NDArray[np.generic]) -> Words:
    """Whole numbers as such, and float32 by its bits."""
    if values.dtype == np.float32:
        return values.view(np.uint32).astype(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def fraction(values: Words) -> npt.NDArray[np.float64]:
    """Of each its upper bits, as a number in [0, 1)."""
    return (values >> np.uint64(12)).astype(np.float64) * 2.0**-52
