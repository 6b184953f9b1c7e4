"""glibc keeps memory that was freed: a trainer frees and takes the same large blocks in every micro-batch."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1


_M_MMAP_THRESHOLD = -3


_LARGEST_HEAP_BLOCK = 1 << 30
"""Blocks from 1 GiB on are mapped as before: keeping those would hold too much."""


_NEVER_TRIM = (1 << 31) - 1
"""The largest value that the C interface (an int) takes."""


def keep_freed_memory() -> None:
    """Raises glibc's thresholds for mapping and trimming."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)
