"""Signals as something that a select loop can wait for.

Used by `parent` and `launcher`; a forked child gives them back with `reset_signals`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class SignalPipe:
    """Readable after SIGCHLD, SIGTERM or SIGINT. One per process."""

    def __init__(self) -> None:
        """Takes the three signals over."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.terminated = False
        """Whether SIGTERM or SIGINT was received."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is needed for the wake-up
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)

    def fileno(self) -> int:
        """For select."""
        return self._read

    def drain(self) -> None:
        """Forgets the wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass

    def close(self) -> None:
        """Closes the pipe, also this copy of it in a forked child (where `reset_signals` came first)."""
        os.close(self._read)
        os.close(self._write)

    def _terminate(self, *_: object) -> None:
        self.terminated = True


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Holds our signals back over a fork, so that none reaches the child while it has its parent's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset_signals() -> None:
    """In a forked child: default actions, and no wake-ups into the parent's pipe. Signals stay held for now."""
    signal.set_wakeup_fd(-1)
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)


def release_signals() -> None:
    """In a forked child that has its own handlers now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
