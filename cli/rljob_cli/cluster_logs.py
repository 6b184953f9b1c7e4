"""Logs of a job on a cluster: of its pods while they are there, else what is kept beside its checkpoints.

Used by `rljob logs`. The coordinator answers with what is kept while it runs; after that a short-lived pod reads the
volume (`kept_log_pod`). Everything with the rights of whoever asks.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from rljob_api.cluster import (
    COMPONENT_COORDINATOR,
    COMPONENT_WORKER,
    LABEL_COMPONENT,
    LABEL_JOB,
    LABEL_ROLE,
    coordinator_name,
)
from rljob_api.names import Role
from rljob_api.wire.logs import LogTail, LogTails
from rljob_cli.cluster import Cluster, ClusterProblem
from rljob_cli.kept_log_pod import CONTAINER, claim_of, reader_pod, rest_problem, volume_problem
from rljob_cli.queue_access import ClusterCoordinator, QueueProblem

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

READER_SECONDS = 120.0
"""Within which its pod has to be placed, mount the volume and print."""
_POLL_SECONDS = 0.5
_SECONDS = 30
_RUNNING = "Running"


class ClusterLogs:
    """Of one job."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Raises ClusterProblem where there is no such job."""
        from kubernetes import client

        self._cluster = cluster
        self._name = name
        self._job = cluster.job(name)
        self._core = client.CoreV1Api(cluster.client)
        self._apps = client.AppsV1Api(cluster.client)

    def current(self, role: Role | None, lines: int) -> list[LogTail]:
        """Of the pods that run; of a job without any what is kept."""
        pods = self._pods(COMPONENT_WORKER, role)
        if not pods:
            return self.kept(role, previous=False)
        return [self._of_pod(pod["metadata"]["name"], lines) for pod in pods]

    def kept(self, role: Role | None, *, previous: bool) -> list[LogTail]:
        """What is beside the checkpoints."""
        if self._pods(COMPONENT_COORDINATOR, None):
            try:
                query = {"previous": str(previous).lower(), **({} if role is None else {"role": role.value})}
                return ClusterCoordinator(self._cluster, self._name).ask(LogTails, "/v1/logs", query).logs
            except QueueProblem as problem:
                raise ClusterProblem(str(problem)) from problem
        return self._from_volume(role, previous=previous)

    def _pods(self, component: str, role: Role | None) -> list[dict[str, Any]]:
        selector = f"{LABEL_JOB}={self._name},{LABEL_COMPONENT}={component}"
        if role is not None:
            selector += f",{LABEL_ROLE}={role.value}"
        found = self._json(
            f"the pods of {self._name}",
            lambda: self._core.list_namespaced_pod(
                self._cluster.namespace, label_selector=selector, _preload_content=False, _request_timeout=_SECONDS
            ),
        )
        pods = [
            pod
            for pod in found["items"]
            if pod.get("status", {}).get("phase") == _RUNNING and "deletionTimestamp" not in pod["metadata"]
        ]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def _of_pod(self, pod: str, lines: int) -> LogTail:
        answer = self._log(pod, "worker", lines)
        return LogTail.model_construct(name=pod, life="", text=answer)

    def _log(self, pod: str, container: str, lines: int | None = None) -> str:
        answer = self._cluster.called(
            f"the log of the pod {pod}",
            lambda: self._core.read_namespaced_pod_log(
                pod,
                self._cluster.namespace,
                container=container,
                _preload_content=False,
                _request_timeout=_SECONDS,
                tail_lines=lines,
            ),
        )
        return bytes(answer.data).decode(errors="replace")

    def _from_volume(self, role: Role | None, *, previous: bool) -> list[LogTail]:
        deployment = self._json(
            f"the Deployment {coordinator_name(self._name)}",
            lambda: self._apps.read_namespaced_deployment(
                coordinator_name(self._name),
                self._cluster.namespace,
                _preload_content=False,
                _request_timeout=_SECONDS,
            ),
        )
        claim = claim_of(deployment)
        found = None if claim is None else self._cluster.claim(claim)
        problem = volume_problem(self._name, deployment) or rest_problem(self._job, found)
        if problem is not None:
            raise ClusterProblem(problem)
        arguments = [*(() if role is None else ("--role", role.value)), *(("--previous",) if previous else ())]
        return self._read_by_pod(deployment, arguments)

    def _read_by_pod(self, deployment: dict[str, Any], arguments: Sequence[str]) -> list[LogTail]:
        pod = f"{self._name}-logs-{secrets.token_hex(3)}"
        body = reader_pod(self._job, deployment, pod, arguments)
        namespace = self._cluster.namespace
        self._cluster.called(
            f"the pod {pod}, which would read the volume",
            lambda: self._core.create_namespaced_pod(namespace, cast("V1Pod", body), _request_timeout=_SECONDS),
        )
        try:
            phase = self._await_end(pod)
            said = self._log(pod, CONTAINER)
            if phase != "Succeeded":
                last = said.strip().splitlines()[-1:] or ["it said nothing"]
                raise ClusterProblem(f"The pod {pod}, which reads the volume of {self._name}, failed: {last[0]}")
            return LogTails.model_validate_json(said).logs
        except ValidationError as error:
            raise ClusterProblem(f"What the pod {pod} has printed is not understood: use its image's rljob.") from error
        finally:
            self._cluster.called(
                f"the pod {pod}",
                lambda: self._core.delete_namespaced_pod(
                    pod, namespace, grace_period_seconds=0, _request_timeout=_SECONDS
                ),
            )

    def _await_end(self, pod: str) -> str:
        """The phase in which it ended. Raises ClusterProblem, with what it waits for."""
        deadline = time.monotonic() + READER_SECONDS
        while True:
            found = self._json(
                f"the pod {pod}",
                lambda: self._core.read_namespaced_pod(
                    pod, self._cluster.namespace, _preload_content=False, _request_timeout=_SECONDS
                ),
            )
            status = found.get("status", {})
            if status.get("phase") in ("Succeeded", "Failed"):
                return str(status["phase"])
            if time.monotonic() >= deadline:
                raise ClusterProblem(
                    f"The pod {pod}, which reads the volume of {self._name}, has not ended within"
                    f" {READER_SECONDS:.0f} s{_waits_for(status)}. See kubectl describe, and ask again."
                )
            time.sleep(_POLL_SECONDS)

    def _json(self, what: str, call: Any) -> dict[str, Any]:  # noqa: ANN401 - a client without types
        answer: dict[str, Any] = json.loads(self._cluster.called(what, call).data)
        return answer


def _waits_for(status: dict[str, Any]) -> str:
    """What a pod that does not run says of itself."""
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return f" ({waiting.get('reason')}: {waiting.get('message', '')})"
    false = [one for one in status.get("conditions", []) if one.get("status") == "False" and one.get("message")]
    return f" ({false[0].get('reason')}: {false[0]['message']})" if false else ""
