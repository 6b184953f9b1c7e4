"""The queue of a job in a turn: by its spec or its label, and what becomes of it on a cluster without Kueue."""

import asyncio
from typing import Any

import pytest

from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.build import Platform
from rljob_operator.build.workload import QueueRequest
from rljob_operator.cluster.queued import QueuedJob, missing, queue_request
from rljob_operator.kube.job_workload import JobWorkload
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, changed, quickstart
from tests.unit.test_reconcile import JOB, KEY, Server, Turns, accepted_of

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
KUEUE = OperatorOptions.model_validate({"kueue": {"enabled": True}})


@pytest.mark.parametrize(
    ("scheduling", "labels", "request_"),
    [
        pytest.param({}, {}, None, id="no queue"),
        pytest.param({}, {PRIORITY: "high"}, None, id="a priority alone"),
        pytest.param({"queueName": "a"}, {}, QueueRequest("a"), id="by the spec"),
        pytest.param({}, {QUEUE: "b"}, QueueRequest("b"), id="by the label"),
        pytest.param({"queueName": "a"}, {QUEUE: "b"}, QueueRequest("a"), id="by both: the spec counts"),
        pytest.param(
            {"queueName": "a", "priorityClassName": "pods"},
            {PRIORITY: "high"},
            QueueRequest("a", "high", "pods"),
            id="with priorities",
        ),
    ],
)
def test_the_queue_of_a_job(scheduling: dict[str, Any], labels: dict[str, str], request_: QueueRequest | None) -> None:
    assert queue_request(changed(quickstart(), scheduling=scheduling), labels) == request_


def test_the_priority_for_kueue_alone_goes_before_that_of_the_pods() -> None:
    assert QueueRequest("a", "high", "pods").priority == ("WorkloadPriorityClass", "high")
    assert QueueRequest("a", "", "pods").priority == ("PriorityClass", "pods")
    assert QueueRequest("a").priority == ("", "")


@pytest.mark.parametrize(
    ("options", "platform", "expected"),
    [
        pytest.param(OperatorOptions(), Platform(), "set the chart's value kueue.enabled", id="the option is off"),
        pytest.param(KUEUE, Platform(), "needs the API kueue.x-k8s.io/v1beta2", id="the cluster has no Kueue"),
        pytest.param(KUEUE, Platform(workloads=True), None, id="it has"),
    ],
)
def test_what_a_queue_needs(options: OperatorOptions, platform: Platform, expected: str | None) -> None:
    sentence = missing(QueueRequest("team"), options, platform)
    assert (sentence is None) == (expected is None)
    assert sentence is None or (expected or "") in sentence
    assert missing(None, options, platform) is None


def test_a_new_job_with_a_queue_is_refused_where_there_is_none() -> None:
    server = Server()
    Turns(server, RLJobStatus(), has_objects=False, scheduling={"queueName": "team"}).turn()
    status, reason, message = accepted_of(server)
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith("spec.scheduling.queueName (or the label kueue.x-k8s.io/queue-name): team needs Kueue")
    assert not [path for _, path in server.written if path != JOB and "/events" not in path]


def test_a_job_that_has_begun_is_held_where_kueue_is_gone_and_missed() -> None:
    missed = asyncio.Event()

    async def look() -> str:
        writes: JobWorkload = None  # type: ignore[assignment] # nothing is asked of Kueue
        queued = QueuedJob(writes, KUEUE, Platform(), missed)
        begun = RLJobStatus(restart=RestartStatus.model_validate({"epoch": 1}))
        fact = await queued.look(quickstart(), OWNER, {QUEUE: "team"}, begun)
        assert fact is not None
        assert fact.hold is not None
        return fact.hold.message

    assert "which this cluster does not have" in asyncio.run(look())
    assert missed.is_set()


def test_what_a_job_at_rest_has_built_for_kueue_is_forgotten_with_the_rest() -> None:
    turns = Turns(Server(), RLJobStatus(), has_objects=False)
    turns.turn()
    memory = turns._reconciler._memories[KEY]
    job, request = quickstart(), QueueRequest("team")
    first = memory.queue._wanted(job, OWNER, request)
    assert memory.queue._wanted(job, OWNER, request) is first
    memory.forget_builds()
    again = memory.queue._wanted(job, OWNER, request)
    assert again is not first
    assert again == first
