"""What is let go of after the loss of a node, and what is not."""

import asyncio
from typing import Any, cast

import pytest

from rljob_operator.adapters.api import Api
from rljob_operator.adapters.pod_actions import PodActions
from rljob_operator.adapters.views import JobKey, view_pod
from tests.unit.adapters.fake_api import ApiOfAnswers
from tests.unit.adapters.objects import make_pod, running

KEY = JobKey("ns", "job")
NODE, POD, OTHER = "/api/v1/nodes/node0", "/api/v1/namespaces/ns/pods/lost", "/api/v1/namespaces/ns/pods/waits"
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
SILENT = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
LOST = make_pod(running(), name="lost", deleting=True)
WAITS = make_pod(
    name="waits", uid="u2", phase="Pending", conditions={"PodScheduled": ("False", "Unschedulable", "no node")}
)


@pytest.mark.parametrize(
    ("pods", "node", "deleted"),
    [
        pytest.param([LOST, WAITS], READY, [], id="its kubelet is slow"),
        pytest.param([LOST], SILENT, [f"DELETE 0 {POD}"], id="its node does not answer"),
        pytest.param([LOST], 404, [f"DELETE 0 {POD}"], id="its node was removed"),
        pytest.param([LOST], 403, [], id="the operator may not ask for nodes"),
        pytest.param([make_pod(running(), name="lost")], SILENT, [], id="the cluster gives the node time"),
        pytest.param([WAITS], SILENT, [], id="a pod waits for something else"),
        pytest.param(
            [LOST, WAITS], SILENT, [f"DELETE 0 {POD}", f"DELETE 1 {OTHER}"], id="a pod has waited for the lost one"
        ),
    ],
)
def test_what_is_let_go_of(pods: list[dict[str, Any]], node: dict[str, Any] | int, deleted: list[str]) -> None:
    api = ApiOfAnswers({NODE: node, f"DELETE 0 {POD}": {}, f"DELETE 1 {OTHER}": {}})

    asyncio.run(PodActions(cast(Api, api)).bury(KEY, [view_pod(pod) for pod in pods]))

    assert [path for path in api.asked if path.startswith("DELETE")] == deleted
