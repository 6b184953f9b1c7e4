"""A job nested as deeply as the API server takes one: it is refused in a sentence, and other jobs are taken care of.

It comes while the operator watches, and is there when the next operator starts.
"""

import json
from pathlib import Path

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import make_job

pytestmark = pytest.mark.timeout(600)

LEVELS = 9800
"""Of 10000 that the API server takes. Fewer would pass by what takes several calls a level, or much of the stack."""


def accepted(kubectl: Kubectl, name: str) -> tuple[str, str] | None:
    """Not asked for as JSON, which Python's reader gives up on, too."""
    condition = "{.status.conditions[?(@.type=='Accepted')]['status','message']}"
    status, _, message = kubectl("get", "rljob", name, "-o", f"jsonpath={condition}").partition(" ")
    return (status, message) if status else None


def takes(kubectl: Kubectl, name: str) -> bool:
    """Whether the operator accepts this job of no pods."""
    job = make_job(name)
    kubectl.apply({**job, "spec": {**job["spec"], "suspend": True}})
    return kubectl.wait(f"{name} to be judged", lambda: accepted(kubectl, name))[0] == "True"


@pytest.mark.long
def test_a_job_nested_without_end_harms_no_other(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> None:
    install_definition(cluster.kubeconfig)
    deep = json.dumps(make_job("deep", roles={"reference": {}, "rollout": {"template": {"spec": "DEEP"}}}))
    with OperatorProcess(cluster, kubectl.namespace, tmp_path / "operator") as operator:
        kubectl("create", "-f", "-", stdin=deep.replace('"DEEP"', '{"a":' * LEVELS + "1" + "}" * LEVELS))
        status, message = kubectl.wait("the deep job to be judged", lambda: accepted(kubectl, "deep"))
        assert status == "False"
        assert message.startswith("spec: is nested too deeply")
        assert takes(kubectl, "while-it-is-watched")
        operator.kill()
        operator.start()
        assert takes(kubectl, "when-it-is-listed")
