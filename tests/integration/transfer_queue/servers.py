"""Real Redis servers of one job, which tests start, kill and damage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from rljob_api.wire.identity import Endpoints
from rljob_operator.local.services import control_command, find_server, storage_command
from tests.integration.children import die_with_tests

PASSWORD = "secret"
STARTS_WITHIN_SECONDS = 120.0


class Server:
    """One Redis process on a Unix socket."""

    def __init__(self, command: list[str], socket: Path) -> None:
        self.url = f"unix://:{PASSWORD}@{socket}"
        self._command = command
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_tests
        )
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                with self.admin() as admin:
                    admin.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, f"{self._command[0]} exited with {self._process.returncode}"
                assert time.monotonic() < deadline, f"{self._socket} does not answer"
                time.sleep(0.005)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """It keeps its connections and answers no one, until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def admin(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self._socket), password=PASSWORD)


class Servers:
    """Control Redis and storage units of one job."""

    def __init__(self, folder: Path, num_units: int = 2, *, unit_options: Sequence[str] = ()) -> None:
        self._folder = folder
        program = find_server()
        control = folder / "control.sock"
        sockets = [folder / f"unit{index}.sock" for index in range(num_units)]
        # What is killed is the process and not the machine: nothing waits for a disk, and nothing is written late.
        command = [*control_command(program, folder, control, PASSWORD), "--appendfsync", "no"]
        self.control = Server(command, control)
        self.units = [
            Server([*storage_command(program, folder, socket, PASSWORD, 64 << 20), *unit_options], socket)
            for socket in sockets
        ]

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(
            job="test",
            coordinator="http://127.0.0.1:1",
            token="token",
            control_redis=self.control.url,
            storage_units=[unit.url for unit in self.units],
            run_dir=str(self._folder),
            weights_dir=str(self._folder),
        )

    def start(self) -> None:
        for server in (self.control, *self.units):
            server.start()

    def stop(self) -> None:
        for server in (self.control, *self.units):
            server.kill()

    def wipe(self) -> None:
        for server in (self.control, *self.units):
            with server.admin() as admin:
                admin.flushall()

    def unit_keys(self) -> set[bytes]:
        """Of all units."""
        found: set[bytes] = set()
        for unit in self.units:
            with unit.admin() as admin:
                found.update(admin.scan_iter())
        return found

    def renew_control(self) -> None:
        """A control Redis without a past: a restart reads the whole append-only file."""
        self.control.kill()
        shutil.rmtree(self._folder / "appendonlydir")
        self.control.start()

    def empty_unit(self, index: int) -> None:
        """What a unit looks like that was killed and came back; connections to it break, as they would."""
        with self.units[index].admin() as admin:
            admin.flushall()
            admin.client_kill_filter(_type="normal", skipme=True)

    def sync_control(self) -> int:
        """The length of the append-only file: every command that was answered is in it."""
        return self._append_only_file().stat().st_size

    def restart_control(self, length: int | None = None) -> None:
        """SIGKILL and start; `length`: the append-only file is cut to that many bytes in between."""
        self.control.kill()
        if length is not None:
            os.truncate(self._append_only_file(), length)
        self.control.start()

    def _append_only_file(self) -> Path:
        return max((self._folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Servers in a folder of their own, until the end."""
    # Not tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        servers = Servers(Path(folder))
        servers.start()
        try:
            yield servers
        finally:
            servers.stop()
