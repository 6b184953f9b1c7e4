"""The cluster that tests get: that of KUBECONFIG, else the one of this machine, which is left up for the next run."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chart.release import Release
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster, Node, bring_up, is_this_machines


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Cluster:
    """A cluster, or a skip that says why there is none. In CI that is a failure. kubectl and helm use it, too."""
    given = os.environ.get("KUBECONFIG")
    if given and not is_this_machines(given):
        assert shutil.which("kubectl"), "KUBECONFIG names a cluster, but there is no kubectl on PATH: install it"
        return Cluster(given, None)
    try:
        return bring_up()
    except RuntimeError as error:
        sentence = "no cluster: KUBECONFIG names none, and this machine cannot have one: "
        if os.environ.get("CI"):
            pytest.fail(f"{sentence}{error}")
        pytest.skip(sentence + str(error).splitlines()[-1])


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The node that runs on this machine, for tests that enter its network or kill its processes."""
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be reached")
    return cluster.node


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own. It is deleted afterwards, which no one waits for: it takes seconds."""
    text = re.sub("[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:40].strip("-")
    name = f"{text}-{uuid.uuid4().hex[:6]}"
    kubectl = Kubectl(cluster.kubeconfig)
    kubectl("create", "namespace", name)
    yield name
    kubectl.delete("namespace", name)


@pytest.fixture(scope="module")
def module_kubectl(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl in a namespace that all tests of a file share, for those that go on with each other's job."""
    text = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    kubectl = Kubectl(cluster.kubeconfig, f"{text}-{uuid.uuid4().hex[:6]}")
    kubectl("create", "namespace", kubectl.namespace)
    kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
    yield kubectl
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture
def kubectl(cluster: Cluster, namespace: str) -> Kubectl:
    """kubectl in the test's namespace, once pods can be made there."""
    kubectl = Kubectl(cluster.kubeconfig, namespace)
    kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
    return kubectl


@pytest.fixture
def release(kubectl: Kubectl, tmp_path: Path) -> Iterator[Release]:
    """The operator's chart for the test's namespace, not installed yet."""
    release = Release(kubectl, tmp_path)
    yield release
    release.gone()
