"""Our servers: control Redis and storage units as the product starts them, on Unix sockets or also on TCP ports."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path

import redis

from rljob_api.wire.identity import Endpoints
from rljob_operator.local.services import control_command, find_server, storage_command
from tests.integration.children import die_with_tests

_PASSWORD = "secret"
_STARTS_WITHIN_SECONDS = 20.0
_UNIT_BYTES = 8 << 30


class Transport(StrEnum):
    TCP = "tcp"
    UNIX = "unix"


class RedisServers:
    """One job's servers, with what their processes have used."""

    def __init__(self, transport: Transport, num_units: int, program: Path | None) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-q-")))
        self._folder = folder
        program = program or find_server()
        self._urls: list[str] = []
        self.pids: list[int] = []
        try:
            for name in ("control", *(f"unit{index}" for index in range(num_units))):
                path = folder / f"{name}.sock"
                command = (
                    control_command(program, folder, path, _PASSWORD)
                    if name == "control"
                    else storage_command(program, folder, path, _PASSWORD, _UNIT_BYTES)
                )
                self._urls.append(self._start(command, path, transport))
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(
            job="bench",
            coordinator="http://127.0.0.1:1",
            token="token",
            control_redis=self._urls[0],
            storage_units=self._urls[1:],
            run_dir=str(self._folder),
            weights_dir=str(self._folder),
        )

    def close(self) -> None:
        self._stack.close()

    def script_seconds(self) -> float:
        """What the control Redis spent in functions since it started."""
        with redis.Redis.from_url(self._urls[0]) as admin:
            return float(admin.info("commandstats").get("cmdstat_fcall", {"usec": 0})["usec"]) / 1e6

    def _start(self, command: list[str], path: Path, transport: Transport) -> str:
        url = f"unix://:{_PASSWORD}@{path}"
        if transport is Transport.TCP:
            port = _free_port()
            command = [*command, "--bind", "127.0.0.1", "--port", str(port)]
            url = f"redis://:{_PASSWORD}@127.0.0.1:{port}/0"
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_tests,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.pids.append(process.pid)
        deadline = time.monotonic() + _STARTS_WITHIN_SECONDS
        while not _answers(url):
            assert process.poll() is None, f"{command[0]} exited with {process.returncode}"
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.005)
        return url


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as admin:
            return bool(admin.ping())
    except redis.ConnectionError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
