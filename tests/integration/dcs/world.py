"""One job's DCS as tests drive it: real Redis servers, a real coordinator process, hands in the place of the rest."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from rljob_api.names import Epoch, Role
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import DesiredState, EpochRequest, PodOrder, PodPhase, RestorePoint
from rljob_api.wire.failures import Failure, FailureAcknowledgement, FailureKind
from rljob_api.wire.identity import Endpoints, Incarnation, PodKey, RankKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, EventPage
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.records import Store
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.membership.rank_context import RankContext, RankMemory
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.launcher.coordinator_calls import LauncherClient
from rljob_workers.pipeline import queue_shape
from rljob_workers.transfer_queue.admin import QueueAdmin, QueueAdminTiming
from tests.integration.preloaded.client import Forked, fork_program
from tests.integration.transfer_queue.servers import Servers

PATIENCE_SECONDS = 240.0
"""Never measured: a coordinator imports everything before it answers, which takes long on a busy machine."""
ROLES = {Role.ROLLOUT: 2, Role.ACTOR: 2, Role.ACTOR_FWD: 1, Role.ADVANTAGES: 1}


def job(
    chunk_bytes: int = 1 << 16,
    keep: int = 2,
    heartbeat_seconds: int = 30,
    absence_seconds: int | None = None,
    critic_replicas: int = 0,
) -> RLJob:
    """With a critic of so many pods, if any."""
    critic = {"critic": {"replicas": critic_replicas}} if critic_replicas else {}
    return RLJob.model_validate(
        {
            "metadata": {"name": "test"},
            "spec": {
                "model": {"config": {}},
                "data": {"prompts": "prompts.jsonl"},
                "rollout": {"numRollouts": 100, "batchSize": 2, "samplesPerPrompt": 2},
                "training": {"globalBatchSize": 4, "microBatchSize": 2},
                "algorithm": {"advantage": "Gae"} if critic_replicas else {},
                "roles": {"rollout": {"replicas": 2}, **critic},
                "weightSync": {"chunkBytes": chunk_bytes, "timeoutSeconds": 120},
                "checkpoint": {"keep": keep},
                "restartPolicy": {
                    "heartbeatTimeoutSeconds": heartbeat_seconds,
                    "coordinatorAbsenceSeconds": absence_seconds,
                },
            },
        }
    )


def context_here(
    endpoints: Endpoints, manifest: RLJob, clock: Callable[[], float], timing: QueueAdminTiming
) -> CoordinatorContext:
    """Of a coordinator within the test's process. No one is notified; its admin is the test's to close."""
    return CoordinatorContext(
        job=manifest,
        store=Store(redis.Redis.from_url(endpoints.control_redis)),
        admin=QueueAdmin(endpoints, queue_shape(manifest.spec), timing=timing),
        clock=clock,
        wall=lambda: 1.0,
        notify=lambda topic, keys=None: None,
    )


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """What `holds` gives once it gives something true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = holds()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.01)


