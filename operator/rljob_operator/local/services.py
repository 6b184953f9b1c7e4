"""Services of a run: secrets, sockets and command lines of the infrastructure processes."""

import asyncio
import secrets
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints
from rljob_operator.local import embedded_redis, processes
from rljob_operator.local.infrastructure import Launch
from rljob_operator.local.run_files import write_secret
from rljob_operator.local.run_folder import RunFolder, memory_folder
from rljob_operator.local.watchdog import RedisProbe

COORDINATOR = "coordinator"
PARENT = "parent"
CONTROL = "control"
BACKLOG = 512
"""Every process of a job may connect while the coordinator is being restarted; none shall be refused."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the supervisor starts before any pod, and how it is reached."""

    folder: RunFolder
    job: RLJob
    memory: Path
    password: str
    endpoints: Endpoints
    listener: socket.socket
    """Held here, so that a restart of the coordinator loses no connection."""

    @classmethod
    def prepare(cls, folder: RunFolder, job: RLJob) -> "Services":
        """Draws secrets, takes a port and writes the endpoints file. Starts nothing."""
        memory = memory_folder(folder.path)
        weights = memory / "weights"
        weights.mkdir(mode=0o700)
        password = secrets.token_hex(16)
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        units = [_url(memory / f"{name}.sock", password) for name in _unit_names(job)]
        endpoints = Endpoints(
            job=job.metadata.name,
            coordinator=f"http://127.0.0.1:{listener.getsockname()[1]}",
            token=secrets.token_hex(16),
            control_redis=_url(memory / f"{CONTROL}.sock", password),
            storage_units=units,
            run_dir=str(folder.path),
            weights_dir=str(weights),
        )
        write_secret(folder.endpoints, endpoints.model_dump_json(by_alias=True).encode())
        return cls(folder, job, memory, password, endpoints, listener)

    def redis(self) -> dict[str, Launch]:
        """Control and storage, by name."""
        binary = embedded_redis.find_server()
        limit = self.job.spec.transfer_queue.storage_bytes
        commands = {CONTROL: embedded_redis.control_command(binary, *self._place(CONTROL))}
        for unit in _unit_names(self.job):
            commands[unit] = embedded_redis.storage_command(binary, *self._place(unit), limit)
        return {name: partial(processes.start, command, self.folder.log(name)) for name, command in commands.items()}

    def _place(self, name: str) -> tuple[Path, Path, str]:
        """Working directory, socket and password of a server."""
        directory = self.folder.path / "redis" / name
        directory.mkdir(parents=True, exist_ok=True)
        return directory, self._socket(name), self.password

    async def coordinator(self) -> asyncio.subprocess.Process:
        """Starts the coordinator on the listening socket that is kept here."""
        number = self.listener.fileno()
        argv = [sys.executable, "-m", "rljob_workers.dcs.coordinator", "--fd", str(number)]
        argv += ["--endpoints", str(self.folder.endpoints), "--manifest", str(self.folder.manifest)]
        return await processes.start(argv, self.folder.log(COORDINATOR), pass_fds=(number,))

    def probes(self) -> tuple[RedisProbe, ...]:
        """How the watchdog asks each Redis."""
        names = (CONTROL, *_unit_names(self.job))
        return tuple(RedisProbe(name, self._socket(name), self.password) for name in names)

    def _socket(self, name: str) -> Path:
        return self.memory / f"{name}.sock"


def _unit_names(job: RLJob) -> list[str]:
    return [f"storage-{n}" for n in range(job.spec.transfer_queue.storage_units)]


def _url(path: Path, password: str) -> str:
    return f"unix://:{password}@{path}"
