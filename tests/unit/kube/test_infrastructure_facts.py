"""Pods of coordinator and Redis as facts: each end is reported once, and one that does not stay up is noticed."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from rljob_api.status import ProcessStatus, RLJobStatus
from rljob_operator.kube.pod_facts import Ends, infrastructure_facts, infrastructure_pods
from rljob_operator.kube.views import JobKey, PodView, view_pod
from tests.unit.kube.objects import make_pod, running, terminated, waiting

KEY = JobKey("ns", "job")
param = pytest.param


def make(state: Any, restarts: int = 0, **more: Any) -> Any:
    return make_pod(state, restarts=restarts, component="control", name="job-control-0", **more)


def seen(*pods: Any) -> Mapping[str, PodView]:
    return infrastructure_pods(KEY, map(view_pod, pods))


def remembers(restarts: int | None) -> RLJobStatus:
    known = [] if restarts is None else [ProcessStatus(name="control", restarts=restarts)]
    return RLJobStatus(infrastructure=known)


@pytest.mark.parametrize(
    ("pod", "reported", "alive"),
    [
        param(make(running()), None, True, id="the first sight of it is no news"),
        param(make(running(), 1, last=terminated(137)), 1, True, id="an end that was told already"),
        param(make(running(), 2, last=terminated(137)), 1, False, id="a new end"),
        param(make(terminated(1), 1), 1, True, id="the kubelet starts it again"),
        param(make(waiting("CrashLoopBackOff"), 3, last=terminated(1)), 3, True, id="the kubelet waits a little"),
        param(make(None, phase="Failed"), 0, False, id="an evicted pod does not return by itself"),
    ],
)
def test_a_process_is_dead_for_the_turn_in_which_its_end_is_seen(pod: Any, reported: int | None, alive: bool) -> None:
    (fact,) = infrastructure_facts(seen(pod), remembers(reported), Ends(time.time), {})

    assert (fact.name, fact.alive) == ("control", alive)


def test_ends_are_remembered_over_the_incarnations_that_the_api_server_forgets() -> None:
    """By when they were seen: the clock of their node may be another."""
    ends = Ends(iter([10.0, 12.5]).__next__)
    incarnations = [make(running()), make(running(), 1, last=terminated(137)), make(running(), 2, last=terminated(1))]
    for pod in [*incarnations, incarnations[-1]]:
        (fact,) = infrastructure_facts(seen(pod), remembers(0), ends, {})

    assert fact.exits == (10.0, 12.5)
    assert (fact.num_restarts, fact.exit_code) == (2, 1)


@pytest.mark.parametrize(
    ("pod", "is_down", "reason", "message"),
    [
        param(make(running()), False, "", "", id="it runs"),
        param(
            make(running(), started=False),
            True,
            "",
            "its first process imports its libraries",
            id="it starts",
        ),
        param(
            make(None, phase="Pending", conditions={"PodScheduled": ("False", "Unschedulable", "unbound claims")}),
            True,
            "Unschedulable",
            "Unschedulable: unbound claims",
            id="no node takes it",
        ),
        param(
            make(waiting("ImagePullBackOff", "no such image"), phase="Pending"),
            True,
            "ImagePullBackOff",
            "ImagePullBackOff: no such image",
            id="its image is not there",
        ),
        param(
            make(waiting("CrashLoopBackOff", "back-off 10s"), 4, last=terminated(1, message="Bad config")),
            True,
            "CrashLoopBackOff",
            "CrashLoopBackOff: Bad config",
            id="it crashes again and again",
        ),
        param(make(waiting("ContainerCreating"), phase="Pending"), True, "", "it has not started", id="it waits"),
    ],
)
def test_what_does_not_run_is_named_with_the_reason_of_its_platform(
    pod: Any, is_down: bool, reason: str, message: str
) -> None:
    (fact,) = infrastructure_facts(seen(pod), remembers(0), Ends(time.time), {})

    assert (fact.down_since is not None, fact.reason, fact.waits_for) == (is_down, reason, message)


def test_it_is_down_from_the_first_observation_of_that_until_it_runs() -> None:
    clock = iter(range(100, 200))
    ends = Ends(lambda: float(next(clock)))
    incarnations = [running(), running(), terminated(1), waiting("CrashLoopBackOff"), running(), terminated(1)]
    starts = [False, False, False, False, True, False]
    away = [
        infrastructure_facts(seen(make(state, started=started)), remembers(0), ends, {})[0].down_since
        for state, started in zip(incarnations, starts, strict=True)
    ]

    first, last = away[0], away[5]
    assert first is not None
    assert last is not None
    assert away == [first, first, first, first, None, last]
    assert last > first


def test_units_have_numbers_workers_are_left_out_and_what_goes_is_passed_over() -> None:
    unit = make_pod(running(), component="storage", name="job-storage-1", uid="s1")
    going = make_pod(running(), component="coordinator", name="job-coordinator-x", uid="c0", deleting=True)

    facts = infrastructure_facts(seen(unit, going, make_pod(running())), RLJobStatus(), Ends(time.time), {})
    assert [fact.name for fact in facts] == ["storage-1"]
