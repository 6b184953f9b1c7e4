"""A real Prometheus in a pod of the cluster, which asks what monitors name and evaluates the chart's rules.

It has a namespace of its own, as a user's has: what NetworkPolicies say of scrapers is said of it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import hostpython
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Node, prometheus_programs
from tests.cluster.monitoring.discovered import of_pods, of_slices
from tests.cluster.monitoring.scrape_configs import TARGETS

NAME = "prometheus"
_PORT = 9090
_USER = 65534


class Prometheus:
    """`start` brings it up; it goes with its namespace."""

    def __init__(self, own: Kubectl, node: Node, folder: Path) -> None:
        """`own` is its namespace; whom it asks stands in files in `folder`."""
        self._own = own
        self._node = node
        self._folder = folder
        self._address = ""

    def start(self, scrape_configs: list[Object], rules: Object, interval: str) -> None:
        """Returns when it answers. It asks no one before `discover`."""
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": ["/etc/prometheus/rules.yaml"],
            "scrape_configs": scrape_configs,
        }
        files = {"prometheus.yaml": yaml.safe_dump(config), "rules.yaml": yaml.safe_dump(rules)}
        self._folder.chmod(0o755)
        self._own.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": files},
            _pod(prometheus_programs(), self._folder),
        )
        pod = self._own.wait_ready(NAME)
        self._address = f"http://{pod['status']['podIP']}:{_PORT}"

    def discover(self, kubectl: Kubectl) -> None:
        """Whom it may ask in a namespace is as it is now."""
        pods, services, slices = (kubectl.all(kind) for kind in ("pods", "services", "endpointslices"))
        found = {"pod": of_pods(pods), "endpointslice": of_slices(slices, services, pods)}
        for role, targets in found.items():
            path = self._folder / f"{kubectl.namespace}-{role}.json"
            new = path.with_suffix(".new")
            new.write_text(json.dumps(targets))
            new.rename(path)

    @property
    def address(self) -> str:
        """Within the cluster's network."""
        return self._address

    def value(self, expression: str) -> list[Object]:
        """The series of an expression now."""
        found: list[Object] = self._ask("query", f"query={expression}")["result"]
        return found

    def rules(self) -> list[Object]:
        """Every rule with its health, and alerts with their state."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[Object]:
        """Whom it asks, and how that goes."""
        found: list[Object] = self._ask("targets", "state=active")["activeTargets"]
        return found

    def _ask(self, path: str, *parameters: str) -> Any:
        given = [argument for one in parameters for argument in ("--data-urlencode", one)]
        command = self._node.within("curl", "-sS", "-m", "20", "--get", *given, f"{self._address}/api/v1/{path}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{parameters or path}: {done.stderr}"
        answer = json.loads(done.stdout)
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]


def _pod(programs: Path, targets: Path) -> Object:
    checkout = (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    system = [mount for mount in hostpython.mounts(*checkout) if mount["mountPath"] == "/usr"]
    volumes = [volume for volume in hostpython.volumes(*checkout) if volume["name"] == system[0]["name"]]
    container = {
        "name": NAME,
        "image": hostpython.IMAGE,
        "imagePullPolicy": "Never",
        "command": [
            "/prometheus/prometheus",
            "--config.file=/etc/prometheus/prometheus.yaml",
            "--storage.tsdb.path=/data",
            f"--web.listen-address=:{_PORT}",
        ],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": _PORT}, "periodSeconds": 1},
        "volumeMounts": [
            *system,
            {"name": "programs", "mountPath": "/prometheus", "readOnly": True},
            {"name": "config", "mountPath": "/etc/prometheus"},
            {"name": "targets", "mountPath": TARGETS, "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": _USER, "fsGroup": _USER},
        "containers": [container],
        "volumes": [
            *volumes,
            {"name": "programs", "hostPath": {"path": str(programs), "type": "Directory"}},
            {"name": "targets", "hostPath": {"path": str(targets), "type": "Directory"}},
            {"name": "config", "configMap": {"name": NAME}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}
