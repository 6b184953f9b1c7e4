"""Makes the C library keep memory that tensors freed, instead of giving it back page by page.

Called once per process by the factories. A training step frees and allocates the same few megabytes many times; by
default each is mapped anew and every page of it faults, which costs up to a third of a forward pass of a small model.
Process-wide, and harmless to call twice. Does nothing where the C library is not glibc.
"""

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
