"""A pod on this machine: a real parent process, real launchers, ranks and engines, and a coordinator double."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

import pytest

from rljob_api.names import Role
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_api.wire.launchers import EngineProcess, LauncherPoll, RankProcess
from rljob_api.wire.processes import (
    PARENT_MESSAGE,
    LauncherExited,
    LauncherSpawned,
    ParentReady,
    SpawnLauncher,
)
from tests.integration.launcher.coordinator_double import TOKEN, CoordinatorDouble
from tests.integration.preloaded.client import Forked, fork_program

PATIENCE_SECONDS = 240.0
"""Never measured: how long a condition may take before the test says which one did not come."""

IMPORT_SECONDS = 300.0
"""Never measured either: a parent is reported once it has imported everything, a container serves its probes then."""

T = TypeVar("T")


def eventually(what: str, observe: Callable[[], T | bool | None], patience_seconds: float = PATIENCE_SECONDS) -> T:
    """The first answer of `look` that is neither None nor False."""
    deadline = time.monotonic() + patience_seconds
    while True:
        found = observe()
        if found is not None and found is not False:
            return found  # type: ignore[return-value]
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {patience_seconds:.0f} s for {what}")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether `pid` is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


Process = subprocess.Popen[bytes] | Forked
Start = Callable[[list[str], int, IO[bytes]], Process]


def new_interpreter(command: list[str], fd: int, log: IO[bytes]) -> Process:
    """A parent as the supervisor starts it."""
    return subprocess.Popen([sys.executable, *command, str(fd)], pass_fds=[fd], stdout=log, stderr=log)


def forked(command: list[str], fd: int, log: IO[bytes]) -> Process:
    """A parent whose imports are done."""
    program, *arguments = command
    return fork_program(program, [*arguments, str(fd)], pass_fds=[fd], output=log)


class ParentProcess:
    """The supervisor's view of one parent: what it receives and what it reports."""

    def __init__(self, folder: Path, command: list[str], start: Start = forked) -> None:
        self.run_dir = folder
        self.messages: list[ParentReady | LauncherSpawned | LauncherExited] = []
        self.pids: set[int] = set()
        """Continued before the end, so that none that a test has stopped stays."""
        self._received = b""
        self.control, theirs = socket.socketpair()
        self.control.settimeout(IMPORT_SECONDS)
        with theirs, (folder / "parent.log").open("wb") as log:
            self.process = start(command, theirs.fileno(), log)
        self.expect(ParentReady)

    def spawn(self, pod: PodKey, restart_count: int = 0) -> int:
        """Has a launcher forked for `pod`; its pid."""
        order = SpawnLauncher(
            pod=pod,
            pod_uid=f"uid-{pod}",
            container_restart_count=restart_count,
            manifest=str(self.run_dir / "job.json"),
            endpoints=str(self.run_dir / "endpoints.json"),
        )
        self.control.sendall(order.model_dump_json().encode() + b"\n")
        pid = self.expect(LauncherSpawned).pid
        self.pids.add(pid)
        return pid

    def expect(self, kind: type[T]) -> T:
        """The next message of `kind` from the parent."""
        while True:
            found = next((message for message in self.messages if isinstance(message, kind)), None)
            if found is not None:
                self.messages.remove(found)
                return found
            data = self.control.recv(65536)
            assert data, f"the parent ended: {(self.run_dir / 'parent.log').read_text()}"
            *lines, self._received = (self._received + data).split(b"\n")
            self.messages += [PARENT_MESSAGE.validate_json(line) for line in lines]

    def log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def act(self, what: str) -> None:
        """The next rank that looks does this."""
        (self.run_dir / "act.new").write_text(what)
        (self.run_dir / "act.new").rename(self.run_dir / "act")

    def close(self) -> None:
        self.control.close()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.process.wait(PATIENCE_SECONDS)


def make_job(
    heartbeat_seconds: int = 30, ranks_per_pod: int | None = None, engine: dict[str, object] | None = None
) -> RLJob:
    """The job of a machine; its rollouts and its actor have so many ranks in each pod, and `engine` is in its spec."""
    shape = {"ranksPerPod": ranks_per_pod}
    return RLJob.model_validate(
        {
            "metadata": {"name": "pods"},
            "spec": {
                "model": {"config": {}},
                "data": {"prompts": "prompts.jsonl"},
                "rollout": {"numRollouts": 1, "batchSize": 6, "samplesPerPrompt": 2},
                "training": {"globalBatchSize": 12, "microBatchSize": 1},
                "roles": {"rollout": {**shape, "engine": engine or {}}, "actor": shape},
                "restartPolicy": {"heartbeatTimeoutSeconds": heartbeat_seconds},
            },
        }
    )


