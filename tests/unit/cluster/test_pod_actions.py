"""What is let go of after the loss of a node, and what is not."""

import asyncio
from typing import Any, cast

import pytest

from rljob_operator.cluster.actions import Actions
from rljob_operator.kube.api import Api
from rljob_operator.kube.views import JobKey, view_pod
from tests.unit.kube.fake_api import ApiOfAnswers
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running

KEY = JobKey("ns", "job")
NODE, POD, OTHER = "/api/v1/nodes/node0", "/api/v1/namespaces/ns/pods/lost", "/api/v1/namespaces/ns/pods/waits"
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
SILENT = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
LOST = make_pod(running(), name="lost", deleting=True)
TAINTED = {"DisruptionTarget": ("True", "DeletionByTaintManager", "")}
CONTROL = make_pod(running(), name="lost", component="control", deleting=True)
GIVEN_UP = make_pod(running(), name="lost", component="control", deleting=True, conditions=TAINTED)
WAITS = make_pod(
    name="waits", uid="u2", phase="Pending", conditions={"PodScheduled": ("False", "Unschedulable", "no node")}
)


def an_hour_later() -> float:
    """When the time of pods that are being deleted is over."""
    return NOW_SECONDS + 3600


@pytest.mark.parametrize(
    ("pods", "node", "deleted"),
    [
        pytest.param([LOST, WAITS], READY, [], id="its kubelet is slow"),
        pytest.param([LOST], SILENT, [f"DELETE 0 {POD}"], id="its node does not answer"),
        pytest.param([LOST], 404, [f"DELETE 0 {POD}"], id="its node was removed"),
        pytest.param([LOST], 403, [], id="the operator may not ask for nodes"),
        pytest.param([make_pod(running(), name="lost")], SILENT, [], id="the cluster gives the node time"),
        pytest.param([WAITS], SILENT, [], id="a pod waits for something else"),
        pytest.param([CONTROL], SILENT, [], id="a silent node may still write the control state"),
        pytest.param([GIVEN_UP], READY, [], id="a control Redis whose node is back"),
        pytest.param([GIVEN_UP], SILENT, [f"DELETE 0 {POD}"], id="the node of a control Redis is given up"),
        pytest.param([CONTROL], 404, [f"DELETE 0 {POD}"], id="the node of a control Redis was removed"),
        pytest.param(
            [LOST, WAITS], SILENT, [f"DELETE 0 {POD}", f"DELETE 1 {OTHER}"], id="a pod has waited for the lost one"
        ),
    ],
)
def test_what_is_let_go_of(pods: list[dict[str, Any]], node: dict[str, Any] | int, deleted: list[str]) -> None:
    api = ApiOfAnswers({NODE: node, f"DELETE 0 {POD}": {}, f"DELETE 1 {OTHER}": {}})

    asyncio.run(Actions(cast(Api, api), KEY, "uid", an_hour_later).release_lost([view_pod(pod) for pod in pods]))

    assert [path for path in api.asked if path.startswith("DELETE")] == deleted


CORDONED = {**READY, "spec": {"unschedulable": True}}
COORDINATOR = make_pod(running(), name="lost", component="coordinator", role="")
ACTOR = make_pod(running(), name="lost")
ACTOR_WAITS = {**WAITS, "spec": {**WAITS["spec"], "nodeName": ""}}
COORDINATOR_WAITS = make_pod(
    name="waits",
    uid="u2",
    component="coordinator",
    role="",
    phase="Pending",
    node="",
    conditions={"PodScheduled": ("False", "Unschedulable", "no node")},
)
ACTOR_SAVES = make_pod(running(), name="saves", uid="u3", node="node1", deleting=True)
ROLLOUT = make_pod(running(), name="lost", role="rollout")


