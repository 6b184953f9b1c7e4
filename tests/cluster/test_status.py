"""The status on a real API server: nothing is lost, columns show it, `kubectl wait` and scalers read it."""

import json
import re

import pytest

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_PLURAL
from rljob_api.status import (
    ConditionType,
    EvaluationStatus,
    QueueStatus,
    RestartStatus,
    RLJobStatus,
    ScalingStatus,
    TrainingStatus,
)
from tests.cluster.harness.definition import apply_job, install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.statuses import FULL, write_status


@pytest.fixture(scope="module", autouse=True)
def definition(cluster: Cluster) -> None:
    """The CRD of the models."""
    install_definition(cluster.kubeconfig)


def _read_status(kubectl: Kubectl) -> RLJobStatus:
    job = kubectl.get("rlj", "demo")
    assert job is not None
    return RLJobStatus.model_validate(job["status"])


@pytest.mark.parametrize("status", [FULL, RLJobStatus()], ids=["everything set", "nothing set"])
def test_a_status_comes_back_as_it_was_written(kubectl: Kubectl, status: RLJobStatus) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, status)
    assert _read_status(kubectl) == status


def test_every_field_of_the_status_is_set_in_that_test() -> None:
    given = FULL.model_dump(exclude_defaults=True, by_alias=False)
    assert given.keys() == RLJobStatus.model_fields.keys()
    for part, kind in (
        ("training", TrainingStatus),
        ("restart", RestartStatus),
        ("scaling", ScalingStatus),
        ("evaluation", EvaluationStatus),
        ("queue", QueueStatus),
    ):
        assert given[part].keys() == kind.model_fields.keys()


def test_columns_show_the_status(kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, FULL)
    head, row = (re.split(r" {2,}", line.strip()) for line in kubectl("get", "rlj", "-o", "wide").splitlines())
    shown = dict(zip(head, row, strict=True))
    assert shown.pop("AGE")
    assert shown == {
        "NAME": "demo",
        "PHASE": "Running",
        "READY": "False",
        "STEP": "5",
        "REWARD": "0.875",
        "RESTARTS": "2",
        "REASON": "RankExited",
        "EPOCH": "3",
        "ROLLOUTS": "1",
        "WANTED": "2",
        "WEIGHTS": "6",
        "CHECKPOINT": "4",
        "SAMPLES/S": "7012",
        "STALENESS": "1",
        "EVALUATION": "held-out 0.62 @ 4",
        "QUEUE": "32",
    }


def test_kubectl_waits_for_a_condition(kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    done = FULL.conditions[0].model_copy(update={"type": ConditionType.SUCCEEDED, "status": "True"})
    write_status(kubectl, FULL.model_copy(update={"conditions": [done]}))
    kubectl("wait", "--for=condition=Succeeded", "rlj/demo", "--timeout=60s")


def test_the_scale_subresource_reports_replicas_and_selector(kubectl: Kubectl) -> None:
    apply_job(kubectl, {"spec.roles.rollout": {"replicas": 2}})
    write_status(kubectl, FULL)
    path = f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{kubectl.namespace}/{RLJOB_PLURAL}/demo/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": FULL.scaling.selector}
