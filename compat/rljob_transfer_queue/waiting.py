"""Waiting for rows of a partition by notices. For `calls`; a lost notice costs a recheck, never a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

from rljob_transfer_queue.metadata import BatchMeta
from rljob_workers.transfer_queue.control.connection import Subscription

RECHECK_SECONDS = 1.0
"""Longest wait for one notice: the server retains no notice for a client that was not connected."""


def await_batch(url: str, partition: str, ask: Callable[[], BatchMeta | int], seconds: float) -> BatchMeta | int:
    """Asks at every notice of the partition, until the answer is a batch or the time is over."""
    notices = Subscription(url)
    deadline = time.monotonic() + seconds
    try:
        while True:
            notices.listen(f"tq:{partition}")
            answer = ask()
            left = deadline - time.monotonic()
            if isinstance(answer, BatchMeta) or left <= 0:
                return answer
            notices.wait(min(left, RECHECK_SECONDS))
    finally:
        notices.close()