class Machine(ParentProcess):
    """A parent, and a coordinator double that its launchers speak with."""

    def __init__(
        self,
        folder: Path,
        command: list[str],
        heartbeat_seconds: int = 30,
        start: Start = forked,
        ranks_per_pod: int | None = None,
        engine: dict[str, object] | None = None,
        memory: Path | None = None,
    ) -> None:
        """`memory` is where a run keeps what is in memory, else `folder`."""
        self.memory = memory or folder
        self.coordinator = CoordinatorDouble()
        self._write_files(folder, make_job(heartbeat_seconds, ranks_per_pod, engine))
        super().__init__(folder, command, start)

    def _write_files(self, folder: Path, job: RLJob) -> None:
        (folder / "job.json").write_text(job.model_dump_json())
        endpoints = Endpoints(
            job="pods",
            coordinator=self.coordinator.url,
            token=TOKEN,
            control_redis="unix://:none@/nowhere",
            storage_units=[],
            run_dir=str(folder),
            weights_dir=str(self.memory),
        )
        (folder / "endpoints.json").write_text(endpoints.model_dump_json())

    def rank(self, pod: PodKey, epoch: int = 1, generation: int = 0) -> RankProcess:
        """The rank of `pod` once it runs in this incarnation."""

        def look() -> RankProcess | None:
            ranks = [] if (poll := self.coordinator.state(pod)) is None else poll.ranks
            found = next((r for r in ranks if (r.epoch, r.generation) == (epoch, generation)), None)
            return found if found is not None and found.exit_code is None else None

        found = eventually(f"the rank of {pod} in epoch {epoch}, generation {generation}", look)
        eventually("its first words", lambda: found.incarnation in self.log(f"{pod}.0"))
        self.pids.add(found.pid)
        return found

    def engine(self, pod: PodKey, other_than: str = "") -> EngineProcess:
        """The engine of `pod` once it answers, another one than the incarnation given."""

        def look() -> EngineProcess | None:
            poll = self.coordinator.state(pod)
            engine = next((engine for engine in poll.engines if engine.index == 0), None) if poll is not None else None
            fits = engine is not None and engine.incarnation != other_than and engine.state == "Running"
            return engine if fits else None

        found = eventually(f"the engine of {pod}", look)
        self.pids.add(found.pid)
        return found

    def poll(self, pod: PodKey, what: str, fits: Callable[[LauncherPoll], bool]) -> LauncherPoll:
        """The first poll of `pod` that fits."""

        def look() -> LauncherPoll | None:
            poll = self.coordinator.state(pod)
            return poll if poll is not None and fits(poll) else None

        return eventually(what, look)

    def failure(self, count: int = 1) -> Failure:
        """The count-th report."""
        eventually(f"failure report {count}", lambda: len(self.coordinator.failures) >= count)
        return self.coordinator.failures[count - 1]

    def close(self) -> None:
        super().close()
        self.coordinator.close()

    def finish(self, pod: PodKey, epoch: int = 1, generation: int = 0) -> LauncherExited:
        """Lets the pod know that it is done; how its launcher left."""
        self.coordinator.order(pod, epoch, generation, PodPhase.DONE)
        return self.expect(LauncherExited)


ROLLOUT = PodKey(role=Role.ROLLOUT, replica=0)
ACTOR = PodKey(role=Role.ACTOR, replica=0)
BODIES = str(Path(__file__).with_name("bodies.py"))


@pytest.fixture
def real_machine(tmp_path: Path) -> Iterator[Machine]:
    """A parent that imported everything; its engines are real, its ranks train one step."""
    machine = Machine(tmp_path, [BODIES, "real"], start=new_interpreter)
    yield machine
    machine.close()


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A parent whose ranks and engines are those of `bodies`."""
    machine = Machine(tmp_path, [BODIES, "small"], getattr(request, "param", 30))
    yield machine
    machine.close()
