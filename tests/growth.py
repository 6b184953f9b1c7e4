"""How much more work a call is with ten times as much of what it takes.

Counted in processor time of the thread that works, never in wall time: what else runs on the machine does not count.
Calls are no measure, since one that sums, copies or searches a list is one call however long that is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

FACTOR = 10
MOST = 40.0
"""Ten times the work, sorting and cold caches included, is at most so much; of a quadratic one it is a hundred."""
_TRIES = 3


def processor_seconds(work: Callable[[], object]) -> float:
    """Seconds of one call, without the collector of garbage."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        gc.enable()


def growth(make: Callable[[int], Callable[[], object]], size: int) -> float:
    """Work of `size` of what `make` makes a call of, over that of a tenth; the least of some tries of each."""
    small, large = make(size // FACTOR), make(size)
    of_small = min(processor_seconds(small) for _ in range(_TRIES))
    of_large = processor_seconds(large)
    if of_large > MOST * of_small:  # a page that had to be fetched, perhaps
        of_large = min(of_large, processor_seconds(large))
    return of_large / of_small
