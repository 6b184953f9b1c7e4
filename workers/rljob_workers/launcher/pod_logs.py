"""The logs of a pod's ranks and engines: echoed on the launcher's output, and their tails sent to the coordinator.

Plugins of the launcher's loop; no turn waits. What was echoed is returned to the file system but for its tail; a tail
that cannot be sent is sent later or never, since training must not wait for a log.
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

from rljob_api.wire.identity import Endpoints
from rljob_api.wire.logs import BEGINS, RETAINED_LOG_CHARACTERS, LogTail, last_incarnations
from rljob_workers.dcs.membership.coordinator_http import ChannelBroken, HttpChannel
from rljob_workers.launcher.environment import LauncherState

READ_BYTES = 64 << 10
"""Most bytes of one log in one turn."""


PIPE_BYTES = 4096
"""A pipe that polls as writable takes so many without blocking."""


LINE_BYTES = 16 << 10
"""A longer line is cut; so does the container's runtime."""


RETAINED_BYTES = 1 << 20
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

    How many ranks and engines a pod has may change with an epoch: the folder lists them.
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
        self._scan()
        for source in self._sources.values():
            source.offset = source.path.stat().st_size

    def turn(self, state: LauncherState) -> None:  # noqa: ARG002 - the base has it
        """See the base."""
        self._write()
        self._scan()
        for source in self._sources.values():
            if len(self._waiting) < READ_BYTES:
                self._read(source)
        self._write()

    def watch(self, poller: select.poll) -> None:
        """See the base. Files cannot be waited for: they are looked at in every turn."""

    def close(self) -> None:
        """See the base."""

    def _scan(self) -> None:
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
        except OSError:  # its reader is gone: that must not end the pod's work
            sent = len(self._waiting)
        del self._waiting[:sent]

    def _give_back(self, source: _Source) -> None:
        """Frees the blocks of what was repeated: sizes and offsets stay as the writers have them."""
        until = source.offset - RETAINED_BYTES
        if not self._can_punch or until - source.punched < RETAINED_BYTES:
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


SECONDS = 15.0
"""Between two checks of what has grown: a log that grows all the time costs the coordinator 4 KiB a second."""


ANSWER_SECONDS = 5.0


LAST_SECONDS = 2.0
"""At the end of the pod: its grace period is for its ranks."""


_READ_BYTES = 4 * RETAINED_LOG_CHARACTERS


_tails_log = logging.getLogger(__name__)


class LogTails:
    """Of one pod."""

    def __init__(
        self, folder: Path, endpoints: Endpoints, incarnation: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`incarnation` is this container's: a pod that takes its place begins its logs again."""
        self._folder = folder
        self._incarnation = incarnation
        self._clock = clock
        self._channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of change of each log as it was sent last."""
        self._due: list[Path] = []
        self._seen: tuple[int, int] = (0, 0)
        self._not_before = 0.0

    def turn(self, state: LauncherState) -> None:
        """See the base."""
        self._collect()
        seen = (state.rank_starts + sum(engine.starts for engine in state.engines), state.ranks_up)
        if seen != self._seen or self._clock() >= self._not_before:
            self._seen, self._not_before = seen, self._clock() + SECONDS
            self._scan()
        if self._channel.pending is None and self._due:
            self._send(self._due.pop(0))

    def watch(self, poller: select.poll) -> None:
        """See the base."""
        self._channel.watch(poller)

    def close(self) -> None:
        """See the base."""
        self._channel.close()

    def finish(self) -> None:
        """The last output of a pod that ends; waits for a moment."""
        self._scan()
        until = self._clock() + LAST_SECONDS
        for path in self._due:
            left = until - self._clock()
            if left <= 0:
                return
            try:
                self._channel.request("PUT", "/v1/logs", self._tail(path), timeout=left)
            except (ChannelBroken, OSError) as error:
                _tails_log.info("the logs of this pod are not kept to their end: %s", error)
                return

    def _scan(self) -> None:
        """Notes which logs have changed since they were sent."""
        self._due = []
        for path in sorted(self._folder.glob("*.*.log")):
            found = path.stat()
            if self._sent.get(path.name) != (found.st_size, found.st_mtime_ns):
                self._due.append(path)

    def _send(self, path: Path) -> None:
        try:
            self._channel.begin("PUT", "/v1/logs", self._tail(path), timeout=ANSWER_SECONDS)
        except (ChannelBroken, OSError):
            self._sent.pop(path.name, None)

    def _collect(self) -> None:
        try:
            self._channel.collect()
        except ChannelBroken:
            self._sent.clear()  # the next scan sends all of them again

    def _tail(self, path: Path) -> bytes:
        with path.open("rb") as log:
            found = path.stat()
            log.seek(max(0, found.st_size - _READ_BYTES))
            text = log.read(_READ_BYTES).decode(errors="replace").replace("\0", "")
        self._sent[path.name] = (found.st_size, found.st_mtime_ns)
        marks = BEGINS.findall(text)
        incarnation = f"{self._incarnation} {marks[-1] if marks else ''}".strip()
        newest = last_incarnations(text)[0][-RETAINED_LOG_CHARACTERS:]
        tail = LogTail(name=path.name.removesuffix(".log"), incarnation=incarnation, text=newest)
        return tail.model_dump_json().encode()
