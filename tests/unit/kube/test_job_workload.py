"""Writes of a job's Workload against an API server that keeps one: what is refused, missing, foreign or overtaken."""

import asyncio
import time
from typing import Any, cast

import pytest

from rljob_api.status import RLJobStatus
from rljob_operator.build.workload import QueueRequest, workload
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.job_workload import Brought, JobWorkload
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.views import JobKey, view_owned
from rljob_operator.kube.workload_state import WantedWorkload
from rljob_operator.kube.workload_writes import Standing
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, quickstart

Json = dict[str, Any]
KEY = JobKey(OWNER.namespace, "quickstart")
REQUEST = QueueRequest("team", workload_class="high")
WANTED = WantedWorkload(workload(quickstart(), OWNER, OperatorOptions(), "team"), REQUEST.priority)
REST = Standing(at_rest=True, by_user=False, ready=False)
STARTS = Standing(at_rest=False, by_user=False, ready=False)


class Server:
    """Keeps one Workload, and objects without a namespace by name."""

    def __init__(self) -> None:
        self.workload: Json | None = None
        self.others: dict[str, Json] = {}
        self.refuses = 0
        self.writes: list[str] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        found = self.workload if namespace is not None else self.others.get(name)
        if found is None:
            raise refusal("get", 404, "NotFound", name)
        return found

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        self._write("create")
        if self.workload is not None:
            raise refusal("create", 409, "AlreadyExists", "it is there")
        self.workload = {**body, "metadata": {**body["metadata"], "uid": "w", "resourceVersion": "1"}}
        return self.workload

    async def merge(
        self, resource: Resource, namespace: str, name: str, body: Json, subresource: str | None = None
    ) -> Json:
        self._write(subresource or "spec")
        assert self.workload is not None
        known = self.workload["metadata"]
        if body["metadata"]["resourceVersion"] != known["resourceVersion"]:
            raise refusal("merge", 409, "Conflict", "another version")
        version = {"resourceVersion": str(int(known["resourceVersion"]) + 1)}
        self.workload = {**self.workload, "metadata": {**known, **body["metadata"], **version}}
        for part in ("spec", "status"):
            changed = {**self.workload.get(part, {}), **body.get(part, {})}
            self.workload[part] = {name: value for name, value in changed.items() if value is not None}
        return self.workload

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        self._write("delete")
        self.workload = None
        return {}

    def _write(self, what: str) -> None:
        self.writes.append(what)
        if self.refuses:
            raise refusal(what, self.refuses, "Forbidden", "by the test")