@pytest.mark.parametrize(
    ("pods", "node", "deleted"),
    [
        pytest.param([COORDINATOR, ACTOR_WAITS], CORDONED, True, id="the actor waits for its coordinator"),
        pytest.param([ACTOR, COORDINATOR_WAITS], CORDONED, True, id="the coordinator waits for its actor"),
        pytest.param([COORDINATOR, ACTOR_WAITS, ACTOR_SAVES], CORDONED, False, id="the actor before it still saves"),
        pytest.param([COORDINATOR, ACTOR_WAITS], READY, False, id="the node takes pods: the actor waits for a GPU"),
        pytest.param([COORDINATOR, ACTOR_WAITS], 403, False, id="the operator may not ask for nodes"),
        pytest.param([COORDINATOR, ACTOR_WAITS], 404, False, id="the node is gone, and its pods with it"),
        pytest.param([COORDINATOR, ACTOR], CORDONED, False, id="the drain has taken neither"),
        pytest.param([ROLLOUT, ACTOR_WAITS], CORDONED, False, id="a rollout is the drain's own to take"),
    ],
)
def test_what_follows_a_drain(pods: list[dict[str, Any]], node: dict[str, Any] | int, deleted: bool) -> None:
    api = ApiOfAnswers({NODE: node, "/api/v1/nodes/node1": READY, f"DELETE 1 {POD}": {}, f"DELETE 1 {OTHER}": {}})

    asyncio.run(Actions(cast(Api, api), KEY, "uid", an_hour_later).release_lost([view_pod(pod) for pod in pods]))

    # The one that waits is made anew: the scheduler does not look at it again for minutes.
    both = [f"DELETE 1 {POD}", f"DELETE 1 {OTHER}"]
    assert [path for path in api.asked if path.startswith("DELETE")] == (both if deleted else [])


@pytest.mark.parametrize(
    ("node", "deleted"),
    [
        pytest.param(CORDONED, [f"DELETE 1 {POD}"], id="its budget would keep it on the drained node for nothing"),
        pytest.param(READY, [], id="its node takes pods"),
    ],
)
def test_a_coordinator_beside_which_nothing_saves_leaves_a_drained_node(
    node: dict[str, Any], deleted: list[str]
) -> None:
    """The actor has no pod, as where a quota refuses it."""
    api = ApiOfAnswers({NODE: node, f"DELETE 1 {POD}": {}})
    asyncio.run(Actions(cast(Api, api), KEY, "uid", an_hour_later).release_lost([view_pod(COORDINATOR)]))
    assert [path for path in api.asked if path.startswith("DELETE")] == deleted


@pytest.mark.parametrize(
    ("pod", "node", "grace"),
    [
        pytest.param(make_pod(running(), name="lost"), READY, 1, id="its node is well"),
        pytest.param(make_pod(running(), name="lost"), SILENT, 0, id="its node is silent"),
        pytest.param(make_pod(running(), name="lost", component="control"), SILENT, 1, id="a control Redis may write"),
        pytest.param(make_pod(running(), name="lost", component="control"), 404, 0, id="nobody writes any more"),
    ],
)
def test_how_a_pod_is_deleted(pod: dict[str, Any], node: dict[str, Any] | int, grace: int) -> None:
    api = ApiOfAnswers({NODE: node, f"DELETE {grace} {POD}": {}})

    asyncio.run(Actions(cast(Api, api), KEY, "uid", an_hour_later).delete(view_pod(pod)))

    assert api.asked == [NODE, f"DELETE {grace} {POD}"]
    assert api.sent[0]["preconditions"] == {"uid": pod["metadata"]["uid"]}, "and not another one of its name"


def _waiting(uid: str) -> dict[str, Any]:
    unscheduled = {"PodScheduled": ("False", "Unschedulable", "no node")}
    return make_pod(name="waits", uid=uid, phase="Pending", conditions=unscheduled)


@pytest.mark.parametrize(
    ("turns", "made_again"),
    [
        pytest.param([[LOST, WAITS], [_waiting("u3")], [_waiting("u4")]], [1, 1, 0], id="the one made anew, once more"),
        pytest.param([[LOST], [LOST, WAITS], [WAITS]], [0, 0, 1], id="one that is listed late"),
        pytest.param([[LOST], [], [WAITS]], [0, 0, 0], id="one that is made later"),
        pytest.param([[LOST, WAITS], *[[LOST, _waiting(f"w{n}")] for n in range(4)]], [1, 0, 0, 0, 0], id="it stays"),
        pytest.param([[LOST, make_pod(name="waits", uid="u2", phase="Pending")], [WAITS]], [0, 1], id="not tried yet"),
    ],
)
def test_a_pod_that_waits_is_made_again_for_a_burial_and_not_again_and_again(
    turns: list[list[dict[str, Any]]], made_again: list[int]
) -> None:
    api = ApiOfAnswers({NODE: SILENT, f"DELETE 0 {POD}": {}, f"DELETE 1 {OTHER}": {}})
    actions = Actions(cast(Api, api), KEY, "uid", an_hour_later)
    seen: list[int] = []

    for pods in turns:
        api.asked.clear()
        asyncio.run(actions.release_lost([view_pod(pod) for pod in pods]))
        seen.append(api.asked.count(f"DELETE 1 {OTHER}"))

    assert seen == made_again
