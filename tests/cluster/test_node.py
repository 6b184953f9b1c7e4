"""The cluster itself and the harness: what every other test here takes for granted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_operator.local.services import find_server
from tests.cluster.harness import hostpython, processes
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, NotInTime, Object, is_ready
from tests.cluster.harness.machine import REPOSITORY, Node
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.volumes import folder_of_claim

FOLDERS = (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
USER = 10001


def pod(name: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod of the test server's image, or with a command one of this machine's programs."""
    container: Object = {"name": "c", "image": "localhost/tiny:1", "imagePullPolicy": "Never", "args": ["serve", ":80"]}
    if command:
        container |= hostpython.container("c", *FOLDERS) | {"image": hostpython.IMAGE, "command": [*command]}
        del container["args"]
        spec["volumes"] = [*spec.get("volumes", []), *hostpython.volumes(*FOLDERS)]
    container["volumeMounts"] = [*container.get("volumeMounts", []), *spec.pop("mounts", [])]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def service(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }


def ended(it: Object) -> bool:
    return it["status"]["phase"] in ("Succeeded", "Failed")


def test_a_pod_reaches_another_by_the_name_of_its_service_and_so_does_this_machine(
    kubectl: Kubectl, node: Node
) -> None:
    name = f"web.{kubectl.namespace}.svc"
    kubectl.apply(service("web"), pod("web", labels={"app": "web"}))
    kubectl.wait_ready("web")

    def of_this_machine() -> str:
        """Its answer; none before the Service has it."""
        asked = node.within("curl", "-sf", "-m", "20", f"http://{name}")
        return subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout

    assert kubectl.wait("an answer to this machine", of_this_machine).startswith("web")
    asked = f"import urllib.request; print(urllib.request.urlopen('http://{name}', timeout=60).read().decode())"
    kubectl.apply(pod("client", sys.executable, "-c", asked, restartPolicy="Never"))
    kubectl.wait_for("pod", "client", "to end", ended)
    assert kubectl("logs", "client").startswith("web")


def test_a_claim_is_given_a_folder_that_a_common_user_may_write_and_a_test_may_read(
    kubectl: Kubectl, node: Node
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    writer = pod(
        "writer",
        *(sys.executable, "-c", "import rljob_workers, pathlib; pathlib.Path('/data/it').write_text('is here')"),
        restartPolicy="Never",
        securityContext={"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, "runAsNonRoot": True},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        mounts=[{"name": "data", "mountPath": "/data"}],
    )
    kubectl.apply(claim, writer)
    end = kubectl.wait_for("pod", "writer", "to end", ended)
    assert end["status"]["phase"] == "Succeeded", kubectl("logs", "writer")
    folder = folder_of_claim(kubectl, "data")
    assert (folder / "it").read_text() == "is here"
    kubectl.delete("pod", "writer")
    kubectl.delete("persistentvolumeclaim", "data")
    kubectl.wait("the folder to be gone with its claim", lambda: not folder.exists())


def test_a_killed_container_returns_as_another(kubectl: Kubectl, node: Node) -> None:
    kubectl.apply(pod("web"))
    first = kubectl.wait_ready("web")
    processes.the(processes.of_container(kubectl, "web", "c"), Kind.FIRST).kill()
    earlier = (None, processes.container_id(first, "c"))
    again = kubectl.wait_for("pod", "web", "to run again", lambda it: processes.container_id(it, "c") not in earlier)
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


def test_a_redis_of_the_options_answers_the_ping_of_the_options(kubectl: Kubectl, node: Node) -> None:
    options = hostpython.workload_options(*FOLDERS, find_server())
    redis = pod("redis", options["redisServer"], "--requirepass", "word")
    redis["spec"]["containers"][0] |= {
        "env": [{"name": "REDISCLI_AUTH", "value": "word"}],
        "readinessProbe": {"exec": {"command": options["redisPing"]}, "periodSeconds": 1, "timeoutSeconds": 5},
    }
    kubectl.apply(redis)
    kubectl.wait_ready("redis")
    server = processes.the(processes.of_container(kubectl, "redis", "c"), Kind.FIRST)
    server.pause()
    kubectl.wait_for("pod", "redis", "not to be Ready while it is stopped", lambda it: not is_ready(it))
    server.resume()
    kubectl.wait_ready("redis")


def test_a_connection_that_no_policy_allows_times_out(kubectl: Kubectl, node: Node) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "friends"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": 80}]}],
        },
    }
    names = ("web", "friend", "stranger")
    kubectl.apply(service("web"), *(pod(name, labels={"app": name}) for name in names))
    for name in names:
        kubectl.wait_ready(name)
    kubectl.apply(policy)

    def reported(name: str) -> str:
        try:
            return kubectl("exec", name, "--", "/tiny", "get", "http://web")
        except KubectlFailed as failed:
            return str(failed)

    kubectl.wait(
        "the stranger's connections to time out", lambda: "Client.Timeout exceeded" in reported("stranger"), seconds=120
    )
    kubectl.wait("the friend's to be answered", lambda: reported("friend").startswith("web"))


def test_the_api_server_refuses_what_a_rule_refuses_with_the_rules_sentence(kubectl: Kubectl) -> None:
    group = f"{kubectl.namespace}.test"
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        "x-kubernetes-validations": [{"rule": "self.spec.size > 0", "message": "size must be above 0"}],
    }
    kubectl.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"things.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
    )
    thing = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": {"size": 0}}

    def refusal() -> str | None:
        """None before the API server knows the kind."""
        message = kubectl.refusal(thing)
        return (
            None if "no matches for kind" in message or "could not find the requested resource" in message else message
        )

    try:
        assert "size must be above 0" in kubectl.wait("its kind to be known", refusal)
    finally:
        kubectl.delete("crd", f"things.{group}")


def test_a_wait_that_is_over_states_who_waited_for_what_and_how_the_pods_are(kubectl: Kubectl) -> None:
    kubectl.apply(pod("never", nodeSelector={"there-is": "none"}))
    with pytest.raises(NotInTime, match=r"waited 0 s for pod never to be Ready\.\n(.|\n)*never .*Pending"):
        kubectl.wait_ready("never", seconds=0)
    with pytest.raises(KubectlFailed, match="NotFound"):
        kubectl("get", "pod", "nobody")
