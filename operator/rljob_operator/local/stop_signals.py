"""Signals that ask a run to stop. Called by `start` and `supervisor`, in the main thread.

From the moment a run says where its files are until its supervisor can drain it they are held back, and followed then:
else a Ctrl-C in between would end the command without a word.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Until `follow`, or the end of the block. Threads that begin meanwhile never take one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def follow(asked: Callable[[], None]) -> None:
    """Calls `asked` in the running loop for each of them, also for one that was held back."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
