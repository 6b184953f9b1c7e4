"""This machine's part in the cluster: the node's scripts, the built programs, and what pods are given of the checkout.

Reads the disk and runs the node's scripts; knows nothing of pods.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_operator.local.services import find_server
from tests.cluster.harness import hostpython

REPOSITORY = Path(__file__).parents[3]
NODE = REPOSITORY / "tests/cluster/node"
FIRST, SECOND = "node0", "node1"
"""Names of the nodes; the second one is there only while a test wants it."""
_BUILD_SECONDS = 1800
_FETCH_SECONDS = 300


@dataclass(frozen=True)
class Cluster:
    """A cluster that tests may use."""

    kubeconfig: str
    """For programs of this machine."""
    node: "Node | None"
    """The node that runs on this machine; None on a cluster that the user gave."""


@dataclass(frozen=True)
class Node:
    """The cluster of `tests/cluster/node`, whose network and processes a test can enter."""

    run: Path
    """Its folder of running things."""

    @property
    def kubeconfig(self) -> Path:
        """For programs within its network."""
        return self.run / "inside.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """Requests to the API server, one JSON line each; the older ones lie beside it."""
        return self.run / "audit.log"

    def within(self, *command: str) -> list[str]:
        """The command line that runs a command in the cluster's network, where pods and Services are reached."""
        return [str(NODE / "enter.sh"), *command]

    def daemon(self, action: str, name: str) -> None:
        """Does to a program of the cluster what `daemon.sh` can: start, stop, kill."""
        subprocess.run([str(NODE / "daemon.sh"), action, name], check=True, timeout=120)

    def second(self, action: str) -> None:
        """Does to a second node what `node.sh` can: add, lose, remove."""
        done = subprocess.run(
            [str(NODE / "node.sh"), action, SECOND], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"node.sh {action} {SECOND}: {done.stderr.strip()}"


def is_this_machines(kubeconfig: str) -> bool:
    """Whether a kubeconfig is the one that `make cluster` prints."""
    return Path(kubeconfig).resolve() == _root() / "run/admin.kubeconfig"


def bring_up() -> Cluster:
    """The cluster of this machine, built and started if need be; kubectl and helm are on PATH then and use it.

    RuntimeError with the script's words if it cannot be.
    """
    command = [str(NODE / "up.sh")]
    for _ in range(2):  # it begins with an end of whatever is there, so that a second try is a fresh one
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
        if done.returncode == 0:
            break
    else:
        raise RuntimeError(done.stderr.strip() or f"up.sh ended with {done.returncode} and no word")
    root = _root()
    kubeconfig = str(root / "run/admin.kubeconfig")
    os.environ |= {"KUBECONFIG": kubeconfig, "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    return Cluster(kubeconfig, Node(root / "run"))


def workload_options(sources: Path | None = None) -> dict[str, Any]:
    """`workloads` for an operator whose jobs run this checkout, or that of another folder."""
    return hostpython.workload_options(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), find_server(), sources)


def tracker_workload_options() -> dict[str, Any]:
    """The same for jobs with trackers. An operator of an earlier release would add such a container to every pod."""
    options = workload_options()
    spec = options["podTemplate"]["spec"]
    tracker = hostpython.container("tracker", REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    return {**options, "podTemplate": {"spec": {**spec, "containers": [*spec["containers"], tracker]}}}


def idle_workload_options(folder: Path) -> dict[str, Any]:
    """The same for jobs whose epoch shall not begin; what their pods run instead lies in `folder`."""
    return hostpython.idle_options(workload_options(), folder)


def prometheus_programs() -> Path:
    """The folder with `prometheus` and `promtool`, fetched if need be; a RuntimeError with the script's words."""
    command = [str(NODE / "prometheus.sh")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"prometheus.sh ended with {done.returncode} and no word")
    return Path(done.stdout.strip())


def _root() -> Path:
    given = os.environ.get("RLJOB_CLUSTER_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(given) if given else cache / "rljob/cluster").resolve()
