"""What glibc does with memory that was freed. A trainer takes the same large blocks again in every micro-batch.

A sharded forward model takes and frees each layer of it in turn, of a size that no hole fits: its process would keep
twice the memory of a whole one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_M_TRIM_THRESHOLD = -1


_M_MMAP_THRESHOLD = -3


_LARGEST_HEAP_BLOCK = 1 << 30
"""Blocks from 1 GiB on are mapped as before: keeping those would hold too much."""


_NEVER_TRIM = (1 << 31) - 1
"""The largest value that the C interface (an int) takes."""


_MAPPED_BLOCK = 1 << 16


def keep_freed_memory() -> None:
    """Raises glibc's thresholds for mapping and trimming."""
    _set({_M_MMAP_THRESHOLD: _LARGEST_HEAP_BLOCK, _M_TRIM_THRESHOLD: _NEVER_TRIM})


def return_freed_memory() -> None:
    """Has every larger block mapped by itself; by default the threshold grows to the largest that was freed."""
    _set({_M_MMAP_THRESHOLD: _MAPPED_BLOCK, _M_TRIM_THRESHOLD: _MAPPED_BLOCK})


def _set(options: Mapping[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in options.items():
        mallopt(option, value)
