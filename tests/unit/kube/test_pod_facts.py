"""What a pod as the API server has it means to the core."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from rljob_api.cluster import ASKED_TO_END
from rljob_api.names import Role
from rljob_api.wire.identity import PodKey
from rljob_operator.core import PodEnding, PodState
from rljob_operator.kube.pod_facts import Startups, fact_of, stranded
from rljob_operator.kube.views import view_pod
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running, terminated, waiting

KEY = PodKey(role=Role.ACTOR, replica=0)
param = pytest.param


@dataclass(frozen=True)
class Want:
    state: PodState
    exit_code: int | None = None
    last_message: str = ""
    ending: PodEnding | None = None
    reason: str = ""
    returns: bool = True
    incarnation: str = "u1/0"
    marked: bool = False
    has_run: bool = True


LOOP = waiting("CrashLoopBackOff", "back-off 10s restarting failed container")

ROWS = [
    param(make_pod(phase="Pending"), Want(PodState.PENDING, has_run=False), id="a pod that nobody has looked at yet"),
    param(
        make_pod(phase="Pending", conditions={"PodScheduled": ("False", "Unschedulable", "0/1 nodes: no GPU")}),
        Want(PodState.PENDING, last_message="0/1 nodes: no GPU", reason="Unschedulable", has_run=False),
        id="no node takes it",
    ),
    param(
        make_pod(waiting("ContainerCreating"), phase="Pending"),
        Want(PodState.PENDING, has_run=False),
        id="a container that is being made is no news",
    ),
    param(
        make_pod(waiting("ImagePullBackOff", "no such image"), phase="Pending"),
        Want(PodState.PENDING, last_message="no such image", reason="ImagePullBackOff", has_run=False),
        id="its image cannot be pulled",
    ),
    param(
        make_pod(waiting("ErrImagePull", "unauthorized"), phase="Pending", image="registry/worker:1"),
        Want(
            PodState.PENDING,
            last_message="image registry/worker:1: unauthorized",
            reason="ImagePullBackOff",
            has_run=False,
        ),
        id="its image is named, and the word does not come and go",
    ),
    param(
        make_pod(waiting("CreateContainerConfigError", 'secret "hub" not found'), phase="Pending"),
        Want(
            PodState.PENDING,
            last_message='secret "hub" not found',
            reason="CreateContainerConfigError",
            has_run=False,
        ),
        id="what its container names is not there",
    ),
    param(
        make_pod(
            phase="Pending",
            conditions={"PodScheduled": ("False", "SchedulingGated", "gates are there")},
        ),
        Want(PodState.PENDING, last_message="gates are there", reason="SchedulingGated", has_run=False),
        id="somebody holds it back",
    ),
    param(
        make_pod(
            waiting("PodInitializing"),
            phase="Pending",
            status={
                "initContainerStatuses": [
                    {"name": "first", "state": terminated(0)},
                    {
                        "name": "fetch",
                        "state": waiting("CrashLoopBackOff", "back-off 10s"),
                        "lastState": terminated(3, message="no model"),
                    },
                ]
            },
        ),
        Want(
            PodState.PENDING,
            last_message="init container fetch: back-off 10s; it ended with code 3, no model",
            reason="Init:CrashLoopBackOff",
            has_run=False,
        ),
        id="an init container does not end well",
    ),
    param(make_pod(running()), Want(PodState.RUNNING), id="running"),
    param(
        make_pod(running(), started=False),
        Want(PodState.PENDING, last_message="its first process imports its libraries"),
        id="a launcher that imports has not begun",
    ),
    param(
        make_pod(running(), last=terminated(1, message="boom"), restarts=3),
        Want(PodState.RUNNING, incarnation="u1/3"),
        id="running again: the last end belongs to an earlier life",
    ),
    param(
        make_pod(terminated(1, message="ValueError: no such file")),
        Want(PodState.EXITED, exit_code=1, last_message="ValueError: no such file", reason="Error"),
        id="it has exited and the kubelet will start it again",
    ),
    param(
        make_pod(terminated(137, reason="OOMKilled")),
        Want(PodState.EXITED, exit_code=-9, last_message="OOMKilled", reason="OOMKilled"),
        id="out of memory",
    ),
    param(
        make_pod(terminated(64, message="bad manifest")),
        Want(PodState.EXITED, exit_code=64, last_message="bad manifest", reason="Error"),
        id="a configuration error",
    ),
    param(
        make_pod(terminated(0, reason="Completed")),
        Want(PodState.EXITED, exit_code=0, reason="Completed"),
        id="it has ended well",
    ),
    param(
        make_pod(LOOP, last=terminated(143), restarts=4),
        Want(PodState.EXITED, exit_code=-15, reason="Error", returns=False, incarnation="u1/4"),
        id="the kubelet waits before it starts it again",
    ),
    param(
        make_pod(running(), deleting=True),
        Want(PodState.EXITED, ending=PodEnding.DELETED, returns=False),
        id="somebody deletes it",
    ),
    param(
        make_pod(running(), deleting=True, template="t0"),
        Want(PodState.EXITED, ending=PodEnding.OUTDATED, returns=False),
        id="its Deployment replaces it by one of a newer template",
    ),
    param(make_pod(running(), template="t0"), Want(PodState.RUNNING), id="of an older template, but not going yet"),
    param(
        make_pod(running(), deleting=True, conditions={"DisruptionTarget": ("True", "PreemptionByScheduler", "p")}),
        Want(PodState.EXITED, ending=PodEnding.PREEMPTED, last_message="p", returns=False),
        id="preempted",
    ),
    param(
        make_pod(running(), conditions={"DisruptionTarget": ("True", "EvictionByEvictionAPI", "drained")}),
        Want(PodState.EXITED, ending=PodEnding.EVICTED, last_message="drained", returns=False),
        id="evicted by the eviction API",
    ),
    param(
        make_pod(running(), conditions={"DisruptionTarget": ("True", "DeletionByTaintManager", "")}),
        Want(PodState.EXITED, ending=PodEnding.NODE_LOST, returns=False),
        id="its node does not answer",
    ),
    param(
        make_pod(
            phase="Pending", deleting=True, conditions={"DisruptionTarget": ("True", "DeletionByTaintManager", "")}
        ),
        Want(PodState.EXITED, ending=PodEnding.NODE_LOST, returns=False, has_run=False),
        id="it was placed on a node that does not answer",
    ),
    param(
        make_pod(running(), conditions={"DisruptionTarget": ("False", "EvictionByEvictionAPI", "")}),
        Want(PodState.RUNNING),
        id="an eviction that was taken back",
    ),
    param(
        make_pod(None, phase="Failed", status={"reason": "Evicted", "message": "low on memory"}),
        Want(PodState.EXITED, ending=PodEnding.EVICTED, last_message="low on memory", returns=False),
        id="evicted by the kubelet",
    ),
    param(
        make_pod(running(), annotations={"controller.kubernetes.io/pod-deletion-cost": "-1000"}),
        Want(PodState.RUNNING, marked=True),
        id="marked to go first",
    ),
]


@pytest.mark.parametrize(("pod", "want"), ROWS)
def test_a_pod_as_a_fact(pod: dict[str, Any], want: Want) -> None:
    fact = fact_of(KEY, view_pod(pod), "t1", NOW_SECONDS)

    assert fact.pod == KEY
    assert fact.started_at == NOW_SECONDS
    seen = Want(
        fact.state,
        fact.exit_code,
        fact.last_message,
        fact.ending,
        fact.reason,
        fact.returns,
        fact.incarnation,
        fact.marked,
        fact.has_run,
    )
    assert seen == want


LOST = {"DisruptionTarget": ("True", "DeletionByTaintManager", "")}


@pytest.mark.parametrize(
    ("pod", "late", "expected"),
    [
        param(make_pod(running()), 1000, False, id="it runs"),
        param(make_pod(running(), deleting=True), -1, False, id="it is going and has time left"),
        param(make_pod(running(), deleting=True), 1, True, id="it should have ended"),
        param(make_pod(running(), conditions=LOST), 1, False, id="its node is lost and nothing has deleted it yet"),
        param(make_pod(running(), deleting=True, conditions=LOST), -1, True, id="its node is lost"),
    ],
)
def test_whether_somebody_may_have_to_end_a_pod_for_its_node(pod: dict[str, Any], late: float, expected: bool) -> None:
    assert bool(stranded([view_pod(pod)], NOW_SECONDS + late)) is expected


def test_a_sidecar_that_comes_first_in_the_status_is_not_taken_for_the_worker() -> None:
    pod = make_pod(terminated(1))
    sidecar = {"name": "proxy", "restartCount": 7, "state": running(), "lastState": {}}
    pod["spec"]["containers"].append({"name": "proxy"})
    pod["status"]["containerStatuses"].insert(0, sidecar)

    assert view_pod(pod).restarts == 0


def test_a_launcher_is_up_from_the_first_observation_after_its_startup_and_each_incarnation_again() -> None:
    times = iter([10.0, 20.0, 30.0, 40.0])
    startups = Startups(lambda: next(times))
    begun, imports = view_pod(make_pod(running())), view_pod(make_pod(running(), restarts=1, started=False))
    again = view_pod(make_pod(running(), restarts=1))

    assert startups.of([begun]) == {"u1/0": 10.0}
    assert startups.of([begun]) == {"u1/0": 10.0}
    assert startups.of([imports]) == {}
    assert startups.of([again]) == {"u1/1": 40.0}


def test_a_launcher_that_has_ended_was_up_as_long_as_its_pod_has_no_other() -> None:
    startups = Startups(iter([10.0, 20.0, 30.0]).__next__)
    assert startups.of([view_pod(make_pod(running()))]) == {"u1/0": 10.0}
    assert startups.of([view_pod(make_pod(terminated(1)))]) == {"u1/0": 10.0}
    assert startups.of([]) == {}


HOUR = 3600.0


@pytest.mark.parametrize(
    ("node_seconds", "up_seconds", "expected"),
    [
        param(30.0, None, 30.0, id="as its node says"),
        param(30.0, 40.0, 30.0, id="as its node says, before it was seen to be up"),
        param(30.0 + HOUR, 40.0, 40.0, id="a node an hour ahead: when it was seen to be up"),
        param(30.0 + HOUR, None, 60.0, id="a node an hour ahead: no later than now"),
        param(30.0 - HOUR, 40.0, 0.0, id="a node an hour behind: no earlier than its pod was made"),
        param(None, None, 0.0, id="it has not begun: when its pod was made"),
        param(None, 40.0, 40.0, id="it has ended: when it was seen to be up"),
    ],
)
def test_when_an_incarnation_began_whatever_the_clock_of_its_node(
    node_seconds: float | None, up_seconds: float | None, expected: float
) -> None:
    since = None if node_seconds is None else NOW_SECONDS + node_seconds
    pod = replace(view_pod(make_pod(running())), running_since=since, created_at=NOW_SECONDS)
    up_at = None if up_seconds is None else NOW_SECONDS + up_seconds
    assert fact_of(KEY, pod, "t1", NOW_SECONDS + 60.0, up_at).started_at == NOW_SECONDS + expected


PREEMPTED = {"DisruptionTarget": ("True", "PreemptionByScheduler", "by another")}


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        param(make_pod(running()), None, id="nobody takes it away"),
        param(make_pod(running(), deleting=True), 0.0, id="deleted: its time says when its grace is over"),
        param(make_pod(running(), conditions=PREEMPTED), 30.0, id="announced, and the deletion is still to come"),
        param(make_pod(terminated(0), deleting=True), None, id="it has ended"),
        param(make_pod(phase="Pending", deleting=True), None, id="it has not begun"),
    ],
)
def test_how_long_a_pod_that_is_taken_away_may_still_run(raw: dict[str, Any], seconds: float | None) -> None:
    terminates_by = fact_of(KEY, view_pod(raw), "", NOW_SECONDS).terminates_by
    assert terminates_by is None if seconds is None else terminates_by == pytest.approx(NOW_SECONDS + seconds)


@pytest.mark.parametrize(
    ("raw", "placed"),
    [
        param(make_pod(phase="Pending", node=""), False, id="it waits for a node"),
        param(make_pod(waiting("ContainerCreating"), phase="Pending"), True, id="it has one and starts"),
        param(make_pod(running()), True, id="it runs"),
    ],
)
def test_whether_a_pod_has_a_node(raw: dict[str, Any], placed: bool) -> None:
    assert fact_of(KEY, view_pod(raw), "", NOW_SECONDS).placed is placed


RANGED = "LimitRanger plugin set: cpu, memory request for container worker; memory limit for container worker"
OTHERS = "LimitRanger plugin set: memory request for container worker; cpu limit for container worker"
OF_SIDECAR = "LimitRanger plugin set: memory limit for container worker-proxy"


@pytest.mark.parametrize(
    ("note", "memory", "expected"),
    [
        param(RANGED, "64Mi", "its memory limit of 64Mi is not the job's: a LimitRange of the namespace", id="ranged"),
        param(OTHERS, "64Mi", "its memory limit is 64Mi", id="a LimitRange has set something else"),
        param(OF_SIDECAR, "64Mi", "its memory limit is 64Mi", id="a LimitRange has set that of another container"),
        param("", "64Mi", "its memory limit is 64Mi", id="the job's own"),
        param("", "", "", id="its node was out of memory"),
    ],
)
@pytest.mark.parametrize(
    "pod",
    [
        param({"state": terminated(137, reason="OOMKilled")}, id="it has ended"),
        param({"state": running(), "last": terminated(137, reason="OOMKilled"), "restarts": 1}, id="it runs again"),
    ],
)
def test_a_container_out_of_memory_states_whose_limit_it_was(note: str, memory: str, expected: str, pod: Any) -> None:
    annotations = {"kubernetes.io/limit-ranger": note} if note else {}
    fact = fact_of(KEY, view_pod(make_pod(**pod, memory=memory, annotations=annotations)), "t1", NOW_SECONDS)

    assert fact.memory_note.startswith(expected)
    assert bool(fact.memory_note) is bool(expected)


def test_one_that_ended_for_another_reason_states_nothing_of_memory() -> None:
    assert fact_of(KEY, view_pod(make_pod(terminated(1), memory="64Mi")), "t1", NOW_SECONDS).memory_note == ""


NOTE = ASKED_TO_END


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        param(make_pod(terminated(143, message=NOTE)), True, id="it has drained"),
        param(make_pod(terminated(137, message=NOTE)), True, id="it was killed before its drain was over"),
        param(make_pod(running(), last=terminated(137, message=NOTE), restarts=1), True, id="it runs again"),
        param(make_pod(LOOP, last=terminated(143, message=NOTE), restarts=4), True, id="it waits to run again"),
        param(make_pod(running()), False, id="it runs"),
        param(make_pod(terminated(137)), False, id="it did not turn"),
        param(make_pod(terminated(137, reason="OOMKilled", message=NOTE)), False, id="it was out of memory then"),
        param(make_pod(terminated(1, message=NOTE)), False, id="it ended by itself"),
        param(make_pod(terminated(143, message=NOTE), deleting=True), False, id="its pod is deleted"),
        param(
            make_pod(
                terminated(143, message=NOTE), conditions={"DisruptionTarget": ("True", "EvictionByEvictionAPI", "")}
            ),
            False,
            id="its pod is evicted",
        ),
    ],
)
def test_whether_a_kubelet_ended_a_launcher_that_turned(pod: dict[str, Any], *, expected: bool) -> None:
    assert fact_of(KEY, view_pod(pod), "t1", NOW_SECONDS).asked_to_end is expected
