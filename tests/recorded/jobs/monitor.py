"""All calls that a job's Redis servers receive, as MONITOR shows them, from before the job's first process asks."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlparse

PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.002
"""A server that listens has no other client for as long as a coordinator takes for its imports."""


class Monitor:
    """Of one server; it ends with it."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._lines: list[bytes] = []
        self._thread = threading.Thread(target=self._read, args=(url,), name=f"monitor-{name}", daemon=True)
        self._thread.start()

    def lines(self) -> list[bytes]:
        """All calls, once the server has ended."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} has not ended within {PATIENCE_SECONDS:.0f} s"
        return self._lines

    def _read(self, url: str) -> None:
        parts = urlparse(url)
        with _connected(parts.path) as connection, connection.makefile("rwb") as stream:
            stream.write(f"AUTH {parts.password}\r\nMONITOR\r\n".encode())
            stream.flush()
            self._lines += [line for line in stream if line != b"+OK\r\n"]


def monitors(endpoints: Path) -> list[Monitor]:
    """One for each server of the job that writes this file."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not endpoints.exists():
        assert time.monotonic() < deadline, f"no {endpoints}"
        time.sleep(POLL_SECONDS)
    servers = json.loads(endpoints.read_bytes())
    named = {"control": servers["controlRedis"]}
    named |= {f"storage-{index}": url for index, url in enumerate(servers["storageUnits"])}
    return [Monitor(name, url) for name, url in named.items()]


def _connected(path: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            assert time.monotonic() < deadline, f"nothing listens at {path}"
            time.sleep(POLL_SECONDS)
        else:
            return connection
