"""The pod that reads the logs of a job that has ended: its volume, read-only, and a program of its image. Pure.

Made of the coordinator's own Deployment, which says image, user and volume, with the rights of its maker: neither the
operator nor the job needs a right for it. It carries no label of the job's pods, so that nobody takes it for one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.cluster import API_GROUP, RUN_DIR, coordinator_name
from rljob_api.status import Phase

CONTAINER = "logs"
LABEL = f"{API_GROUP}/logs-of"
LIVES_SECONDS = 300
"""A pod whose maker is gone ends by itself after so long, and goes with its job."""
_AT_REST = (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED)
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
"""Of the coordinator's pod. Where its job's pods had to be together, one that comes after them need not be."""
_COPIED_OF_CONTAINER = ("image", "imagePullPolicy", "env", "envFrom", "securityContext", "volumeMounts", "resources")


def reader_pod(
    job: Mapping[str, Any], deployment: Mapping[str, Any], name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """The Pod `name` that prints what is kept of `job`, made like the pods of `deployment`, its coordinator's."""
    template = copy.deepcopy(deployment["spec"]["template"]["spec"])
    coordinator = next(one for one in template["containers"] if one["name"] == "coordinator")
    python = coordinator["command"][0]
    container = {key: coordinator[key] for key in _COPIED_OF_CONTAINER if key in coordinator}
    # Devices are claimed by the pod, whose claims are not copied: to read a file takes none.
    container["resources"] = {key: each for key, each in container.get("resources", {}).items() if key != "claims"}
    for mount in container["volumeMounts"]:
        mount["readOnly"] = mount.get("readOnly", False) or mount["mountPath"] == RUN_DIR
    container |= {"name": CONTAINER, "command": [python, "-m", "rljob_workers.kept_logs", *arguments]}
    spec = {key: template[key] for key in _COPIED if key in template}
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume and volume["name"] == _run_volume(coordinator):
            volume["persistentVolumeClaim"]["readOnly"] = True
    owner = {key: job[key] for key in ("apiVersion", "kind")}
    owner |= {key: job["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": name, "labels": {LABEL: job["metadata"]["name"]}, "ownerReferences": [owner]}
    limits = {"restartPolicy": "Never", "activeDeadlineSeconds": LIVES_SECONDS, "terminationGracePeriodSeconds": 0}
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
    template = deployment["spec"]["template"]["spec"]
    coordinator = next(one for one in template["containers"] if one["name"] == "coordinator")
    volume = next(one for one in template["volumes"] if one["name"] == _run_volume(coordinator))
    if "emptyDir" not in volume and "ephemeral" not in volume:
        return None
    return (
        f"The RLJob {job} has no volume that outlives its pods: its template gives the run folder of"
        f" {coordinator_name(job)} an {'emptyDir' if 'emptyDir' in volume else 'ephemeral volume'}, and its logs went"
        " with it. Leave that out of roles.actor.template, or collect the logs of pods."
    )


def claim_of(deployment: Mapping[str, Any]) -> str | None:
    """The claim that the coordinator mounts as its run folder; None where it is another kind of volume."""
    template = deployment["spec"]["template"]["spec"]
    coordinator = next(one for one in template["containers"] if one["name"] == "coordinator")
    volume = next(one for one in template["volumes"] if one["name"] == _run_volume(coordinator))
    name: str | None = volume.get("persistentVolumeClaim", {}).get("claimName")
    return name


def _run_volume(coordinator: Mapping[str, Any]) -> str:
    return str(next(mount["name"] for mount in coordinator["volumeMounts"] if mount["mountPath"] == RUN_DIR))
