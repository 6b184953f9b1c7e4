"""The jobs of the load: the quickstart, many times, on nodes that kwok pretends. Talks to the API server by kubectl."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from rljob_api.cluster import COORDINATOR_PORT, coordinator_name, service_host
from tests.bench.operator_scale.hostile import WAYS

REPOSITORY = Path(__file__).parents[3]
NAMESPACE = "operator-scale"
PODS_PER_NODE = 100
CLAIMS_PER_JOB = 2
"""The control Redis's and the checkpoints'."""
STORAGE_CLASS = "pretended"
"""Its volumes are there beforehand: to make them is no work of the operator, and none of those who are measured."""

WORKLOADS: dict[str, Any] = {
    "podTemplate": {
        "spec": {
            "nodeSelector": {"type": "kwok"},
            "tolerations": [{"key": "kwok", "operator": "Exists", "effect": "NoSchedule"}],
        }
    }
}
"""The operator's option that brings the pods to the pretended nodes."""


def names(count: int) -> list[str]:
    """Of the jobs."""
    return [f"load-{number:04d}" for number in range(count)]


def hostile_names() -> list[str]:
    """Of those whose coordinators want the operator no good, one for each way."""
    return [f"hostile-{way}" for way in WAYS]


def coordinator_host(name: str) -> str:
    """As the operator calls the coordinator of a job, with the port."""
    return f"{service_host(coordinator_name(name), NAMESPACE)}:{COORDINATOR_PORT}"


def manifests(given: list[str], rollouts: int) -> str:
    """A list of RLJobs with these names; `rollouts` replicas of that role each."""
    quickstart = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    spec = quickstart["spec"]
    spec["rollout"]["numRollouts"] = 1_000_000
    spec["roles"]["rollout"] = {"replicas": rollouts}
    spec["checkpoint"]["volume"] = {"storageClassName": STORAGE_CLASS}
    spec["transferQueue"] = {"redis": {"persistence": {"storageClassName": STORAGE_CLASS}}}
    items = [
        {
            "apiVersion": quickstart["apiVersion"],
            "kind": quickstart["kind"],
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        for name in given
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """What it prints; CalledProcessError where it fails."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    return done.stdout


def prepare(count: int) -> None:
    """A namespace, and volumes for as many jobs; those of a run that was cut off are used up."""
    clear()
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    volumes = [_volume(number) for number in range(CLAIMS_PER_JOB * count)]
    items = {"apiVersion": "v1", "kind": "List", "items": [namespace, storage_class, *volumes]}
    kubectl("apply", "-f", "-", stdin=json.dumps(items))


def _volume(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pretended-{number}", "labels": {"type": STORAGE_CLASS}},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": "/nonexistent"},
        },
    }


def create(given: list[str], rollouts: int) -> None:
    """All jobs with these names, as fast as one kubectl does it."""
    kubectl("create", "-f", "-", stdin=manifests(given, rollouts))


def delete_all() -> None:
    """Asks for the end of all of them and waits until the API server has forgotten them."""
    kubectl("-n", NAMESPACE, "delete", "rljobs.rljob.dev", "--all", "--wait=true")


def clear() -> None:
    """Returns when the namespace and the volumes are gone."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    kubectl("delete", "persistentvolumes", "-l", f"type={STORAGE_CLASS}")


def num_pods() -> int:
    """Pods in the namespace."""
    return len(kubectl("-n", NAMESPACE, "get", "pods", "-o", "name").splitlines())
