"""The launcher of one pod: one thread, one loop, that serves the coordinator's order and its own children at once.

Forked by `parent` on one machine, made by `pod` in a container. It decides nothing: `plan` derives what follows from
the order, and deaths are reported, not judged.

    reap -> take the coordinator's answer -> check the engines -> carry out the plan -> send reports -> sleep
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.names import EXIT_FENCED, EXIT_SUCCEEDED, EXIT_TERMINATED
from rljob_api.roles import TRAITS
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.restart import absence_seconds
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import Endpoints, Incarnation, RankKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll
from rljob_api.wire.processes import SpawnLauncher
from rljob_workers.dcs.errors import CoordinatorUnreachable, IncarnationOver
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.engines import backend_of
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.launcher import ranks
from rljob_workers.launcher.coordinator_calls import LauncherClient
from rljob_workers.launcher.engines import Engines
from rljob_workers.launcher.environment import LauncherEnvironment, LauncherState, PodIdentity, WhenDone, one_machine
from rljob_workers.launcher.forking import Closable, SignalPipe, reap
from rljob_workers.launcher.plan import (
    DrainRank,
    KillEngine,
    KillRank,
    Leave,
    PodView,
    StartEngine,
    StartRank,
    Step,
    plan,
)
from rljob_workers.launcher.pod_devices import slice_of
from rljob_workers.launcher.ranks import LOST_SECONDS, Ranks

TICK_SECONDS = 0.25
"""Longest sleep: deadlines (graces, the engine's health) are looked at this often."""

LONGEST_TURN_SECONDS = 4 * TICK_SECONDS
"""More of the time between two turns is no silence of an engine or a stopped rank: the launcher was held up itself."""

REGISTER_SECONDS = 5.0
"""One attempt to register: signals and probes wait for its end."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bodies:
    """What the children run."""

    rank: Callable[[RankContext], int] = ranks.live
    engine: Callable[[RLJobSpec], EngineBackend] = backend_of


class Launcher:
    """One incarnation of a pod's first process."""

    def __init__(
        self,
        identity: PodIdentity,
        job: RLJob,
        environment: LauncherEnvironment,
        signals: SignalPipe,
        bodies: Bodies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` begins it."""
        self._identity = identity
        self._id = secrets.token_hex(6)
        self._job = job
        self._environment = environment
        self._endpoints = endpoints = environment.endpoints_of(job)
        self._signals = signals
        self._bodies = bodies
        self._clock = clock
        self._attended = AttendedClock(LONGEST_TURN_SECONDS, clock)
        self._topology = job.spec.roles.topology(identity.pod.role)
        """Of the job that is known: the pod's file may be older than the job that its first order brings."""
        self._ranks = Ranks(self._identity, environment.logs, clock, self._attended)
        self._engines = Engines(identity, environment, job, bodies.engine, clock, self._attended)
        self._use_policy()
        self._client = LauncherClient(endpoints, clock, patience_seconds=REGISTER_SECONDS)
        self._connections: tuple[Closable, ...] = (self._client, signals, *environment.plugins)
        """A forked child must not speak on them, nor hold them open."""
        self._answer = LauncherAnswer(order=None)
        self._exit_code: int | None = None

    def run(self) -> int:
        """Until the pod is done, this incarnation is fenced, or SIGTERM; returns the exit code."""
        try:
            self._register()
            while self._exit_code is None:
                self._turn()
        except IncarnationOver as over:
            _log.warning("%s: launcher %s is fenced: %s", self._identity.pod, self._id, over)
            self._kill_all("a later life of the pod has registered")
            return EXIT_FENCED
        return self._exit_code

    def _register(self) -> None:
        hello = LauncherHello(
            pod=self._identity.pod,
            pod_uid=self._identity.pod_uid,
            container_restart_count=self._identity.container_restart_count,
            launcher=self._id,
            pid=os.getpid(),
            ranks_per_pod=self._topology.ranks_per_pod,
        )
        while not self._signals.terminated:
            try:
                self._client.register(hello)
            except CoordinatorUnreachable as error:
                _log.warning("%s: not registered yet: %s", self._identity.pod, error)
                self._run_plugins()
            else:
                _log.info("%s: launcher %s is registered", self._identity.pod, self._id)
                return

    def _turn(self) -> None:
        self._attended.tick()
        self._signals.drain()
        self._reap()
        self._take_answer()
        self._engines.turn()
        for step in plan(self._answer.order, self._view(), self._clock()):
            self._do(step)
        self._client.turn(self._poll())
        self._run_plugins()
        if self._exit_code is None:
            self._sleep()

    def _run_plugins(self) -> None:
        if not self._environment.plugins:
            return  # on one machine: nothing is counted for none
        order = self._answer.order
        state = LauncherState(
            order=order,
            num_ranks=self._topology.ranks_per_pod,
            ranks_up=self._ranks.num_alive,
            ranks_ready=0 if order is None else self._ranks.num_ready(order),
            rank_starts=self._ranks.starts,
            engines=self._engines.facts(),
            seen_seq=self._ranks.seen_seq,
        )
        for plugin in self._environment.plugins:
            plugin.turn(state)

    def _view(self) -> PodView:
        return PodView(
            num_ranks=self._topology.ranks_per_pod,
            drain_seconds=float(self._job.spec.restart_policy.stall_timeout_seconds),
            ranks=self._ranks.views(),
            engines=self._engines.views(),
            terminating=self._signals.terminated,
            saves=TRAITS[self._identity.pod.role].saves,
            silence_seconds=float(self._job.spec.restart_policy.heartbeat_timeout_seconds),
        )

    def _reap(self) -> None:
        order = self._answer.order
        for ended in reap():
            failure = self._ranks.exited(ended, order, time.time())
            if failure is None:
                failure = self._engines.exited(ended, order, time.time())
            if failure is not None:
                self._report(failure)
        for failure in self._ranks.overdue(order):
            self._report(failure)

    def _report(self, failure: Failure) -> None:
        _log.warning("%s", failure.message)
        self._client.reports.add(failure)

    def _take_answer(self) -> None:
        """Takes the answer of the poll in flight, if it is there."""
        answer = self._client.collect()
        if answer is None:
            return
        self._ranks.answered()
        if answer.order is None:
            return
        if answer.order != self._answer.order:
            _log.info("%s: ordered to %s", self._identity.pod, _order_name(answer.order))
        self._answer = answer
        if answer.job is not None:
            self._use(answer.job)

    def _use(self, job: RLJob) -> None:
        """The epoch of the answer just received runs with `job`."""
        self._job = job
        self._endpoints = self._environment.endpoints_of(job)
        self._topology = job.spec.roles.topology(self._identity.pod.role)
        self._engines.use(job)
        self._use_policy()

    def _use_policy(self) -> None:
        absence = absence_seconds(self._job.spec.restart_policy)
        self._ranks.contact.lost_seconds = min(LOST_SECONDS, absence / 2)

    def _poll(self) -> LauncherPoll:
        return LauncherPoll(
            carried=self._answer.order,
            ranks=self._ranks.processes(),
            engines=self._engines.processes(),
            seen_seq=self._ranks.seen_seq,
        )

    def _do(self, step: Step) -> None:
        match step:
            case StartRank(rank):
                self._start_rank(rank)
            case DrainRank(rank):
                self._ranks.drain(rank)
            case KillRank(rank, why):
                self._ranks.kill(rank, why)
            case StartEngine(index):
                self._engines.start(index, self._connections)
            case KillEngine(index):
                self._engines.end(index, "the pod ends")
            case Leave():
                self._leave()

    def _leave(self) -> None:
        """Nothing runs any more. In a pod a launcher that is done stays, or the kubelet would start it again."""
        order, stays = self._answer.order, self._environment.when_done is WhenDone.STAYS
        if not self._signals.terminated:
            self._exit_code = None if stays else EXIT_SUCCEEDED
        elif stays and order is not None and order.phase is PodPhase.DONE:
            self._exit_code = EXIT_SUCCEEDED
        else:
            self._exit_code = EXIT_TERMINATED

    def _start_rank(self, rank: int) -> None:
        answer = self._answer
        if answer.order is None:
            raise AssertionError("a rank was to be started without an order")
        self._engines.kill_stopped(rank)
        engine_url, engine_identity = self._engines.address(rank)
        pod, order = self._identity.pod, answer.order
        key = RankKey(role=pod.role, replica=pod.replica, rank=rank)
        context = RankContext(
            incarnation=Incarnation(key=key, epoch=order.epoch, generation=order.generation, id=secrets.token_hex(6)),
            endpoints=self._endpoints,
            job=self._job,
            global_rank=answer.first_rank + rank,
            world_size=answer.world_size,
            launcher=self._id,
            engine_url=engine_url,
            engine_identity=engine_identity,
            memory=self._ranks.memories[rank],
            devices=self._devices_of(rank),
        )
        self._ranks.start(context, self._bodies.rank, (*self._connections, self._engines))

    def _devices_of(self, rank: int) -> tuple[str, ...]:
        """None where the pod has engines: they are the ones that compute then."""
        if self._topology.engines:
            return ()
        return slice_of(self._environment.devices_of(self._job), rank, self._topology.ranks_per_pod)

    def _kill_all(self, why: str) -> None:
        for view in self._ranks.views():
            if view.alive:
                self._ranks.kill(view.rank, why)
        self._engines.end_all(why)

    def _sleep(self) -> None:
        poller = select.poll()
        poller.register(self._signals.fileno(), select.POLLIN)
        self._client.watch(poller)
        self._engines.watch(poller)
        for plugin in self._environment.plugins:
            plugin.watch(poller)
        poller.poll(TICK_SECONDS * 1000)


def run_launcher(spawn: SpawnLauncher, bodies: Bodies) -> int:
    """The whole incarnation of a launcher in its forked process: reads its files, serves its pod, returns its code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    job = RLJob.model_validate_json(Path(spawn.manifest).read_bytes())
    endpoints = Endpoints.model_validate_json(Path(spawn.endpoints).read_bytes())
    identity = PodIdentity(spawn.pod, spawn.pod_uid, spawn.container_restart_count)
    return Launcher(identity, job, one_machine(endpoints, spawn.devices), SignalPipe(), bodies).run()


def _order_name(order: PodOrder) -> str:
    return f"{order.phase.value} (epoch {order.epoch}, generation {order.generation})"
