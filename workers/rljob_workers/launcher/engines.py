"""The engine servers of a pod: keeps their ports, starts them, detects a hang, names what a death was.

Only `launcher` calls it; `plan` decides which engine is started or killed, and when. An engine outlives ranks and
epochs. The launcher restarts it in place by itself: its death is reported, but no row of the restart table counts it.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.machine.process_stat import is_stopped
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.failures import Failure, FailureKind, Hopeless
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_workers.engines.backend import Command, EngineBackend, EngineSettings, EngineSite, Exec, Fork, settings_of
from rljob_workers.engines.incarnation import EngineIdentity, read_reason, write_identity
from rljob_workers.launcher.engine_deaths import VainStarts, died_of, killed_itself
from rljob_workers.launcher.engine_health import EngineParts, HealthProbe
from rljob_workers.launcher.environment import EngineFacts, LauncherEnvironment, PodIdentity
from rljob_workers.launcher.forking import RANK_OOM_SCORE, Child, Closable, Exit, exec_program, fork_child, how_it_ended
from rljob_workers.launcher.plan import EngineView
from rljob_workers.launcher.pod_devices import require_cuda, require_no_cuda, see_only, slice_of, take_over
from rljob_workers.launcher.preload import THREAD_POOLS


def become_engine(command: Command, settings: EngineSettings, port: socket.socket, incarnation: EngineIdentity) -> int:
    """Serves as `incarnation`; the exit code. A program takes this process over and does not return."""
    if isinstance(command, Exec):
        _become_program(command, settings)
    os.environ.update(settings.env)
    require_cuda()
    return command.serve(port, incarnation.incarnation)


def begin_incarnation(port: socket.socket, id_: str, file: Path, folder: Path) -> EngineIdentity:
    """Records in `file` that this process is the engine behind `port` from now on, and gives it an empty folder."""
    host, number = port.getsockname()
    incarnation = EngineIdentity(id_, os.getpid(), f"http://{host}:{number}")
    write_identity(file, incarnation)
    remove_folder(folder)
    folder.mkdir(parents=True, mode=0o700)
    return incarnation


def remove_folder(folder: Path) -> None:
    """What an incarnation has left. Its processes are killed, and may not have gone yet: the next start removes it."""
    shutil.rmtree(folder, ignore_errors=True)


def _become_program(command: Exec, settings: EngineSettings) -> NoReturn:
    """The launcher limits thread pools for its own imports; the program's are as large as the spec sets them."""
    command.prepare()
    threads = {name: str(settings.threads) for name in THREAD_POOLS}
    try:
        exec_program(command.arguments, {**os.environ, **threads, **command.environment, **settings.env})
    except ValueError as error:
        raise ValueError(f"spec.roles.rollout.engine: {error}") from error


YOUNG_SECONDS = 10.0
"""An engine that dies younger than this would die again at once: the next one waits, longer each time."""


FIRST_DELAY_SECONDS = 0.2


LONGEST_DELAY_SECONDS = 10.0


PARTS_SECONDS = 1.0
"""Between two checks of the processes of a server."""


LOG_BYTES = 1 << 18
"""Of its log, in which the exception is looked for that it has died of: that of one process of several, before what the
others wrote."""


LAST_LINES = 100
"""Of the log of a server that was up: an exception before them was one request's. A long traceback is half of that."""


BY_OTHERS = "by neither its launcher nor itself, as where memory is full"
"""Who sent SIGKILL. What it had raised before it has survived, perhaps of an optional import."""


BACKLOG = 1024
"""Connections that wait while the engine is restarted, instead of failing."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Which engine of which pod it is, and where it writes."""

    identity: PodIdentity
    index: int
    title: str
    """In sentences."""
    log: Path
    identity_file: Path
    """Where its present incarnation is written down."""
    folder: Path
    """For the files of one incarnation, in memory; its name is short."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an epoch wants of an engine."""

    backend: EngineBackend
    settings: EngineSettings
    startup_seconds: float
    """How long a start may take."""
    silence_seconds: float
    """heartbeatTimeoutSeconds: an engine that is up and has not answered for this long hangs."""


@dataclass(frozen=True, slots=True)
class _EngineIncarnation:
    id: str
    child: Child
    began: float


