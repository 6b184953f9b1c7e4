"""A real Redis as storage unit, for tests: started, killed, stopped and started again empty."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

from rljob_operator.local.services import find_server, storage_command
from rljob_workers.transfer_queue.types import QueueTiming
from rljob_workers.transfer_queue.units import StorageUnit
from tests.integration.children import die_with_tests

PASSWORD = "p@ss/w:rd"
QUOTED_PASSWORD = "p%40ss%2Fw%3Ard"
STARTS_WITHIN_SECONDS = 120.0
"""Longer than clients wait for a unit that is away."""


class UnitServer:
    """One server on a Unix socket, and on a TCP port of this machine where `port` is given."""

    def __init__(self, folder: Path, name: str, *, port: int = 0, max_bytes: int = 1 << 28) -> None:
        self._socket = folder / f"{name}.sock"
        self._port = port
        self._max_bytes = max_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self._port:
            return f"redis://:{QUOTED_PASSWORD}@127.0.0.1:{self._port}/0"
        return f"unix://:{QUOTED_PASSWORD}@{self._socket}"

    def start(self, *, generation: int | None = 1) -> None:
        """Starts it empty, waits until it answers and, as the coordinator does, marks it."""
        assert self._process is None
        command = storage_command(find_server(), self._socket.parent, self._socket, PASSWORD, self._max_bytes)
        command[command.index("--port") + 1] = str(self._port)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_tests)
        with closing(self._unit()) as unit:
            unit.generation(deadline=time.monotonic() + STARTS_WITHIN_SECONDS)
        if generation is not None:
            self.mark(generation)

    def mark(self, generation: int) -> None:
        with closing(self._unit()) as unit:
            unit.mark(generation, deadline=time.monotonic() + STARTS_WITHIN_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _unit(self) -> StorageUnit:
        return StorageUnit(0, self.url, timing=QueueTiming(unit_silence_seconds=STARTS_WITHIN_SECONDS))
