"""The engine servers of a pod, by index; none where the role has none.

Called by `launcher` only. `plan` decides which engine is started or killed, and when; each has a keeper of its own.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.roles import topology_of
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineProcess
from rljob_workers.engines.backend import EngineBackend, settings_of
from rljob_workers.launcher.engine_keeper import EngineKeeper, EnginePlace, EngineRequest
from rljob_workers.launcher.environment import EngineFacts, LauncherEnvironment, PodIdentity
from rljob_workers.launcher.forking import Exit
from rljob_workers.launcher.plan import EngineView
from rljob_workers.launcher.pod_devices import slice_of


def engine_names(pod: PodKey, num_engines: int) -> list[str]:
    """Names of their logs: the only engine of a pod has no number."""
    return [f"{pod}.engine"] if num_engines == 1 else [f"{pod}.engine.{index}" for index in range(num_engines)]


def identity_file(pod: PodKey, index: int, logs: Path) -> Path:
    """Where the present life of an engine is written down."""
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
        self._keepers = self._make(topology_of(job.spec.roles, identity.pod.role).engines, request)
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

    def url(self, index: int) -> str | None:
        """Where rank `index` finds its engine; None: the role has none."""
        return self._keepers[index].url if self._keepers else None

    def views(self) -> tuple[EngineView, ...]:
        """As `plan` sees them."""
        return tuple(keeper.view() for keeper in self._keepers)

    def processes(self) -> list[EngineProcess]:
        """As the coordinator sees them: those that were started and are wanted."""
        return [process for keeper in self._keepers if (process := keeper.process()) is not None]

    def facts(self) -> tuple[EngineFacts, ...]:
        """For their pod's metrics."""
        return tuple(EngineFacts(keeper.state, keeper.starts) for keeper in self._keepers)

    def use(self, job: RLJob) -> None:
        """The job of a later epoch. Another number or kind of engines replaces them all, and their ports."""
        self._job = job
        num_engines, request = topology_of(job.spec.roles, self._identity.pod.role).engines, self._request()
        if (num_engines, request.backend.kind) == (len(self._keepers), self._kind):
            for keeper in self._keepers:
                keeper.use(request)
            return
        self._kind = request.backend.kind
        self.end_all(f"a later epoch has {num_engines} engines of kind {self._kind} in each pod")
        self.close_listeners()
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

    def start(self, index: int, release: Callable[[], None]) -> None:
        """Begins a life, once the engines that were replaced have ended, whose end clears the folder that it will have.

        `release` closes what the launcher holds, in the child.
        """
        if any(keeper.pid is not None for keeper in self._leaving):
            return  # it is wished for in every turn
        others = [keeper for keeper in self._keepers if keeper is not self._keepers[index]]

        def release_all() -> None:
            release()
            for other in others:
                other.close_listener()

        ranks_per_pod = topology_of(self._job.spec.roles, self._identity.pod.role).ranks_per_pod
        devices = slice_of(self._environment.devices_of(self._job), index, ranks_per_pod)
        self._keepers[index].start(devices, release_all)

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

    def close_listeners(self) -> None:
        """In a forked rank: it is a client of its engine, not the owner of any."""
        for keeper in self._keepers:
            keeper.close_listener()
