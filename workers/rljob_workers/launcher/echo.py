"""Repeats what ranks and engine write into their logs on the launcher's own output, so that `kubectl logs` shows it.

Called from the launcher's loop. Reads no more than the output takes, a bounded piece a turn. Bytes of a log that were
repeated are given back to the file system; its tail stays, since last words are read from it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_workers.launcher.loop_plugins import LauncherState

READ_BYTES = 64 << 10
"""Most bytes of one log in one turn."""
PIPE_BYTES = 4096
"""A pipe that polls as writable takes so many without blocking."""
LINE_BYTES = 16 << 10
"""A longer line is cut; so does the container's runtime."""
KEPT_BYTES = 1 << 20
"""Of a log that was repeated, the newest so many stay on disk; twice as many are there at most."""
PATIENCE_SECONDS = 1.0
"""A line without an end is repeated after so long without another byte."""

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_LIBC = ctypes.CDLL(None, use_errno=True)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Source:
    prefix: bytes
    path: Path
    offset: int = 0
    """Bytes before it were read."""
    punched: int = 0
    """Bytes before it were given back."""
    rest: bytes = b""
    """The beginning of a line."""
    grown_at: float = 0.0


class LogEcho:
    """Follows every log of a folder from where it ends now; one that appears later from its beginning.

    How many ranks and engines a pod has may change with an epoch: the folder tells.
    """

    def __init__(self, folder: Path, output: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`output`: a descriptor. The name in front of each line is that of the log."""
        self._folder = folder
        self._output = output
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._waiting = bytearray()
        self._takes = select.poll()
        self._takes.register(output, select.POLLOUT)
        self._can_punch = True
        self._look()
        for source in self._sources.values():
            source.offset = source.path.stat().st_size

    def turn(self, state: LauncherState) -> None:  # noqa: ARG002 - the base has it
        """See the base."""
        self._write()
        self._look()
        for source in self._sources.values():
            if len(self._waiting) < READ_BYTES:
                self._read(source)
        self._write()

    def watch(self, poller: select.poll) -> None:
        """See the base. Files cannot be waited for: they are looked at in every turn."""

    def close(self) -> None:
        """See the base."""

    def _look(self) -> None:
        for path in sorted(self._folder.glob("*.log")):
            if path.name not in self._sources:
                self._sources[path.name] = _Source(f"[{path.stem}] ".encode(), path)

    def _read(self, source: _Source) -> None:
        try:
            with source.path.open("rb") as log:
                log.seek(source.offset)
                data = log.read(READ_BYTES)
        except OSError:
            return
        now = self._clock()
        if data:
            source.offset += len(data)
            source.grown_at = now
            self._take_lines(source, data)
            self._give_back(source)
        elif source.rest and now - source.grown_at >= PATIENCE_SECONDS:
            self._add(source, source.rest)
            source.rest = b""

    def _take_lines(self, source: _Source, data: bytes) -> None:
        *lines, source.rest = (source.rest + data).split(b"\n")
        for line in lines:
            self._add(source, line)
        while len(source.rest) > LINE_BYTES:
            self._add(source, source.rest[:LINE_BYTES])
            source.rest = source.rest[LINE_BYTES:]

    def _add(self, source: _Source, line: bytes) -> None:
        self._waiting += source.prefix + line.rstrip(b"\r") + b"\n"

    def _write(self) -> None:
        sent = 0
        try:
            while sent < len(self._waiting) and self._takes.poll(0):
                sent += os.write(self._output, self._waiting[sent : sent + PIPE_BYTES])
        except BlockingIOError:
            pass
        except OSError:  # nobody reads any more: that must not end the pod's work
            sent = len(self._waiting)
        del self._waiting[:sent]

    def _give_back(self, source: _Source) -> None:
        """Frees the blocks of what was repeated: sizes and offsets stay as the writers have them."""
        until = source.offset - KEPT_BYTES
        if not self._can_punch or until - source.punched < KEPT_BYTES:
            return
        descriptor = os.open(source.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _punch_hole(descriptor, until)
            source.punched = until
        except OSError as error:
            self._can_punch = False
            _log.warning("%s: its file system gives nothing back (%s): logs grow", source.path, error)
        finally:
            os.close(descriptor)


def _punch_hole(descriptor: int, length: int) -> None:
    """Frees bytes [0, length) of a file."""
    offset, size = ctypes.c_int64(0), ctypes.c_int64(length)
    if _LIBC.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, offset, size) != 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
