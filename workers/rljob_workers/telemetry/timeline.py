"""Spans of one process as Chrome trace events, a JSON line each, in a file of its own.

Written by ranks; the supervisor merges all files into `timeline.json`. Never blocks on the disk (no fsync).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from rljob_api.machine.room import named_room

LIMIT_BYTES = 64 << 20
"""A month of a long job must not fill the disk: spans beyond this much per process are dropped."""

FLUSH_SECONDS = 1.0


class Timeline:
    """Appends spans; safe to call from several threads (a line is one append to a list)."""

    def __init__(self, path: Path, name: str) -> None:
        """`name` is the row of the picture, e.g. `actor-0.0`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = path.parent
        self._file = path.open("ab")
        self._pid = os.getpid()
        self._pending: list[bytes] = []
        self._flushed = time.monotonic()
        self._seconds: dict[str, float] = {}
        """Seconds of each kind of span, since they were last taken."""
        self._write({"name": "process_name", "ph": "M", "pid": self._pid, "args": {"name": name}})

    @contextmanager
    def span(self, name: str, row: int = 0, **args: int | float | str) -> Iterator[None]:
        """Records how long the block took. `row` separates overlapping spans of one process."""
        begin = time.time_ns()
        try:
            yield
        finally:
            duration = time.time_ns() - begin
            self._seconds[name] = self._seconds.get(name, 0.0) + duration / 1e9
            event = {"name": name, "ph": "X", "ts": begin // 1000, "dur": duration // 1000, "pid": self._pid}
            self._write({**event, "tid": row, "args": args})

    def take_seconds(self) -> dict[str, float]:
        """Seconds of each kind of span since the last call; of the thread that makes spans."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _write(self, event: dict[str, object]) -> None:
        self._pending.append(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands what is pending to the system."""
        pending, self._pending = self._pending, []
        self._flushed = time.monotonic()
        if self._file.tell() < LIMIT_BYTES:
            with named_room(self._folder, "the timeline"):
                self._file.write(b"".join(pending))
                self._file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self.flush()
        self._file.close()