class EngineKeeper:
    """The socket of the port, which lives as long as the launcher, and the latest incarnation behind it."""

    def __init__(
        self,
        place: EnginePlace,
        request: EngineRequest,
        clock: Callable[[], float],
        attended: AttendedClock,
    ) -> None:
        """Binds a port of this machine; nothing serves there until `start`. `attended` is ticked before each `turn`."""
        self._place = place
        self._request = request
        self._clock = clock
        self._socket = _free_port()
        host, self._port = self._socket.getsockname()
        self.url = f"http://{host}:{self._port}"
        interval = min(1.0, request.silence_seconds / 4)
        self._probe = HealthProbe((host, self._port), request.backend.ready, interval, clock, attended)
        self._parts = EngineParts(request.backend.parts)
        self._check_parts_at = 0.0
        self._incarnation: _EngineIncarnation | None = None
        self._last: _EngineIncarnation | None = None
        self._deaths_in_a_row = 0
        self._vain_starts = VainStarts()
        self._start_not_before = 0.0
        self._refused_under: tuple[int, int] | None = None
        self._killed_since: str | None = None
        self._has_lost_a_part = False
        self._unwanted: str | None = None
        self.starts = 0
        """Incarnations so far."""

    @property
    def pid(self) -> int | None:
        """The process that runs."""
        return None if self._incarnation is None else self._incarnation.child.pid

    def facts(self) -> EngineFacts:
        """For its pod's metrics."""
        process = self.process()
        return EngineFacts(None if process is None else process.state, self.starts)

    def use(self, request: EngineRequest) -> None:
        """A later epoch's request, of the same kind. An engine that runs with other settings is replaced."""
        before, self._request = self._request, request
        if before.settings != request.settings:
            self._vain_starts = VainStarts()
        if self._incarnation is not None and before.settings != request.settings:
            self.end("a later epoch runs it with other settings")

    def view(self) -> EngineView:
        """As `plan` sees it."""
        alive = self._incarnation is not None
        return EngineView(self._place.index, alive, self._start_not_before, self._refused_under)

    def process(self) -> EngineProcess | None:
        """As the coordinator sees it; None before the first start, and once it was ended for good."""
        if self._last is None:
            return None
        state = EngineState.RUNNING if self._probe.answered else EngineState.STARTING
        return EngineProcess(
            index=self._place.index,
            pid=self._last.child.pid,
            incarnation=self._last.id,
            url=self.url,
            state=EngineState.RESTARTING if self._incarnation is None or self._killed_since is not None else state,
        )

    def start(self, devices: tuple[str, ...], close: Sequence[Closable]) -> None:
        """Forks an incarnation on `devices`, as CUDA_VISIBLE_DEVICES names them; none: on the CPU.

        The child closes `close`: what the launcher holds besides this engine's port.
        """
        id_, settings, place = secrets.token_hex(6), self._request.settings, self._place
        command = self._request.backend.command(settings, EngineSite(self._port, devices, place.folder))
        if isinstance(command, Fork):
            self._socket.listen(BACKLOG)

        def live() -> int:
            see_only(devices)
            take_over(place.log.stem, devices, place.log.parent)
            incarnation = begin_incarnation(self._socket, id_, place.identity_file, place.folder)
            return become_engine(command, settings, self._socket, incarnation)

        require_no_cuda()
        child = fork_child(live, place.log, close=(*close, self._probe), oom_score=RANK_OOM_SCORE)
        self._killed_since = None
        self._has_lost_a_part = False
        self.starts += 1
        self._incarnation = self._last = _EngineIncarnation(id_, child, self._clock())
        self._probe.reset()
        self._parts.forget()
        _log.info("engine %s runs as process %s on %s", id_, child.pid, self.url)

    def watch(self, poller: select.poll) -> None:
        """Registers what is waited for."""
        if self._probe.fileno() >= 0:
            poller.register(self._probe.fileno(), select.POLLIN)

    def turn(self) -> None:
        """Asks after the engine's health; one that is silent for too long, or lost a part, is killed. Never waits."""
        if self._incarnation is None or self._killed_since is not None:
            return
        self._probe.turn()
        if self._probe.answered:
            self._vain_starts.up()
        lost = self._lost_part(self._incarnation.child.pid)
        if lost is not None:
            self._has_lost_a_part = True
            self.kill(lost)
            return
        patience = self._request.silence_seconds
        if not self._probe.answered:
            patience = max(patience, self._request.startup_seconds)
        if self._probe.silence_seconds >= patience:
            where = f"{self.url}{self._request.backend.ready.path}"
            self.kill(f"it has not answered {where} for {self._probe.silence_seconds:.1f} s")

    def _lost_part(self, server: int) -> str | None:
        if self._clock() < self._check_parts_at:
            return None
        self._check_parts_at = self._clock() + PARTS_SECONDS
        return self._parts.lost(server)

    def kill(self, why: str) -> None:
        """SIGKILL; `exited` collects it."""
        if self._incarnation is not None and self._killed_since is None:
            self._killed_since = why
            self._incarnation.child.kill()
            _log.info("engine %s is killed, since %s", self._incarnation.id, why)

    def kill_stopped(self) -> None:
        """Kills an incarnation that is stopped (SIGSTOP), or one of the processes that it cannot do without."""
        server = self.pid
        stopped = None if server is None else next(filter(is_stopped, (server, *self._parts.seen)), None)
        if stopped is not None:
            self.kill("it is stopped (SIGSTOP)" if stopped == server else f"its process {stopped} is stopped (SIGSTOP)")

    def end(self, why: str) -> None:
        """As `kill`, of an engine that is not wanted any more: its death is no failure."""
        if self._incarnation is not None:
            self._unwanted = self._incarnation.id
            self.kill(why)

    def exited(self, ended: Exit, order: PodOrder | None, now: float) -> Failure | None:
        """Notes the end of the engine, and from when on it may be started again. None: its end was wanted."""
        incarnation = self._incarnation
        assert incarnation is not None, "only what runs can end"
        self._incarnation = None
        self._probe.close()
        remove_folder(self._place.folder)
        _log.info("engine %s %s", incarnation.id, how_it_ended(ended.code))
        if incarnation.id == self._unwanted:
            self._last = None
            return None
        self._postpone(incarnation, ended, order)
        if order is None or order.phase is PodPhase.DONE:
            return None
        return self._failure(incarnation, ended.code, order, now)

    def close(self) -> None:
        """Closes the port. In a forked rank, too: it is a client of the engine, not its owner."""
        self._probe.close()
        self._socket.close()

    def _postpone(self, incarnation: _EngineIncarnation, ended: Exit, order: PodOrder | None) -> None:
        if ended.code == EXIT_BAD_MANIFEST and order is not None:
            self._refused_under = (order.epoch, order.generation)
        age = self._clock() - incarnation.began
        self._deaths_in_a_row = self._deaths_in_a_row + 1 if age < YOUNG_SECONDS else 0
        if self._deaths_in_a_row > 1:
            delay = FIRST_DELAY_SECONDS * 2 ** min(self._deaths_in_a_row - 2, 16)
            self._start_not_before = self._clock() + min(delay, LONGEST_DELAY_SECONDS)

    def _failure(self, incarnation: _EngineIncarnation, code: int, order: PodOrder, now: float) -> Failure:
        last_lines = LAST_LINES if self._probe.answered else None
        output, log = incarnation.child.last_output(), incarnation.child.tail(LOG_BYTES)
        raised = died_of(log, last_lines)
        ended = read_reason(self._place.identity_file, incarnation.id)
        killed_since = self._killed_since if ended is None else f"its rank has ended it: {ended}"
        cause = killed_since if raised is None else raised.sentence
        was_killed = self._has_lost_a_part or (code == -signal.SIGKILL and killed_since is None)
        by_others = was_killed and not killed_itself(log)
        is_in_vain = self._vain_starts.ended(None if by_others else cause)
        if by_others and raised is not None:
            killed_since = killed_since or BY_OTHERS
        sentence = cause or (output.splitlines()[-1] if output else "it left no words")
        if killed_since is not None and raised is not None:
            sentence = f"{killed_since.rstrip('.')}; the last exception in its log is {sentence}"
        if is_in_vain:
            sentence += f" ({self._vain_starts.summary})"
        return Failure(
            id=self._place.identity.failure_id(incarnation.id),
            kind=FailureKind.ENGINE_EXITED,
            pod=self._place.identity.pod,
            engine=self._place.index,
            epoch=order.epoch,
            generation=order.generation,
            incarnation=incarnation.id,
            exit_code=code,
            message=f"{self._place.title} {how_it_ended(code)}: {sentence}",
            last_words=output,
            hopeless=Hopeless.ENGINE_CANNOT_START if is_in_vain else None,
            at=now,
        )


