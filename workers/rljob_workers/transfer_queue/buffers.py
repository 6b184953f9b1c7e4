"""Memory that fetched columns lie in: lent for a batch, given back by itself when the batch is dropped.

For `reads` only. A new buffer costs a page fault for every 4 KiB that is received into it, often more than the bytes
themselves; a buffer that was used before costs nothing.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLED_BYTES = 1 << 16
"""Smaller buffers are the allocator's, which keeps such sizes at hand."""
_STEPS = 8
"""Sizes between two powers of two: at most an eighth of a buffer is not used."""

Buffer: TypeAlias = npt.NDArray[np.uint8]


class BufferPool:
    """Buffers of one process. Free ones are kept only as far as so many bytes were once lent at the same time.

    A buffer may be dropped in any thread; `lend` is called from one.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = {}
        # A finalizer may run in the middle of anything: it only appends, which is atomic.
        self._returned: deque[Buffer] = deque()
        self._free_bytes = 0
        self._lent_bytes = 0
        self._peak_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of buffers that nobody uses."""
        self._take_back()
        return self._free_bytes

    def lend(self, num_bytes: int) -> Buffer:
        """An uninitialised array of `num_bytes`; whatever is made of it keeps the memory, and nothing else does."""
        if num_bytes < POOLED_BYTES:
            return np.empty(num_bytes, np.uint8)
        self._take_back()
        size = _rounded(num_bytes)
        free = self._free.get(size)
        if free:
            block = free.pop()
            self._free_bytes -= size
        else:
            self._make_room(size)
            block = np.empty(size, np.uint8)
        self._lent_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._lent_bytes)
        lent = block[:num_bytes]
        # At exit memory need not come back.
        weakref.finalize(lent, self._returned.append, block).atexit = False
        return lent

    def _take_back(self) -> None:
        for block in _drained(self._returned):
            self._lent_bytes -= block.nbytes
            self._free_bytes += block.nbytes
            self._free.setdefault(block.nbytes, []).append(block)

    def _make_room(self, size: int) -> None:
        """Lets go of buffers of other sizes, so that lent and free ones together never pass the peak."""
        for other in list(self._free):
            blocks = self._free[other]
            while blocks and self._lent_bytes + self._free_bytes + size > self._peak_bytes:
                self._free_bytes -= blocks.pop().nbytes
            if not blocks:
                del self._free[other]


def _drained(returned: deque[Buffer]) -> Iterator[Buffer]:
    while returned:
        yield returned.popleft()


def _rounded(num_bytes: int) -> int:
    step = (1 << (num_bytes.bit_length() - 1)) // _STEPS
    return -(-num_bytes // step) * step
