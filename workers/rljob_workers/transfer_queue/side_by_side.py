"""Work on several storage units: one after another, or in a thread for each.

For `storage`, from one thread. Knows nothing of the work. No thread outlives its call: the next one uses the same
connections and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from rljob_workers.transfer_queue.errors import QueueError
from rljob_workers.transfer_queue.pieces import SPREAD_BYTES
from rljob_workers.transfer_queue.units import StorageUnit

S = TypeVar("S")
T = TypeVar("T")


class SideBySide:
    """Threads of these units.

    outcomes = threads.run(work, {0: share, 1: share}, num_bytes)    unit -> what `work(unit, share)` gave, or its error
    """

    def __init__(self, units: Sequence[StorageUnit]) -> None:
        """Threads begin with the first work that is worth them."""
        self._units = units
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Ends the threads; may be called twice."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def run(
        self, work: Callable[[StorageUnit, list[S]], T], shares: Mapping[int, list[S]], num_bytes: int
    ) -> dict[int, T | QueueError]:
        """Runs `work` for every unit's share, in a thread per unit where the bytes are worth it.

        Raises what is no QueueError when all have ended.
        """
        if num_bytes > SPREAD_BYTES:
            return self.at_once(work, shares)
        return {index: self._outcome(work, index, share) for index, share in shares.items()}

    def at_once(
        self, work: Callable[[StorageUnit, list[S]], T], shares: Mapping[int, list[S]]
    ) -> dict[int, T | QueueError]:
        """As `run`, so that no unit waits for another."""
        if len(shares) <= 1:
            return {index: self._outcome(work, index, share) for index, share in shares.items()}
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._units), thread_name_prefix="rljob-storage")
        begun: dict[int, Future[T | QueueError]] = {}
        try:
            for index, share in shares.items():
                begun[index] = self._threads.submit(self._outcome, work, index, share)
            wait(begun.values())
        finally:
            # Behind an exception no thread may go on.
            for outcome in begun.values():
                outcome.cancel()
            wait(begun.values())
        return {index: outcome.result() for index, outcome in begun.items()}

    def _outcome(self, work: Callable[[StorageUnit, list[S]], T], index: int, share: list[S]) -> T | QueueError:
        try:
            return work(self._units[index], share)
        except QueueError as error:
            return error
