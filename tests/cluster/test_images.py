"""The images as they are built from images/, run where nothing of this machine is mounted.

The worker's takes minutes and gigabytes (torch brings CUDA along), so that its tests run with RLJOB_TEST_IMAGES=1 only,
which `make test-images` sets.
"""

import json
import os
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.chart.helm import CHART, helm
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster

BUILD_SECONDS = 3600
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 900)  # the first test of an image builds it
# What was imported has its byte code in the image: nothing can write it later.
COMPILED = (
    "import pathlib, sys; late = [name for name, module in sys.modules.items()"
    ' if (spec := getattr(module, "__spec__", None)) and (spec.origin or "").endswith(".py") and spec.cached'
    " and not pathlib.Path(spec.cached).exists()]; assert not late, late"
)


@pytest.fixture(scope="module")
def operator_image(cluster: Cluster) -> str:
    """Built and imported."""
    return _load(cluster, "operator")


@pytest.fixture(scope="module")
def worker_image(cluster: Cluster) -> str:
    """Built and imported, if that was asked for."""
    if os.environ.get("RLJOB_TEST_IMAGES") != "1":
        pytest.skip("building the worker image takes minutes and 16 GB of disk: make test-images does it")
    return _load(cluster, "worker-cpu")


def test_the_operator_image_has_all_that_it_imports_and_no_torch(operator_image: str, kubectl: Kubectl) -> None:
    message = _run(
        kubectl,
        operator_image,
        f"python -c 'import kopf, kubernetes.aio, rljob_operator.cluster.process; {COMPILED}'",
        "python -c 'from importlib.util import find_spec; assert not find_spec(\"torch\")'",
        "python -m rljob_operator --help",
        "rljob --version",
        "id --user",
    )
    assert "usage: rljob-operator" in message
    assert message.splitlines()[-2:] == [f"rljob, version {metadata.version('rljob')}", "65532"]


def test_an_image_is_archived_with_its_labels(operator_image: str, tmp_path: Path) -> None:
    if os.environ.get("RLJOB_TEST_IMAGES") != "1":
        pytest.skip("the image is built again, with another time: make test-images does it")
    command = [str(REPOSITORY / "scripts/images"), "archive", str(tmp_path), "operator"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "REVISION": "0" * 40}
    subprocess.run(command, env=environment, check=True, timeout=BUILD_SECONDS)
    version = operator_image.rpartition(":")[2]
    with tarfile.open(tmp_path / f"rljob-operator-{version}.oci.tar") as archive:

        def blob(described: Object) -> Object:
            file = archive.extractfile(f"blobs/{described['digest'].replace(':', '/')}")
            assert file is not None
            return dict(json.load(file))

        index = archive.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
        config = blob(blob(manifest)["config"])
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == version
    assert config["created"].startswith("2023-11-14T22:13:20")
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == "0" * 40
    assert labels["org.opencontainers.image.version"] == version


def test_a_worker_image_has_torch_redis_and_the_examples(worker_image: str, kubectl: Kubectl) -> None:
    message = _run(
        kubectl,
        worker_image,
        f"python -c 'import torch, transformers, rljob_workers.launcher.parent; {COMPILED}'",
        "redis-server --version",
        "redis-cli --version",
        "rljob validate quickstart.yaml",
        "id --user",
    )
    assert "Redis server v=8" in message
    assert "redis-cli " in message
    assert message.splitlines()[-2:] == ["quickstart.yaml is valid.", "10001"]


def test_the_worker_image_runs_a_job_by_itself(worker_image: str, kubectl: Kubectl) -> None:
    kubectl.apply(_config_map("job", _short_job("alone", prompts="/opt/rljob/examples/data/reverse-and-end.jsonl")))
    volumes: list[Object] = [
        {"name": "job", "configMap": {"name": "job"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
    ]
    mounts = [{"name": "job", "mountPath": "/job"}, {"name": "memory", "mountPath": "/dev/shm"}]
    command = "rljob run /job/job.yaml --out /tmp/out --output json"
    message = _run(kubectl, worker_image, command, volumes=volumes, mounts=mounts)
    assert '"phase":"Succeeded"' in message.splitlines()[-1].replace(" ", "")


def test_a_job_of_built_images_succeeds(
    operator_image: str, worker_image: str, cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    repository, _, tag = operator_image.rpartition(":")
    values = {
        "replicas": 1,
        "namespaces": [kubectl.namespace],
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "workloads": {
            "workerImage": worker_image,
            "redisImage": worker_image,
            "pullPolicy": "Never",
            "terminationGraceSeconds": 5,
            "sharedMemory": "256Mi",
            "podTemplate": {"spec": {"containers": [{"name": "worker", "env": _ONE_THREAD}]}},
        },
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    scope = ["--kubeconfig", cluster.kubeconfig, "--namespace", kubectl.namespace]
    install = ("--values", str(file), "--wait", "--timeout", "240s", "--take-ownership")
    helm("install", "rl", str(CHART), *scope, *install)
    try:
        kubectl.apply(_short_job("built", prompts="data/reverse-and-end.jsonl"))
        kubectl.wait_for("rljob", "built", "to succeed", _has_ended, seconds=300)
        found = kubectl.get("rljob", "built")
        assert found is not None
        assert found["status"]["phase"] == "Succeeded", found["status"]
        assert not [pod for pod in kubectl.all("pods", "rljob.dev/job") if _mounts_the_machine(pod)]
    finally:
        helm("uninstall", "rl", *scope)


_ONE_THREAD = [{"name": "OMP_NUM_THREADS", "value": "1"}]


def _load(cluster: Cluster, image: str) -> str:
    """Its name in the cluster."""
    if cluster.node is None:
        pytest.skip("images are imported into this machine's cluster, and KUBECONFIG names another")
    done = subprocess.run(
        [str(REPOSITORY / "scripts/images"), "load", image],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def _run(
    kubectl: Kubectl,
    image: str,
    *commands: str,
    volumes: list[Object] | None = None,
    mounts: list[Object] | None = None,
    seconds: float = 300,
) -> str:
    """What the commands print, one after the other, in a pod as restricted as Kubernetes has a word for."""
    container = {
        "name": "c",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-ec", "\n".join(commands)],
        "env": _ONE_THREAD,
        # Without a request a pod gets next to nothing where other programs keep the machine busy.
        "resources": {"requests": {"cpu": "500m"}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *(mounts or [])],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # No user is given: the image's own has to be one that is not root.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *(volumes or [])],
    }
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "once"}, "spec": spec})
    pod = kubectl.wait_for("pod", "once", "to end", _has_ended, seconds=seconds)
    message = kubectl("logs", "once")
    assert pod["status"]["phase"] == "Succeeded", message
    return message


def _has_ended(found: Object) -> bool:
    return found.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _short_job(name: str, *, prompts: str) -> Object:
    """The quickstart with a few rollouts."""
    job: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"]["data"]["prompts"] = prompts
    job["spec"]["rollout"]["numRollouts"] = 4
    share = {"resources": {"requests": {"cpu": "100m"}}}
    job["spec"]["roles"] = dict.fromkeys(("actor", "actorFwd", "advantages", "reference", "rollout"), share)
    return job


def _config_map(name: str, job: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"job.yaml": yaml.safe_dump(job)},
    }


def _mounts_the_machine(pod: Object) -> bool:
    return any("hostPath" in volume for volume in pod["spec"].get("volumes", []))
