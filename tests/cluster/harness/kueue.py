"""Kueue on this machine's cluster, and queues of a test's own. Called by tests alone."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import NODE

API_VERSION = "kueue.x-k8s.io/v1beta2"
_SECONDS = 1800
"""To build it at first."""


def add_kueue() -> None:
    """CRDs, webhooks and controller. They stay."""
    done = subprocess.run([str(NODE / "kueue.sh")], capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"kueue.sh: {done.stderr.strip()[-2000:]}"


def _object(kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, **fields}


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue and the LocalQueue `team` of one namespace, with flavors of labels that every node has."""

    kubectl: Kubectl

    @property
    def name(self) -> str:
        """Of the ClusterQueue."""
        return self.kubectl.namespace

    def flavor(self, letter: str) -> Object:
        """Labels of the nodes of a flavor."""
        return {f"rljob.test/{self.name}-{letter}": "yes"}

    def apply(self, **cpus: str) -> "Queue":
        """Flavor -> CPUs that there are of it; the first that has room is taken."""
        nodes = [node["metadata"]["name"] for node in self.kubectl.all("nodes")]
        for letter in cpus:
            ((label, value),) = self.flavor(letter).items()
            self.kubectl("label", "--overwrite", "nodes", *nodes, f"{label}={value}")
            nodes_of = {"nodeLabels": self.flavor(letter)}
            self.kubectl.apply(_object("ResourceFlavor", f"{self.name}-{letter}", spec=nodes_of))
        flavors = [
            {
                "name": f"{self.name}-{letter}",
                "resources": [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "100Gi"}],
            }
            for letter, cpu in cpus.items()
        ]
        groups = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
        selector = {"matchLabels": {"kubernetes.io/metadata.name": self.name}}
        preemption = {"withinClusterQueue": "LowerPriority"}
        spec: Object = {"namespaceSelector": selector, "preemption": preemption, "resourceGroups": groups}
        self.kubectl.apply(_object("ClusterQueue", self.name, spec=spec))
        self.kubectl.apply(_object("LocalQueue", "team", spec={"clusterQueue": self.name}))
        return self

    def change(self, **spec: Any) -> None:
        """Merges a patch into the ClusterQueue's spec."""
        self.kubectl.merge("clusterqueue", self.name, {"spec": spec})

    def priority(self, name: str, value: int) -> str:
        """A WorkloadPriorityClass of the test's own."""
        made = _object("WorkloadPriorityClass", f"{self.name}-{name}", value=value)
        self.kubectl.apply(made)
        return str(made["metadata"]["name"])

    def workload(self, name: str) -> Object:
        """The Workload of a job."""
        found = self.kubectl.get("workloads", name)
        assert found is not None, f"{name} has no Workload"
        return found

    def wait_workload(self, name: str, what: str, holds: Callable[[Object], object]) -> None:
        """Until there is a Workload of which something holds."""
        self.kubectl.wait_for("workloads", name, what, holds)

    def gone(self) -> None:
        """Nothing of it is left that has no namespace."""
        for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
            for found in self.kubectl.all(kind):
                if found["metadata"]["name"].startswith(self.name):
                    self.kubectl.delete(kind, found["metadata"]["name"])
        for node in self.kubectl.all("nodes"):
            labels = [label for label in node["metadata"]["labels"] if label.startswith(f"rljob.test/{self.name}-")]
            if labels:
                self.kubectl("label", "nodes", node["metadata"]["name"], *(f"{label}-" for label in labels))


def states(workload: Object, kind: str, status: str = "True") -> bool:
    """Whether a condition of a Workload is so."""
    conditions = workload.get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == status for each in conditions)
