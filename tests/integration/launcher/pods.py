"""A job's pods on this machine: the containers' real entry points as processes, with Redis over TCP, and no cluster.

Each pod has a folder in the place of `/`; a file of endpoints stands in for the cluster's names.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rljob_api import cluster
from rljob_api.names import Epoch, Role
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import DesiredState, EpochRequest, PodOrder, PodPhase, RestorePoint
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_api.wire.observation import CoordinatorStatus, PodObservation
from rljob_operator.local.services import control_command, find_server, storage_command
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from tests.integration.children import die_with_tests
from tests.integration.dcs.world import job
from tests.integration.launcher.conftest import eventually
from tests.integration.preloaded.client import Forked, fork_program

BODIES = str(Path(__file__).with_name("pod_bodies.py"))
PASSWORD = "a secret"
TOKEN = "token"
PATIENCE_SECONDS = 240.0


def hold_port() -> socket.socket:
    """A port that the system gives no one else until this is closed; a process with its number may listen there."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def number_of(holder: socket.socket) -> int:
    return int(holder.getsockname()[1])


class Container:
    """One container of a pod; `start` again is a restart of it."""

    def __init__(self, folder: Path, uid: str, environment: dict[str, str], program: str) -> None:
        self.folder = folder
        self.uid = uid
        self.holder = hold_port()
        self.port = number_of(self.holder)
        self.log = folder / "output.log"
        self._environment = environment
        self._program = program
        self.process: Forked | None = None

    def start(self) -> None:
        arguments = ["--probe-host", "127.0.0.1", "--probe-port", str(self.port), "--metrics-port", "0"]
        with self.log.open("ab") as log:
            self.process = fork_program(self._program, arguments, environment=self._environment, output=log)

    def output(self) -> str:
        return self.log.read_text()

    def replies(self, text: str) -> None:
        eventually(f"{self.uid} to say {text!r}: {self.output()[-2000:]}", lambda: text in self.output())

    def probe(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 where nothing listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def is_ready(self) -> bool:
        return self.probe("/readyz")[0] == 200

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_SECONDS)


class Pods:
    """The coordinator's container, two Redis servers on TCP, and workers' containers as a test asks for them."""

    def __init__(self, folder: Path, manifest: RLJob | None = None) -> None:
        self.folder = folder
        self.job = manifest or job()
        program = find_server()
        self._holders = [hold_port() for _ in range(4)]
        *ports, self.coordinator_port = map(number_of, self._holders)
        self._servers = [
            [*control_command(program, folder, folder / "control.sock", PASSWORD), "--appendfsync", "no"],
            *(storage_command(program, folder, folder / f"u{unit}.sock", PASSWORD, 64 << 20) for unit in (0, 1)),
        ]
        self._servers = [
            [*command, "--port", str(port), "--bind", "127.0.0.1"]
            for command, port in zip(self._servers, ports, strict=True)
        ]
        urls = [f"redis://:{PASSWORD.replace(' ', '%20')}@localhost:{port}/0" for port in ports]
        self.endpoints = Endpoints(
            job="test",
            coordinator=f"http://localhost:{self.coordinator_port}",
            token=TOKEN,
            control_redis=urls[0],
            storage_units=urls[1:],
            run_dir="overridden",
            weights_dir="overridden",
        )
        (folder / "endpoints.json").write_text(self.endpoints.model_dump_json())
        self.client = CoordinatorClient(self.endpoints)
        self.children: list[subprocess.Popen[bytes]] = []
        self.containers: list[Container] = []
        self.coordinator: subprocess.Popen[bytes] | None = None

    def start_servers(self) -> None:
        for command in self._servers:
            self.children.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_tests
                )
            )

    def start_coordinator(self) -> None:
        environment = self._environment("coordinator", "uid-coordinator")
        ports = ["--port", str(self.coordinator_port), "--probe-port", "0", "--metrics-port", "0"]
        with (self.folder / "coordinator.log").open("ab") as log:
            self.coordinator = subprocess.Popen(
                [sys.executable, "-m", "rljob_workers.dcs.coordinator.pod", "--host", "127.0.0.1", *ports],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_tests,
            )
        self.children.append(self.coordinator)

    def worker(self, pod: PodKey, uid: str = "", without: str = "") -> Container:
        """A container that is not started yet, with small ranks; `without` one variable."""
        uid = uid or f"uid-{pod}"
        environment = self._environment(uid, uid, pod.role)
        environment.pop(without, None)
        return self._container(Container(self.folder / uid, uid, environment, BODIES))

    def real_worker(self, pod: PodKey, address: str) -> Container:
        """A container that is not started yet, with its roles as they are and an address of its own."""
        uid = f"uid-{pod}"
        environment = {**self._environment(uid, uid, pod.role), "RLJOB_POD_IP": address}
        return self._container(Container(self.folder / uid, uid, environment, "rljob_workers.launcher.pod"))

    def _container(self, container: Container) -> Container:
        self.containers.append(container)
        return container

    def _environment(self, name: str, uid: str, role: Role = Role.ACTOR) -> dict[str, str]:
        root = self.folder / name
        job_file = root / cluster.JOB_FILE.lstrip("/")
        job_file.parent.mkdir(parents=True, exist_ok=True)
        job_file.write_text(self.job.model_dump_json())
        return {
            "RLJOB_NAME": "test",
            "RLJOB_NAMESPACE": "default",
            "RLJOB_ROLE": role.value,
            "RLJOB_POD_UID": uid,
            "RLJOB_POD_IP": "127.0.0.1",
            "RLJOB_ROOT": str(root),
            "RLJOB_ENDPOINTS": str(self.folder / "endpoints.json"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    # --- the operator's hands

    def raise_epoch(self, epoch: int, manifest: RLJob | None = None) -> RestorePoint:
        request = EpochRequest(epoch=Epoch(epoch), decision_id=f"d{epoch}", reason="a test", job=manifest)
        return RestorePoint.model_validate_json(self.call("POST", "/v1/epoch", request))

    def order(
        self,
        epoch: int,
        uids: dict[PodKey, str],
        phase: PodPhase = PodPhase.RUN,
        generations: Mapping[PodKey, int] | None = None,
        *,
        draining: PodKey | None = None,
    ) -> DesiredState:
        orders = [
            PodOrder(
                pod=pod,
                epoch=Epoch(epoch),
                generation=(generations or {}).get(pod, 0),
                phase=PodPhase.DRAIN if pod == draining else phase,
                pod_uid=uid,
            )
            for pod, uid in uids.items()
        ]
        desired = DesiredState(epoch=Epoch(epoch), pods=orders, replicas=Counter(pod.role.value for pod in uids))
        self.call("PUT", "/v1/desired", desired)
        return desired

    def call(self, method: str, path: str, body: object = None) -> bytes:
        return self.client.call(method, path, body, deadline=time.monotonic() + PATIENCE_SECONDS)  # type: ignore[arg-type]

    def status(self) -> CoordinatorStatus:
        return CoordinatorStatus.model_validate_json(self.call("GET", "/v1/status"))

    def seen(self, pod: PodKey) -> PodObservation | None:
        return next((row for row in self.status().pods if row.pod == pod), None)

    def stop(self) -> None:
        for container in self.containers:
            if container.process is not None and container.process.poll() is None:
                container.process.kill()
                container.process.wait()
        for child in self.children:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
                child.wait()
        for holder in (*self._holders, *(container.holder for container in self.containers)):
            holder.close()
        self.client.close()