def engine_names(pod: PodKey, num_engines: int) -> list[str]:
    """Names of their logs: the only engine of a pod has no number."""
    return [f"{pod}.engine"] if num_engines == 1 else [f"{pod}.engine.{index}" for index in range(num_engines)]


def identity_file(pod: PodKey, index: int, logs: Path) -> Path:
    """Where the present incarnation of an engine is written down."""
    return logs.parent / "engines" / str(pod) / f"engine-{index}.json"


class Engines:
    """A keeper for each engine."""

    def __init__(
        self,
        identity: PodIdentity,
        environment: LauncherEnvironment,
        job: RLJob,
        backend_of: Callable[[RLJobSpec], EngineBackend],
        clock: Callable[[], float],
        attended: AttendedClock,
    ) -> None:
        """Of `job`, until `use`; `attended` is ticked before each `turn`."""
        self._identity = identity
        self._environment = environment
        self._job = job
        self._backend_of = backend_of
        self._clock = clock
        self._attended = attended
        request = self._request()
        self._kind = request.backend.kind
        self._keepers = self._make(job.spec.roles.topology(identity.pod.role).engines, request)
        self._leaving: tuple[EngineKeeper, ...] = ()
        """Those of an earlier number of engines whose processes were not collected yet."""

    def _request(self) -> EngineRequest:
        spec = self._job.spec
        return EngineRequest(
            backend=self._backend_of(spec),
            settings=settings_of(spec, self._identity.pod.role),
            startup_seconds=float(spec.roles.rollout.engine.startup_seconds),
            silence_seconds=float(spec.restart_policy.heartbeat_timeout_seconds),
        )

    def _make(self, num_engines: int, request: EngineRequest) -> tuple[EngineKeeper, ...]:
        pod, logs = self._identity.pod, self._environment.logs
        memory = Path(self._environment.endpoints_of(self._job).weights_dir)
        return tuple(
            EngineKeeper(
                EnginePlace(
                    self._identity,
                    index,
                    f"The engine of {pod}" if num_engines == 1 else f"Engine {index} of {pod}",
                    logs / f"{name}.log",
                    identity_file(pod, index, logs),
                    memory / f"{pod}.engine.{index}",
                ),
                request,
                self._clock,
                self._attended,
            )
            for index, name in enumerate(engine_names(pod, num_engines))
        )

    def address(self, rank: int) -> tuple[str, Path] | tuple[None, None]:
        """Where rank `rank` finds its engine, and the file with the engine's incarnation; None: the role has none."""
        if not self._keepers:
            return None, None
        return self._keepers[rank].url, identity_file(self._identity.pod, rank, self._environment.logs)

    def views(self) -> tuple[EngineView, ...]:
        """As `plan` sees them."""
        return tuple(keeper.view() for keeper in self._keepers)

    def processes(self) -> list[EngineProcess]:
        """As the coordinator sees them: those that were started and are wanted."""
        return [process for keeper in self._keepers if (process := keeper.process()) is not None]

    def facts(self) -> tuple[EngineFacts, ...]:
        """For their pod's metrics."""
        return tuple(keeper.facts() for keeper in self._keepers)

    def use(self, job: RLJob) -> None:
        """The job of a later epoch. Another number or kind of engines replaces them all, and their ports."""
        self._job = job
        num_engines, request = job.spec.roles.topology(self._identity.pod.role).engines, self._request()
        if (num_engines, request.backend.kind) == (len(self._keepers), self._kind):
            for keeper in self._keepers:
                keeper.use(request)
            return
        self._kind = request.backend.kind
        self.end_all(f"a later epoch has {num_engines} engines of kind {self._kind} in each pod")
        self.close()
        self._leaving = tuple(keeper for keeper in (*self._leaving, *self._keepers) if keeper.pid is not None)
        self._keepers = self._make(num_engines, request)

    def turn(self) -> None:
        """Asks after their health. Never waits."""
        for keeper in self._keepers:
            keeper.turn()

    def watch(self, poller: select.poll) -> None:
        """Registers what is waited for."""
        for keeper in self._keepers:
            keeper.watch(poller)

    def start(self, index: int, close: Sequence[Closable]) -> None:
        """Begins an incarnation, once the replaced engines have ended, whose end clears the folder that it will have.

        The child closes `close`: what the launcher holds besides its engines' ports.
        """
        if any(keeper.pid is not None for keeper in self._leaving):
            return  # it is wished for in every turn
        others = [keeper for keeper in self._keepers if keeper is not self._keepers[index]]
        ranks_per_pod = self._job.spec.roles.topology(self._identity.pod.role).ranks_per_pod
        devices = slice_of(self._environment.devices_of(self._job), index, ranks_per_pod)
        self._keepers[index].start(devices, (*close, *others))

    def kill_stopped(self, rank: int) -> None:
        """Before rank `rank` begins: it would wait for an engine that is stopped, and all others with it."""
        if rank < len(self._keepers):
            self._keepers[rank].kill_stopped()

    def end(self, index: int, why: str) -> None:
        """SIGKILL of an engine that is not wanted any more."""
        self._keepers[index].end(why)

    def end_all(self, why: str) -> None:
        """As `end`, of all."""
        for keeper in self._keepers:
            keeper.end(why)

    def exited(self, ended: Exit, order: PodOrder | None, now: float) -> Failure | None:
        """Notes the end of one of them; a failure, unless its end was wanted. `now` is Unix time."""
        for keeper in (*self._keepers, *self._leaving):
            if keeper.pid == ended.pid:
                return keeper.exited(ended, order, now)
        return None

    def close(self) -> None:
        """Closes all ports. In a forked rank, too: it is a client of its engine, not the owner of any."""
        for keeper in self._keepers:
            keeper.close()


def _free_port() -> socket.socket:
    """Bound, and not listening: no other process of this machine is given the port, and an engine may still bind it."""
    port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port
