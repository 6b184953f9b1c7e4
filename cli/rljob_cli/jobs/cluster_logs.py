"""Logs of a job on a cluster: of its pods while they run, else what is retained beside its checkpoints.

Used by `rljob logs`, with the rights of its user. The coordinator serves retained logs while it runs. After that a
short-lived pod reads the volume: it is made from the coordinator's Deployment, which names image, user and volume, and
carries no label of the job's pods, so that no selector of the job matches it.
"""

from __future__ import annotations

import copy
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from rljob_api.cluster import (
    API_GROUP,
    COMPONENT_COORDINATOR,
    COMPONENT_WORKER,
    LABEL_COMPONENT,
    LABEL_JOB,
    LABEL_ROLE,
    RUN_DIR,
    coordinator_name,
)
from rljob_api.names import Role
from rljob_api.status import Phase
from rljob_api.wire.logs import LogTail, LogTails
from rljob_cli.jobs.cluster import Cluster, ClusterProblem
from rljob_cli.jobs.coordinator import ClusterCoordinator, QueueProblem

if TYPE_CHECKING:
    from kubernetes.client import V1Pod


CONTAINER = "logs"


LABEL = f"{API_GROUP}/logs-of"


READER_DEADLINE_SECONDS = 300
"""A pod whose maker is gone ends by itself after so long, and goes with its job."""


_AT_REST = (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.DELETING)


_COPIED = (
    "volumes",
    "securityContext",
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "serviceAccountName",
    "automountServiceAccountToken",
    "runtimeClassName",
)
"""Fields of the coordinator's pod. Where its job's pods had to be together, one that comes after them need not be."""


_COPIED_OF_CONTAINER = ("image", "imagePullPolicy", "env", "envFrom", "securityContext", "volumeMounts", "resources")


def reader_pod(
    job: Mapping[str, Any], deployment: Mapping[str, Any], name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """The Pod `name` that prints the retained logs of `job`, made like the pods of `deployment`, its coordinator's."""
    template = copy.deepcopy(deployment["spec"]["template"]["spec"])
    coordinator, run_volume = _coordinator_and_run_volume(template)
    python = coordinator["command"][0]
    container = {key: coordinator[key] for key in _COPIED_OF_CONTAINER if key in coordinator}
    # Devices are claimed by the pod, whose claims are not copied: to read a file takes none.
    container["resources"] = {key: each for key, each in container.get("resources", {}).items() if key != "claims"}
    for mount in container["volumeMounts"]:
        mount["readOnly"] = mount.get("readOnly", False) or mount["mountPath"] == RUN_DIR
    container |= {"name": CONTAINER, "command": [python, "-m", "rljob_workers.kept_logs", *arguments]}
    spec = {key: template[key] for key in _COPIED if key in template}
    if "persistentVolumeClaim" in run_volume:
        run_volume["persistentVolumeClaim"]["readOnly"] = True
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": name, "labels": {LABEL: job["metadata"]["name"]}, "ownerReferences": [owner]}
    limits = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_DEADLINE_SECONDS,
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, **limits, "containers": [container]},
    }


def rest_problem(job: Mapping[str, Any], claim: Mapping[str, Any] | None) -> str | None:
    """A sentence where no pod of ours may touch the volume.

    One that is the first to want it would bind it to a node that the job's pods may be unable to run on.
    """
    name, phase = job["metadata"]["name"], job.get("status", {}).get("phase", "Pending")
    if phase not in _AT_REST:
        return (
            f"The RLJob {name} is {phase} and no pod of it runs that could be asked. See what it waits for: kubectl"
            f" describe rlj {name}"
        )
    if claim is not None and claim.get("status", {}).get("phase") != "Bound":
        return f"The RLJob {name} has ended before its volume was there (the claim is not bound): it has no logs."
    return None


def volume_problem(job: str, deployment: Mapping[str, Any]) -> str | None:
    """A sentence where nothing of the job's run folder outlives its pods."""
    _, volume = _coordinator_and_run_volume(deployment["spec"]["template"]["spec"])
    if "emptyDir" not in volume and "ephemeral" not in volume:
        return None
    return (
        f"The RLJob {job} has no volume that outlives its pods: its template gives the run folder of"
        f" {coordinator_name(job)} an {'emptyDir' if 'emptyDir' in volume else 'ephemeral volume'}, and its logs went"
        " with it. Leave that out of roles.actor.template, or collect the logs of pods."
    )


def claim_of(deployment: Mapping[str, Any]) -> str | None:
    """The claim that the coordinator mounts as its run folder; None where it is another kind of volume."""
    _, volume = _coordinator_and_run_volume(deployment["spec"]["template"]["spec"])
    name: str | None = volume.get("persistentVolumeClaim", {}).get("claimName")
    return name


def _coordinator_and_run_volume(template: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The container `coordinator` of a pod template, and the volume that it mounts as its run folder."""
    coordinator = next(one for one in template["containers"] if one["name"] == "coordinator")
    name = next(mount["name"] for mount in coordinator["volumeMounts"] if mount["mountPath"] == RUN_DIR)
    return coordinator, next(one for one in template["volumes"] if one["name"] == name)


READER_SECONDS = 120.0
"""Within which its pod has to be placed, mount the volume and print."""


_POLL_SECONDS = 0.5


_SECONDS = 30


_RUNNING = "Running"


class ClusterLogs:
    """The logs of one job."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Raises ClusterProblem where there is no such job."""
        from kubernetes import client

        self._cluster = cluster
        self._name = name
        self._job = cluster.job(name)
        self._core = client.CoreV1Api(cluster.client)
        self._apps = client.AppsV1Api(cluster.client)

    def current(self, role: Role | None, lines: int) -> list[LogTail]:
        """Logs of the pods that run; of a job without any the retained ones."""
        pods = self._pods(COMPONENT_WORKER, role)
        if not pods:
            return self.retained(role, previous=False)
        names = [pod["metadata"]["name"] for pod in pods]
        return [
            LogTail.model_construct(name=pod, incarnation="", text=self._log(pod, "worker", lines)) for pod in names
        ]

    def retained(self, role: Role | None, *, previous: bool) -> list[LogTail]:
        """Logs beside the checkpoints."""
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
            printed = self._log(pod, CONTAINER)
            if phase != "Succeeded":
                last = printed.strip().splitlines()[-1:] or ["it said nothing"]
                raise ClusterProblem(f"The pod {pod}, which reads the volume of {self._name}, failed: {last[0]}")
            return LogTails.model_validate_json(printed).logs
        except ValidationError as error:
            raise ClusterProblem(f"The pod {pod} has printed no known answer: use its image's rljob.") from error
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
    """The reason that the status of a pod gives while it does not run."""
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return f" ({waiting.get('reason')}: {waiting.get('message', '')})"
    false = [one for one in status.get("conditions", []) if one.get("status") == "False" and one.get("message")]
    return f" ({false[0].get('reason')}: {false[0]['message']})" if false else ""
