"""How much memory of its own a process has beyond that at the start of a piece of work, at most: measured from outside.

    result, peak = peak_of(lambda: read(folder))

Pages of mapped files are not its own: they go when someone needs the memory.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

SAMPLE_SECONDS = 0.002

Result = TypeVar("Result")


def peak_of(work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` gives, and the bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what was freed before would be used again, and not be seen
    start, highest, done = own_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(SAMPLE_SECONDS):
            highest = max(highest, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
    finally:
        done.set()
        watcher.join()
    return result, max(highest, own_memory()) - start


def own_memory() -> int:
    """Anonymous pages of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10