class World:
    """A coordinator on a listening socket that outlives it, as the supervisor keeps it."""

    def __init__(self, servers: Servers, folder: Path, manifest: RLJob) -> None:
        self.servers = servers
        self.job = manifest
        critic = manifest.spec.roles.critic
        self.roles = ROLES if critic is None else {**ROLES, Role.ACTOR: 1, Role.CRITIC: critic.replicas}
        """Role -> pods that are ordered."""
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        weights = folder / "weights"
        weights.mkdir()
        self.endpoints = Endpoints(
            job="test",
            coordinator=f"http://127.0.0.1:{self.listener.getsockname()[1]}",
            token=secrets.token_hex(16),
            control_redis=servers.endpoints.control_redis,
            storage_units=servers.endpoints.storage_units,
            run_dir=str(folder),
            weights_dir=str(weights),
        )
        self._files = folder / "endpoints.json", folder / "job.json"
        self._files[0].write_text(self.endpoints.model_dump_json())
        self._files[1].write_text(manifest.model_dump_json())
        self.log = folder / "coordinator.log"
        self.process: Forked | None = None
        self.client = CoordinatorClient(self.endpoints)
        self.launchers: dict[str, LauncherHello] = {}
        self._sessions: list[RankSession] = []

    # --- the coordinator's process

    def start(self, **environment: str) -> None:
        number = self.listener.fileno()
        arguments = ["--fd", str(number), "--endpoints", str(self._files[0]), "--manifest", str(self._files[1])]
        with self.log.open("ab") as log:
            self.process = fork_program(
                "rljob_workers.dcs.coordinator", arguments, pass_fds=[number], output=log, environment=environment
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        for session in self._sessions:
            session.close()
        self.client.close()
        self.kill()
        self.listener.close()

    # --- the supervisor's hands

    def call(self, method: str, path: str, body: Any = None) -> bytes:
        return self.client.call(method, path, body, deadline=time.monotonic() + PATIENCE_SECONDS)

    def status(self) -> CoordinatorStatus:
        return CoordinatorStatus.model_validate_json(self.call("GET", "/v1/status"))

    def events(self, after: int = 0) -> list[CoordinatorEvent]:
        return EventPage.model_validate_json(self.call("GET", f"/v1/events?after={after}")).events

    def reported(self, kind: EventKind) -> list[CoordinatorEvent]:
        return [event for event in self.events() if event.kind is kind]

    def raise_epoch(self, epoch: int, decision: str | None = None) -> RestorePoint:
        request = EpochRequest(epoch=Epoch(epoch), decision_id=decision or f"decision-{epoch}", reason="a test")
        return RestorePoint.model_validate_json(self.call("POST", "/v1/epoch", request))

    def order(self, epoch: int, generations: dict[str, int] | None = None, phase: PodPhase = PodPhase.RUN) -> None:
        wanted = generations or {}
        pods = [PodKey(role=role, replica=replica) for role, count in self.roles.items() for replica in range(count)]
        orders = [
            PodOrder(pod=pod, epoch=Epoch(epoch), generation=wanted.get(str(pod), 0), phase=phase) for pod in pods
        ]
        replicas = {role.value: count for role, count in self.roles.items()}
        self.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(epoch), pods=orders, replicas=replicas))

    def acknowledge(self, *ids: str) -> None:
        self.call("POST", "/v1/failures/acknowledge", FailureAcknowledgement(ids=list(ids)))

    def begin(self) -> None:
        """Epoch 1 with orders for all pods."""
        self.raise_epoch(1)
        self.order(1)

    # --- launchers and ranks

    def hello(self, role: Role, replica: int = 0) -> LauncherHello:
        return LauncherHello(
            pod=PodKey(role=role, replica=replica),
            pod_uid=f"uid-{role.value}-{replica}",
            launcher=secrets.token_hex(6),
            pid=os.getpid(),
        )

    def register(self, role: Role, replica: int = 0) -> LauncherHello:
        hello = self.hello(role, replica)
        self.call("POST", "/v1/launchers", hello)
        self.launchers[str(hello.pod)] = hello
        return hello

    def launcher_client(self) -> LauncherClient:
        return LauncherClient(self.endpoints)

    def incarnation(
        self, role: Role, replica: int = 0, epoch: int = 1, generation: int = 0, rank: int = 0
    ) -> Incarnation:
        key = RankKey(role=role, replica=replica, rank=rank)
        return Incarnation(key=key, epoch=Epoch(epoch), generation=generation, id=secrets.token_hex(6))

    def context(self, incarnation: Incarnation) -> RankContext:
        return RankContext(
            incarnation=incarnation,
            endpoints=self.endpoints,
            job=self.job,
            global_rank=0,
            world_size=1,
            launcher=self.launchers[str(incarnation.key.pod)].launcher,
            engine_url=None,
            memory=RankMemory(),
        )

    def rank(self, role: Role, replica: int = 0, epoch: int = 1, generation: int = 0, rank: int = 0) -> RankSession:
        """A registered rank, with its launcher where the pod has none."""
        incarnation = self.incarnation(role, replica, epoch, generation, rank)
        if str(incarnation.key.pod) not in self.launchers:
            self.register(role, replica)
        session = RankSession(self.context(incarnation))
        self._sessions.append(session)
        return session

    def failure(self, session: RankSession, kind: FailureKind = FailureKind.RANK_EXITED) -> Failure:
        incarnation = session.incarnation
        return Failure(
            id=f"uid/0/{incarnation.id}",
            kind=kind,
            pod=incarnation.key.pod,
            rank=incarnation.key.rank,
            epoch=incarnation.epoch,
            generation=incarnation.generation,
            incarnation=incarnation.id,
            exit_code=-9,
            message=f"{incarnation.key} was killed.",
            at=time.time(),
        )

    def poll(self, client: LauncherClient, carried: PodOrder | None, wait: float = 0.0) -> LauncherAnswer:
        """Polls until one is answered: a coordinator that is not open, or slow, sends a launcher away to poll again."""
        poll = LauncherPoll(carried=carried, ranks=[], wait_seconds=wait)
        client.begin_poll(poll)

        def collected() -> LauncherAnswer | None:
            answer = client.collect()
            if answer is None and not client.is_polling:
                client.begin_poll(poll)
            return answer

        found: LauncherAnswer = eventually(collected, "an answer")
        return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def make_step_report(rank: RankSession, step: int) -> StepReport:
    """What the actor's first rank reports of a step of four samples."""
    return StepReport(
        incarnation=rank.incarnation,
        step=step,
        version=step + 1,
        reward=0.5,
        loss=1.0,
        staleness=0,
        samples=4,
        tokens=40,
        seconds=1.0,
    )
