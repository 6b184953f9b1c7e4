"""What a Workload expected about its job, and which write is due: two tables."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.build.workload import workload
from rljob_operator.core import Reason
from rljob_operator.kube.job_workload import with_conditions
from rljob_operator.kube.views import OwnedView, view_owned
from rljob_operator.kube.workload_state import Flavor, WantedWorkload, admission_of, queue_fact
from rljob_operator.kube.workload_writes import (
    Create,
    Delete,
    GiveBack,
    Reprioritize,
    SetCondition,
    Standing,
    Update,
    Write,
    next_write,
)
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, changed, quickstart

Json = dict[str, Any]


def make_wanted(queue: str = "team", priority: tuple[str, str] = ("", ""), **fields: Any) -> WantedWorkload:
    job = changed(quickstart(), **fields)
    return WantedWorkload(workload(job, OWNER, OperatorOptions(), queue), priority)


WANTED = make_wanted()


def made(
    *conditions: tuple[str, bool, str, str],
    wanted: WantedWorkload = WANTED,
    active: bool = True,
    status: Json | None = None,
    priority: tuple[str, str] = ("", ""),
    **metadata: Any,
) -> OwnedView:
    """A Workload as the API server has it."""
    body = wanted.manifest
    raw: Json = {
        **body,
        "metadata": {**body["metadata"], "uid": "w", "resourceVersion": "7", **metadata},
        "spec": {**body["spec"], "active": active},
        "status": status or {},
    }
    if priority[0]:
        raw["spec"]["priorityClassRef"] = {"kind": priority[0], "name": priority[1]}
    raw["status"]["conditions"] = with_conditions(raw, conditions, 0.0)
    return view_owned("Workload", raw)


RESERVED = ("QuotaReserved", True, "QuotaReserved", "")
ADMITTED = ("Admitted", True, "Admitted", "")
EVICTED = ("Evicted", True, "Preempted", "Preempted to accommodate a workload")
TIMED_OUT = ("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout")
NO_QUEUE = ("QuotaReserved", False, "Inadmissible", "LocalQueue team doesn't exist")
FINISHED = ("Finished", True, "OutOfSync", "")
READY = ("PodsReady", True, "Started", "")
LARGER = make_wanted(roles={"actor": {"resources": {"requests": {"memory": "9Gi"}}}})


@pytest.mark.parametrize(
    ("known", "runs", "reason", "expected"),
    [
        pytest.param(None, False, Reason.QUEUED, "is not made yet", id="there is none yet"),
        pytest.param(None, True, Reason.ADMITTED_AGAIN, "is gone", id="it was deleted while the job ran"),
        pytest.param(
            made(RESERVED, ADMITTED, deletionTimestamp="now"), True, Reason.ADMITTED_AGAIN, "gone", id="it goes"
        ),
        pytest.param(made(), False, Reason.QUEUED, "Kueue has not looked at", id="Kueue does not run"),
        pytest.param(
            made(NO_QUEUE), False, Reason.QUEUED, "LocalQueue team doesn't exist", id="a queue that is not there"
        ),
        pytest.param(
            made(RESERVED, status={"admissionChecks": [{"name": "prov", "state": "Pending", "message": "no nodes"}]}),
            False,
            Reason.QUEUED,
            "admission checks are not through: prov: no nodes",
            id="an admission check",
        ),
        pytest.param(made(RESERVED, ADMITTED), False, None, "", id="it is admitted"),
        pytest.param(made(RESERVED, ADMITTED), True, None, "", id="it runs"),
        pytest.param(
            made(RESERVED, ADMITTED, EVICTED),
            True,
            Reason.QUOTA_TAKEN,
            "(Preempted): Preempted to",
            id="it is preempted",
        ),
        pytest.param(
            made(NO_QUEUE, EVICTED), False, Reason.QUOTA_TAKEN, "Preempted to", id="it waits after a preemption"
        ),
        pytest.param(
            made(NO_QUEUE, EVICTED, active=False), False, Reason.QUOTA_TAKEN, "set spec.active", id="it was deactivated"
        ),
        pytest.param(
            made(RESERVED, ADMITTED, wanted=LARGER), True, Reason.ADMITTED_AGAIN, "admitted anew", id="its pods changed"
        ),
        pytest.param(
            made(RESERVED, ADMITTED, wanted=make_wanted("other")),
            True,
            Reason.ADMITTED_AGAIN,
            "anew",
            id="another queue",
        ),
        pytest.param(
            made(NO_QUEUE, wanted=LARGER), False, Reason.QUEUED, "exist", id="its pods changed while it waits"
        ),
        pytest.param(
            made(RESERVED, ADMITTED, FINISHED), True, Reason.ADMITTED_AGAIN, "finished", id="finished by others"
        ),
    ],
)
def test_a_workload_holds_its_job(known: OwnedView | None, runs: bool, reason: Reason | None, expected: str) -> None:
    hold = queue_fact(known, WANTED, None, runs=runs).hold
    assert (None if hold is None else hold.reason) is reason
    assert hold is None or (hold.message.startswith("LocalQueue team: ") and expected in hold.message)


def test_a_job_that_cannot_be_started_by_its_admission_waits_and_one_that_runs_goes_on() -> None:
    known, problem = made(RESERVED, ADMITTED), "a ResourceFlavor cannot be read"
    hold = queue_fact(known, WANTED, None, runs=False, problem=problem).hold
    assert hold is not None
    assert problem in hold.message
    assert queue_fact(known, WANTED, None, runs=True, problem=problem).hold is None


def test_rollouts_beyond_the_admission_are_counted_and_do_not_end_it() -> None:
    more = make_wanted(roles={"rollout": {"replicas": 3}})
    fact = queue_fact(made(RESERVED, ADMITTED), more, None, runs=True)
    assert (fact.hold, fact.wanted, fact.granted, fact.most_rollouts) == (None, 3, 1, 1)
    fewer = queue_fact(made(RESERVED, ADMITTED, wanted=more), WANTED, None, runs=True)
    assert (fewer.hold, fewer.granted, fewer.most_rollouts) == (None, 3, 1)


def test_another_version_of_the_operator_ends_no_admission_of_the_same_spec() -> None:
    newer = WantedWorkload({**WANTED.manifest, "metadata": {**WANTED.manifest["metadata"]}}, ("", ""))
    annotations = {**newer.manifest["metadata"]["annotations"], "rljob.dev/requests": "by other defaults"}
    newer.manifest["metadata"]["annotations"] = annotations
    assert queue_fact(made(RESERVED, ADMITTED), newer, None, runs=True).hold is None


REST = Standing(at_rest=True, by_user=False, ready=False)
RUNS = Standing(at_rest=False, by_user=False, ready=True)
STARTS = Standing(at_rest=False, by_user=False, ready=False)
BY_USER = Standing(at_rest=True, by_user=True, ready=False)
ENDED = Standing(at_rest=False, by_user=False, ready=False, succeeded=False, message="lost")
HIGH = ("WorkloadPriorityClass", "high")


@pytest.mark.parametrize(
    ("known", "wanted", "standing", "write"),
    [
        pytest.param(None, WANTED, REST, Create(), id="a job that waits gets one"),
        pytest.param(None, WANTED, RUNS, None, id="not while its pods are there"),
        pytest.param(None, WANTED, BY_USER, None, id="a job that its user suspended has none"),
        pytest.param(None, WANTED, ENDED, None, id="nor one that has ended"),
        pytest.param(made(), WANTED, REST, None, id="it waits"),
        pytest.param(made(wanted=LARGER), WANTED, REST, Update(), id="other pods while it waits"),
        pytest.param(made(), make_wanted("other"), REST, Update(), id="another queue while it waits"),
        pytest.param(made(), make_wanted(priority=HIGH), REST, Update(), id="a priority while it waits"),
        pytest.param(made(), WANTED, BY_USER, Delete(), id="suspended by its user while it waits"),
        pytest.param(made(RESERVED, ADMITTED), WANTED, BY_USER, Delete(), id="suspended by its user after it ran"),
        pytest.param(
            made(RESERVED, ADMITTED, READY), WANTED, replace(RUNS, by_user=True), None, id="not while it saves"
        ),
        pytest.param(made(RESERVED, ADMITTED, READY, wanted=LARGER), WANTED, RUNS, None, id="other pods, saves before"),
        pytest.param(made(RESERVED, ADMITTED, wanted=LARGER), WANTED, REST, Delete(), id="other pods, saved"),
        pytest.param(made(RESERVED, ADMITTED, EVICTED), WANTED, RUNS, None, id="evicted, and its pods are there"),
        pytest.param(
            made(RESERVED, ADMITTED, EVICTED),
            WANTED,
            REST,
            GiveBack("Preempted", "Preempted to accommodate a workload", again=True),
            id="preempted, and saved",
        ),
        pytest.param(
            made(RESERVED, ADMITTED, TIMED_OUT),
            WANTED,
            REST,
            GiveBack("PodsReadyTimeout", "Exceeded the PodsReady timeout", again=False),
            id="not ready in time: Kueue says when it is queued again",
        ),
        pytest.param(made(RESERVED, ADMITTED, EVICTED, deletionTimestamp="now"), WANTED, REST, None, id="it goes"),
        pytest.param(
            made(RESERVED, ADMITTED),
            WANTED,
            STARTS,
            SetCondition("PodsReady", False, "WaitForStart", "not every rank of the job is ready"),
            id="it starts",
        ),
        pytest.param(
            made(RESERVED, ADMITTED),
            WANTED,
            RUNS,
            SetCondition("PodsReady", True, "Started", "every rank of the job is ready"),
            id="it is ready",
        ),
        pytest.param(made(RESERVED, ADMITTED, READY), WANTED, RUNS, None, id="as Kueue knows"),
        pytest.param(
            made(RESERVED, ADMITTED, READY),
            WANTED,
            STARTS,
            SetCondition("PodsReady", False, "WaitForRecovery", "not every rank of the job is ready"),
            id="it restarts",
        ),
        pytest.param(
            made(RESERVED, ADMITTED, ("PodsReady", False, "WaitForRecovery", "")),
            WANTED,
            RUNS,
            SetCondition("PodsReady", True, "Recovered", "every rank of the job is ready"),
            id="it has recovered",
        ),
        pytest.param(made(RESERVED, ADMITTED, READY), WANTED, replace(RUNS, ready=None), None, id="no one knows"),
        pytest.param(
            made(NO_QUEUE, EVICTED, READY),
            WANTED,
            REST,
            SetCondition("PodsReady", False, "WaitForStart", "not every rank of the job is ready"),
            id="what was ready before an eviction is not afterwards",
        ),
        pytest.param(
            made(RESERVED, ADMITTED, READY, priority=HIGH),
            make_wanted(priority=("WorkloadPriorityClass", "low")),
            RUNS,
            Reprioritize(),
            id="another WorkloadPriorityClass while it runs",
        ),
        pytest.param(
            made(RESERVED, ADMITTED, READY), make_wanted(priority=HIGH), RUNS, None, id="a first one waits its turn"
        ),
        pytest.param(
            made(RESERVED, ADMITTED), WANTED, ENDED, SetCondition("Finished", True, "Failed", "lost"), id="it failed"
        ),
        pytest.param(made(FINISHED), WANTED, ENDED, None, id="it is declared finished"),
        pytest.param(made(FINISHED), WANTED, REST, Delete(), id="finished by others"),
    ],
)
def test_the_write_that_is_due(
    known: OwnedView | None, wanted: WantedWorkload, standing: Standing, write: Write | None
) -> None:
    assert next_write(known, wanted, standing) == write


def test_an_admission_names_the_labels_and_tolerations_of_all_flavors_of_a_set() -> None:
    status = {
        "admission": {
            "clusterQueue": "gpus",
            "podSetAssignments": [
                {"name": "actor", "flavors": {"cpu": "shared", "nvidia.com/gpu": "a100"}},
                {"name": "rollout", "flavors": {"cpu": "plain"}},
            ],
        },
        "admissionChecks": [
            {"name": "p", "state": "Ready", "podSetUpdates": [{"name": "rollout", "annotations": {"pr": "1"}}]}
        ],
    }
    spot: Json = {"key": "spot", "operator": "Exists"}
    flavors = {
        "shared": Flavor({"zone": "z"}, ()),
        "a100": Flavor({"pool": "a100"}, [spot]),
        "plain": Flavor({}, ()),
    }
    view = made(RESERVED, ADMITTED, status=status).workload
    assert view is not None
    found = admission_of(view, flavors)
    assert (found.name, found.cluster_queue) == ("team", "gpus")
    actor, rollout = found.pod_sets
    assert actor.node_selector == {"pool": "a100", "zone": "z"}
    assert [each.model_dump(exclude_none=True) for each in actor.tolerations] == [spot]
    assert (rollout.node_selector, rollout.annotations) == ({}, {"pr": "1"})
