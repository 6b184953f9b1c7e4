"""Processes that do one thing with the queue and are stopped or killed in the middle of it.

For tests. Forked, so that nothing is imported twice; a victim prints and reads lines; nothing else is shared.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.integration.children import die_with_tests

ANSWERS_WITHIN_SECONDS = 60.0
Send = Callable[[str], None]
Receive = Callable[[], str]


class Victim:
    """`work(say, receive)` in a process of its own; what it raises is its last line."""

    def __init__(self, work: Callable[[Send, Receive], None]) -> None:
        self._from, states = os.pipe()
        receives, self._to = os.pipe()
        self._buffer = b""
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, states, receives)
        os.close(states)
        os.close(receives)

    def read_line(self) -> str:
        """The next line that it says."""
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], ANSWERS_WITHIN_SECONDS)
            assert ready, f"process {self.pid} said nothing for {ANSWERS_WITHIN_SECONDS:.0f} s"
            message = os.read(self._from, 4096)
            assert message, f"process {self.pid} ended without a word; it had said {self._buffer!r}"
            self._buffer += message
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def report(self, line: str) -> None:
        os.write(self._to, line.encode() + b"\n")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; may be called twice."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._from)
            os.close(self._to)
            self.pid = 0


@contextmanager
def victim(work: Callable[[Send, Receive], None]) -> Iterator[Victim]:
    """Killed at the end, whatever happens."""
    made = Victim(work)
    try:
        yield made
    finally:
        made.kill()


def _live(work: Callable[[Send, Receive], None], states: int, receives: int) -> None:
    try:
        die_with_tests()
        with os.fdopen(states, "w", buffering=1) as out, os.fdopen(receives) as received:
            try:
                work(lambda line: print(line, file=out), lambda: received.readline().strip())
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=out)
    finally:
        os._exit(0)