class Job:
    """With a queue and a priority."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.others["high"] = {"value": 100}
        self.cache = Cache(lambda key, urgency: None)
        self.writes = JobWorkload(cast(Api, self.server), self.cache, KEY, OWNER.uid, time.time)

    def bring(self, standing: Standing = REST) -> Brought:
        return asyncio.run(self.writes.bring(WANTED, REQUEST, standing))

    def waits_for(self) -> str:
        hold = asyncio.run(self.writes.look(WANTED, RLJobStatus())).hold
        return "" if hold is None else hold.message

    def states(self, *conditions: tuple[str, str, str], **status: object) -> None:
        """Kueue writes, and the watch reports it."""
        assert self.server.workload is not None
        known = self.server.workload["metadata"]
        metadata = {**known, "resourceVersion": str(int(known["resourceVersion"]) + 1)}
        made = [{"type": kind, "status": value, "reason": reason, "message": ""} for kind, value, reason in conditions]
        self.server.workload = {**self.server.workload, "metadata": metadata, "status": {**status, "conditions": made}}
        self.cache.put_owned(KEY, view_owned("Workload", self.server.workload))


def test_a_workload_is_made_once_with_its_priority() -> None:
    job = Job()
    assert job.bring() == Brought()
    assert job.bring() == Brought()
    assert job.server.writes == ["create"]
    assert job.server.workload is not None
    assert job.server.workload["spec"]["priority"] == 100
    assert job.server.workload["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }


def test_a_priority_that_is_not_there_is_named_and_asked_for_seldom() -> None:
    job = Job()
    del job.server.others["high"]
    assert job.bring().again, "its status is to say so"
    sentence = "there is no WorkloadPriorityClass high. Make it, or name another one"
    assert job.waits_for() == f"LocalQueue team: {sentence}"
    assert job.bring() == Brought(problem=sentence)
    job.server.others["high"] = {"value": 1}
    assert job.bring().again
    assert "Kueue has not looked at" in job.waits_for()


def test_a_foreign_workload_of_the_name_is_left_alone_and_named() -> None:
    job = Job()
    theirs: Json = {"metadata": {"name": KEY.name, "uid": "x", "resourceVersion": "1"}, "spec": {"queueName": "theirs"}}
    job.server.workload = theirs
    job.bring()
    assert job.waits_for().startswith("LocalQueue team: Workload quickstart has the name of this job's Workload")
    assert job.server.workload == theirs


def test_a_workload_without_its_label_which_no_watch_reports_is_found_again() -> None:
    job = Job()
    job.bring()
    assert job.server.workload is not None
    job.server.workload["metadata"]["labels"] = {}
    another = JobWorkload(cast(Api, job.server), Cache(lambda key, urgency: None), KEY, OWNER.uid, time.time)
    asyncio.run(another.bring(WANTED, REQUEST, REST))
    assert job.server.workload["metadata"]["labels"] == WANTED.manifest["metadata"]["labels"]
    assert another.known is not None


@pytest.mark.parametrize("status", [403, 422, 500])
def test_a_refusal_is_reported_and_stated(status: int) -> None:
    job = Job()
    job.server.refuses = status
    brought = job.bring()
    assert [str(each) for each in brought.refusals] == ["Workload quickstart was refused: by the test"]
    assert "was refused: by the test" in job.waits_for()
    assert job.bring().again is False


def test_quota_is_given_back_by_the_version_that_was_read() -> None:
    job = Job()
    job.bring()
    admission = {"clusterQueue": "gpus", "podSetAssignments": []}
    evicted = (("QuotaReserved", "True", ""), ("Admitted", "True", ""), ("Evicted", "True", "Preempted"))
    job.states(*evicted, admission=admission)
    assert job.bring(STARTS) == Brought(), "not while its pods are there"
    assert job.bring() == Brought()
    assert job.server.workload is not None
    status = job.server.workload["status"]
    assert "admission" not in status
    found = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
    assert found == {
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Evicted": ("True", "Preempted"),
        "Requeued": ("True", "Preempted"),
    }


def test_a_change_that_kueue_overtakes_is_not_made() -> None:
    """The quota may be reserved since."""
    job = Job()
    job.bring()
    assert job.server.workload is not None
    job.server.workload["metadata"] = {**job.server.workload["metadata"], "resourceVersion": "9"}
    other = WantedWorkload(workload(quickstart(), OWNER, OperatorOptions(), "other"), REQUEST.priority)
    assert asyncio.run(job.writes.bring(other, REQUEST, REST)) == Brought(again=True)
    assert job.server.workload["spec"]["queueName"] == "team"


def test_flavors_are_read_once_for_an_admission() -> None:
    job = Job()
    job.bring()
    admission = {"clusterQueue": "gpus", "podSetAssignments": [{"name": "actor", "flavors": {"cpu": "a100"}}]}
    job.states(("QuotaReserved", "True", ""), ("Admitted", "True", ""), admission=admission)
    assert "a ResourceFlavor of the admission cannot be read: a100" in job.waits_for()
    job.server.others["a100"] = {"spec": {"nodeLabels": {"pool": "a100"}}}
    fact = asyncio.run(job.writes.look(WANTED, RLJobStatus()))
    assert fact.hold is None
    assert fact.admission is not None
    assert fact.admission.pod_sets[0].node_selector == {"pool": "a100"}
    job.server.others["a100"] = {"spec": {"nodeLabels": {"pool": "other"}}}
    assert asyncio.run(job.writes.look(WANTED, RLJobStatus())).admission == fact.admission
