"""A brake on processes: they run for a small part of the time, as if their devices were too slow for the job."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

RUN_SECONDS = 0.1
STOP_SECONDS = 0.9


class Brake:
    """Stops whatever `pids` gives, again and again, while it is held; asked again each time."""

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        *,
        run_seconds: float = RUN_SECONDS,
        stop_seconds: float = STOP_SECONDS,
        at_most_seconds: float = math.inf,
    ) -> None:
        """In turns they run and stop, until the brake is released or `at_most_seconds` are over."""
        self._pids = pids
        self._run_seconds, self._stop_seconds = run_seconds, stop_seconds
        self._at_most_seconds = at_most_seconds
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="brake")

    def __enter__(self) -> "Brake":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._thread.join()

    def _hold(self) -> None:
        until = time.monotonic() + self._at_most_seconds
        while not self._released.is_set() and time.monotonic() < until:
            pids = self._pids()
            _send(pids, signal.SIGSTOP)
            self._released.wait(self._stop_seconds)
            _send(pids, signal.SIGCONT)
            self._released.wait(self._run_seconds)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
