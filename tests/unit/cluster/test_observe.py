"""What the core may know of a job on a cluster."""

import time
from typing import cast

import pytest

from rljob_api.status import AcceptedStatus, RLJobStatus
from rljob_operator.build import Platform
from rljob_operator.cluster.coordinators import JobCoordinators
from rljob_operator.cluster.job import JobMemory, OperatorContext, TurnContext
from rljob_operator.cluster.observe import observe
from rljob_operator.kube.api import Api
from rljob_operator.kube.blockers import BlockerReports
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.events import Events
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.views import JobKey, view_pod
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import quickstart
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running

KEY = JobKey("ns", "job")


def turn() -> TurnContext:
    api, cache = cast(Api, None), Cache(lambda key, urgency: None)
    world = OperatorContext(
        api, cache, cast(JobCoordinators, None), Metrics(), OperatorOptions(), Platform(), "me", time.time
    )
    memory = JobMemory.of_new(KEY, "u1", world, cast(Events, None))
    accepted = AcceptedStatus(generation=1)
    return TurnContext(KEY, {"metadata": {"uid": "u1"}}, quickstart(), accepted, None, RLJobStatus(), memory)


@pytest.mark.parametrize(
    ("pod", "wanted", "is_outdated"),
    [
        pytest.param(make_pod(running(), template="t1"), "t1", False, id="of the template that is wanted"),
        pytest.param(make_pod(running(), template="t1"), "t2", True, id="of an older one"),
        pytest.param(make_pod(running(), template=""), "t2", False, id="of none that is known"),
        pytest.param(make_pod(running(), template="t1"), "", False, id="without a Deployment"),
        pytest.param(make_pod(running(), component="control", role=""), "t2", False, id="no worker"),
    ],
)
def test_pods_of_an_older_template_are_outdated(pod: dict[str, object], wanted: str, is_outdated: bool) -> None:
    observed, _ = observe(
        turn(),
        [view_pod(pod)],
        {"job-actor": wanted} if wanted else {},
        None,
        BlockerReports(),
        NOW_SECONDS,
        secret_is_lost=False,
        blockers=(),
        retained=None,
        volume=None,
        edited=(),
    )
    assert observed.request.outdated is is_outdated
