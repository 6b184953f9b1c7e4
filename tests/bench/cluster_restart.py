"""Seconds from SIGKILL of a rank to the coordinator's word that every role is ready again, on a real Kubernetes.

    make bench-cluster-restart       or       python -m tests.bench.cluster_restart --kills 100 --roles reference,actor

A tiny model, mechanism Process. Every step of the chain is distinguished by the coordinator's clock, which is this
machine's: death -> reported by the launcher -> (operator) -> epoch open -> (fork, restore) -> every role ready.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rljob_api.cluster import COORDINATOR_PORT, coordinator_name, secret_name
from rljob_api.names import Role
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, EventPage
from tests.cluster.harness import processes
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Node, bring_up
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed

IN_PLACE = (Role.REFERENCE, Role.ADVANTAGES)
ROLES = (*IN_PLACE, Role.ACTOR, Role.ROLLOUT)
LIMIT_SECONDS = 120.0
PAUSE_SECONDS = 1.0
"""Between a restart and the next kill, so that no one is struck in the echo of the last one."""
BOUND_SECONDS = "0.25"
"""A bucket of the operator's histogram: the aim for its share."""


@dataclass(frozen=True)
class Lap:
    """One kill, in seconds."""

    ready: float
    """From the kill to the word that the last role is ready."""
    reported: float
    """From the kill until the coordinator knew of it."""
    opened: float | None
    """From then until the next epoch was open; None in place."""


class CoordinatorReader:
    """The job's coordinator, asked from within the cluster's network."""

    def __init__(self, node: Node, kubectl: Kubectl, job: str) -> None:
        secret = kubectl.wait_for("secret", secret_name(job), "to be there", lambda found: found.get("data"))
        service = kubectl.wait_for("service", coordinator_name(job), "to be there", lambda found: found)
        self._node = node
        self._token = base64.b64decode(secret["data"]["token"]).decode()
        self._base = f"http://{service['spec']['clusterIP']}:{COORDINATOR_PORT}"

    def status(self) -> CoordinatorStatus:
        """What it sees."""
        return CoordinatorStatus.model_validate_json(self._get("/v1/status"))

    def events(self, after: int) -> list[CoordinatorEvent]:
        """Events above `after`; waits a little for the first."""
        return EventPage.model_validate_json(self._get(f"/v1/events?after={after}&wait=5")).events

    def _get(self, path: str) -> str:
        command = [
            "curl",
            "-sS",
            "--fail",
            "--max-time",
            "30",
            "-H",
            f"X-RLJob-Token: {self._token}",
            self._base + path,
        ]
        return _output(self._node.within(*command))


class Bench:
    """A running job, its operator's metrics, and its coordinator."""

    def __init__(self, node: Node, job: ClusterJob, metrics_port: int) -> None:
        self.job = job
        self._node = node
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self._coordinator = CoordinatorReader(node, job.kubectl, job.name)

    def lap(self, role: Role) -> Lap:
        """Kills a rank of `role` once."""
        time.sleep(PAUSE_SECONDS)
        after = self._coordinator.status().last_event
        [pod] = self.job.pods(role=role.value)
        rank = processes.the(processes.within(pod, "worker"), Kind.RANK)
        killed = time.time()
        rank.kill()
        reported: list[CoordinatorEvent] = []
        while not (lap := _lap(reported, role, killed)):
            assert time.time() < killed + LIMIT_SECONDS, f"not ready after {LIMIT_SECONDS:.0f} s: {self.job.summary()}"
            reported += self._coordinator.events(max([after, *(event.id for event in reported)]))
        return lap

    def shares(self, scope: str) -> tuple[float, float]:
        """Restarts that the operator reported to the coordinator in time, and all that it reported to it."""
        text = _output(self._node.within("curl", "-sS", "--max-time", "10", self._metrics))
        name = "rljob_operator_restart_seconds"
        within = _value(text, f'{name}_bucket{{le="{BOUND_SECONDS}",scope="{scope}",stage="told"}}')
        return within, _value(text, f'{name}_count{{scope="{scope}",stage="told"}}')


def _lap(reported: Sequence[CoordinatorEvent], role: Role, killed: float) -> Lap | None:
    """The lap that these events report, once they report its end."""
    reports = [event.at for event in reported if event.kind is EventKind.FAILURE_REPORTED and event.at > killed]
    if not reports:
        return None
    if role in IN_PLACE:
        ready = [event.at for event in _ready(reported) if event.pod is not None and event.pod.role is role]
        return Lap(ready[0] - killed, reports[0] - killed, None) if ready else None
    opened = [event for event in reported if event.kind is EventKind.EPOCH_OPENED]
    if not opened:
        return None
    last = {event.pod.role: event.at for event in _ready(reported) if event.pod and event.epoch == opened[-1].epoch}
    if len(last) < len(Role):
        return None
    return Lap(max(last.values()) - killed, reports[0] - killed, opened[-1].at - reports[0])


def _ready(reported: Sequence[CoordinatorEvent]) -> Iterator[CoordinatorEvent]:
    return (event for event in reported if event.kind is EventKind.ROLE_READY)


@contextmanager
def running(folder: Path) -> Iterator[Bench]:
    """A job of its own on the cluster of this machine."""
    cluster = bring_up()
    assert cluster.node is not None
    install_definition(cluster.kubeconfig)
    kubectl = Kubectl(cluster.kubeconfig, f"bench-restart-{uuid.uuid4().hex[:6]}")
    kubectl("create", "namespace", kubectl.namespace)
    try:
        kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
        port = _free_port()
        with OperatorProcess(cluster, kubectl.namespace, folder, metricsPort=port, lease=None):
            at_once = {"backoff": {"initialSeconds": 0}}  # a lap may be too short for a checkpoint
            policy = {"threshold": 1000, "maxGlobalRestarts": 100_000, "heartbeatTimeoutSeconds": 60, **at_once}
            manifest = make_job(
                rollout={"numRollouts": 1_000_000}, restartPolicy=policy, telemetry={"sampleLog": False}
            )
            job = ClusterJob(kubectl, slowed(manifest, "slower")).apply()
            job.wait_step(1, seconds=600)
            yield Bench(cluster.node, job, port)
    finally:
        kubectl.delete("namespace", kubectl.namespace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each role")
    parser.add_argument("--roles", default=",".join(ROLES), help="comma-separated")
    arguments = parser.parse_args()
    roles = [Role(name) for name in arguments.roles.split(",")]
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder, running(Path(folder)) as bench:
        for role in roles:
            scope = "InPlace" if role in IN_PLACE else "Global"
            before = bench.shares(scope)
            laps = [bench.lap(role) for _ in range(arguments.kills)]
            time.sleep(PAUSE_SECONDS)
            after = bench.shares(scope)
            _report(role, scope, laps, tuple(b - a for a, b in zip(before, after, strict=True)))


def _report(role: Role, scope: str, laps: Sequence[Lap], reported: tuple[float, ...]) -> None:
    opened = [lap.opened for lap in laps if lap.opened is not None]
    row = {
        "role": role.value,
        "scope": scope,
        "kills": len(laps),
        "ready_s": _spread([lap.ready for lap in laps]),
        "reported_s": _spread([lap.reported for lap in laps]),
        **({"reported_to_epoch_open_s": _spread(opened)} if opened else {}),
        "operator_told_within_250_ms": round(reported[0] / reported[1], 3) if reported[1] else None,
        "load": os.getloadavg()[0],
    }
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
        for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }


def _value(text: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} ... failed: {done.stderr.strip()}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
