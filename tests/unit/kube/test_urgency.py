"""What is an alarm and what is progress, of jobs, pods and the coordinator's events."""

from typing import Any

import pytest

from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_operator.cluster.coordinators import urgency_of_events
from rljob_operator.kube.cache import urgency_of_job, urgency_of_pod
from rljob_operator.kube.views import view_pod
from rljob_operator.kube.work_queue import Urgency
from tests.unit.kube.objects import make_pod, running, terminated, waiting

ALARM, PROGRESS = Urgency.ALARM, Urgency.PROGRESS

DISRUPTED = {"DisruptionTarget": ("True", "EvictionByEvictionAPI", "")}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, make_pod(), PROGRESS, id="a new pod"),
        pytest.param(make_pod(), make_pod(waiting("ContainerCreating")), PROGRESS, id="its container is made"),
        pytest.param(make_pod(waiting("")), make_pod(running(), started=False), PROGRESS, id="it runs"),
        pytest.param(make_pod(running(), started=False), make_pod(running()), PROGRESS, id="its start-up is over"),
        pytest.param(None, make_pod(terminated(1)), ALARM, id="first seen when it had ended"),
        pytest.param(make_pod(running()), make_pod(terminated(1)), ALARM, id="its container ended"),
        pytest.param(
            make_pod(running()),
            make_pod(running(), restarts=1, last=terminated(1)),
            ALARM,
            id="it was restarted",
        ),
        pytest.param(make_pod(running()), make_pod(running(), deleting=True), ALARM, id="it is being deleted"),
        pytest.param(make_pod(running()), make_pod(running(), conditions=DISRUPTED), ALARM, id="it will be evicted"),
        pytest.param(make_pod(running()), make_pod(running(), phase="Failed"), ALARM, id="the kubelet failed it"),
        pytest.param(
            make_pod(running(), deleting=True),
            make_pod(running(), deleting=True, template="t2"),
            PROGRESS,
            id="its end is known already",
        ),
    ],
)
def test_the_end_of_a_pod_is_an_alarm(before: dict[str, Any] | None, after: dict[str, Any], expected: Urgency) -> None:
    assert urgency_of_pod(view_pod(before) if before else None, view_pod(after)) is expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, {"uid": "a", "generation": 1}, PROGRESS, id="a new job"),
        pytest.param(
            {"uid": "a", "generation": 3},
            {"uid": "b", "generation": 1},
            PROGRESS,
            id="another of the same name",
        ),
        pytest.param({"uid": "a", "generation": 1}, {"uid": "a", "generation": 2}, ALARM, id="another spec"),
        pytest.param({"uid": "a", "generation": 1}, {"uid": "a", "generation": 1}, PROGRESS, id="a label or a status"),
        pytest.param(
            {"uid": "a", "generation": 1},
            {"uid": "a", "generation": 1, "deletionTimestamp": "now"},
            ALARM,
            id="its deletion",
        ),
    ],
)
def test_another_request_is_an_alarm(before: dict[str, Any] | None, after: dict[str, Any], expected: Urgency) -> None:
    assert urgency_of_job(before, after) is expected


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param([EventKind.STEP_TRAINED, EventKind.RECORDED], PROGRESS, id="it trains"),
        pytest.param([EventKind.POD_CHANGED, EventKind.ROLE_READY], PROGRESS, id="it gets ready"),
        pytest.param([EventKind.STEP_TRAINED, EventKind.FAILURE_REPORTED], ALARM, id="a failure among steps"),
        pytest.param([EventKind.STATE_LOST], ALARM, id="lost state"),
    ],
)
def test_what_may_need_a_restart_is_an_alarm(kinds: list[EventKind], expected: Urgency) -> None:
    events = [CoordinatorEvent(id=n, kind=kind, at=0.0, epoch=1, message="") for n, kind in enumerate(kinds)]
    assert urgency_of_events(events) is expected
