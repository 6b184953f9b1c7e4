"""What keeps a job's pods from running, by the objects around them: whose Events are asked for, what they explain."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import Role
from rljob_api.status import ProcessStatus, RLJobStatus
from rljob_operator.core.observed import Blocker
from rljob_operator.kube.apply import ApplyOutcome, Refusal
from rljob_operator.kube.blockers import (
    REFUSAL_PATIENCE_SECONDS,
    UNTRIED_SECONDS,
    BlockerMemory,
    BlockerReports,
    Suspect,
    pod_blocker,
    process_names,
    suspects,
    unmade_process,
    unmade_roles,
    with_limit_range,
)
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.pod_facts import ABSENT_SECONDS, NO_POD, Ends, absent_facts
from rljob_operator.kube.views import Controller, JobKey, OwnedView, PodView, view_owned, view_pod
from tests.unit.kube.objects import make_pod, running, waiting

KEY = JobKey("ns", "job")
QUOTA = 'pods "job-storage-0" is forbidden: exceeded quota: none'
param = pytest.param


def owned(kind: str, name: str, replicas: int | None = None, **more: Any) -> OwnedView:
    return replace(OwnedView(kind, name, f"uid-{name}", None, "", "", "", deleting=False, replicas=replicas), **more)


def there(*views: OwnedView) -> dict[tuple[str, str], OwnedView]:
    return {(view.kind, view.name): view for view in views}


STORAGE = owned("StatefulSet", "job-storage", 2)
CLAIM = owned("PersistentVolumeClaim", "job-checkpoints")
OF_STORAGE, OF_CLAIM = (Suspect(each.kind, each.name, each.uid) for each in (STORAGE, CLAIM))
ON_ITS_WAY = view_pod(make_pod(waiting("ContainerCreating"), phase="Pending"))
UNBOUND = view_pod(
    make_pod(
        phase="Pending", conditions={"PodScheduled": ("False", "Unschedulable", "unbound PersistentVolumeClaims.")}
    )
)
UNBOUND = replace(UNBOUND, node="")
UNIT = replace(
    view_pod(make_pod(running(), component="storage")), controller=Controller("StatefulSet.apps", "", STORAGE.uid)
)
OF_POD = Suspect("Pod", ON_ITS_WAY.name, ON_ITS_WAY.uid)


@pytest.mark.parametrize(
    ("pods", "objects", "expected"),
    [
        param([view_pod(make_pod(running()))], there(CLAIM), [], id="it runs"),
        param([view_pod(make_pod(running(), started=False))], there(CLAIM), [], id="it imports"),
        param([view_pod(make_pod(waiting("ImagePullBackOff"), phase="Pending"))], {}, [], id="its status says why"),
        param([ON_ITS_WAY], there(CLAIM), [OF_POD], id="it is on its way, on a node"),
        param([replace(ON_ITS_WAY, deleting=True)], {}, [], id="it is being deleted"),
        param([UNBOUND], there(CLAIM), [OF_CLAIM], id="it waits for a volume"),
        param([replace(UNBOUND, unscheduled="no GPU")], there(CLAIM), [], id="it waits for something else"),
        param([UNIT], there(STORAGE), [OF_STORAGE], id="one of two units is not there"),
        param([UNIT, UNIT], there(STORAGE), [], id="all units are there"),
        param([], there(owned("StatefulSet", "job-storage", 0)), [], id="none is wanted"),
    ],
)
def test_whose_events_are_asked_for(pods: list[PodView], objects: Any, expected: list[Suspect]) -> None:
    assert suspects(pods, objects) == expected


MOUNT, PROVISION = Blocker("FailedMount", "no such secret"), Blocker("ProvisioningFailed", "no such class")


UNTRIED = view_pod(make_pod(phase="Pending", node=""))
NO_SCHEDULER = Blocker(
    "NoScheduler",
    "no scheduler named mine has looked at it. Run one in this cluster, or give the name of one that runs"
    " (scheduling.schedulerName, or schedulerName in a template)",
)
TRIED = view_pod(make_pod(phase="Pending", node="", conditions={"PodScheduled": ("False", "SchedulingGated", "gated")}))


@pytest.mark.parametrize(
    ("pod", "seconds", "expected"),
    [
        param(replace(UNTRIED, scheduler="mine"), UNTRIED_SECONDS - 1, None, id="it was made just now"),
        param(replace(UNTRIED, scheduler="mine"), UNTRIED_SECONDS, NO_SCHEDULER, id="nobody looks at it"),
        param(TRIED, 1000.0, None, id="a scheduler has said something"),
        param(ON_ITS_WAY, 1000.0, None, id="it has a node"),
        param(replace(UNTRIED, deleting=True), 1000.0, None, id="it is being deleted"),
    ],
)
def test_a_pod_that_no_scheduler_looks_at(pod: PodView, seconds: float, expected: Blocker | None) -> None:
    assert pod_blocker(pod, BlockerReports(), pod.created_at + seconds) == expected


@pytest.mark.parametrize(
    ("pod", "events", "expected"),
    [
        param(ON_ITS_WAY, {}, None, id="nobody says anything"),
        param(ON_ITS_WAY, {OF_POD: MOUNT, OF_CLAIM: PROVISION}, MOUNT, id="of itself"),
        param(ON_ITS_WAY, {OF_CLAIM: PROVISION}, None, id="a pod on a node has its volumes"),
        param(
            UNBOUND,
            {OF_CLAIM: PROVISION},
            Blocker(
                "ProvisioningFailed",
                "unbound PersistentVolumeClaims; PersistentVolumeClaim job-checkpoints: no such class",
            ),
            id="of the claim that it waits for",
        ),
    ],
)
def test_what_is_stated_of_a_pod(pod: PodView, events: Any, expected: Blocker | None) -> None:
    assert pod_blocker(pod, BlockerReports({}, events), pod.created_at) == expected


def deployment(kind: str, status: str, reason: str) -> OwnedView:
    condition = {"type": kind, "status": status, "reason": reason, "message": QUOTA}
    metadata = {"name": "job-actor-fwd", "uid": "d", "resourceVersion": "1"}
    return view_owned("Deployment", {"metadata": metadata, "status": {"conditions": [condition]}})


@pytest.mark.parametrize(
    ("view", "is_refused"),
    [
        param(deployment("ReplicaFailure", "True", "FailedCreate"), True, id="its pods are refused"),
        param(deployment("ReplicaFailure", "False", "FailedCreate"), False, id="they were"),
        param(deployment("Progressing", "False", "ReplicaSetCreateError"), True, id="its ReplicaSet is refused"),
        param(deployment("Progressing", "False", "ProgressDeadlineExceeded"), False, id="it takes long"),
    ],
)
def test_a_deployment_states_why_its_pods_are_not_made(view: OwnedView, is_refused: bool) -> None:
    expected = {Role.ACTOR_FWD: Blocker("FailedCreate", QUOTA)} if is_refused else {}
    assert unmade_roles(KEY, there(view)) == expected


GOING = replace(view_pod(make_pod(running(), component="storage", name="job-storage-1")), deleting=True)


@pytest.mark.parametrize(
    ("name", "pods", "received", "expected"),
    [
        param("control", [], BlockerReports(), None, id="nobody knows"),
        param(
            "storage-0",
            [],
            BlockerReports({}, {OF_STORAGE: Blocker("FailedCreate", QUOTA)}),
            QUOTA,
            id="its set's event",
        ),
        param(
            "control", [], BlockerReports({}, {OF_STORAGE: Blocker("FailedCreate", QUOTA)}), None, id="of another set"
        ),
        param(
            "coordinator",
            [],
            BlockerReports(there(owned("Deployment", "job-coordinator", 1, refused=QUOTA))),
            QUOTA,
            id="its Deployment",
        ),
        param(
            "storage-1",
            [GOING],
            BlockerReports(),
            "its pod job-storage-1 is being deleted, and no other is made before",
            id="the last one goes",
        ),
        param("storage-0", [GOING], BlockerReports(), None, id="another unit goes"),
    ],
)
def test_why_a_process_has_no_pod(
    name: str, pods: list[PodView], received: BlockerReports, expected: str | None
) -> None:
    found = unmade_process(name, KEY, pods, received)
    assert (found.sentence if found is not None else None) == expected


def test_a_process_without_a_pod_is_named_at_once_where_somebody_states_why_and_else_after_a_while() -> None:
    status = RLJobStatus(infrastructure=[ProcessStatus(name="control", restarts=3)])
    names, reported = list(process_names(1)), {"storage-0": Blocker("FailedCreate", QUOTA)}
    ends, now = Ends(lambda: 100.0), 100.0
    assert names == ["coordinator", "control", "storage-0"]

    early = absent_facts(names, status, ends, reported, now)
    assert [(fact.name, fact.reason, fact.waits_for, fact.alive) for fact in early] == [
        ("storage-0", "FailedCreate", QUOTA, True)
    ]
    late = absent_facts(names, status, ends, reported, now + ABSENT_SECONDS)
    assert [(fact.name, fact.waits_for) for fact in late[:2]] == [("coordinator", NO_POD), ("control", NO_POD)]
    assert [fact.num_restarts for fact in late] == [0, 3, 0], "what was counted is no news when its pod is back"


def test_what_was_refused_is_reported_until_it_is_taken() -> None:
    now = [100.0]
    blockers = BlockerMemory(lambda: now[0])
    denied = Refusal("Deployment", "job-actor", refusal("apply", 403, "Forbidden", "denied by a policy"))
    early = Refusal("Service", "job-control", refusal("apply", 409, "Conflict", "somebody was faster"))
    blockers.applied(ApplyOutcome(refusals=(denied, early), waits=True))
    blockers.refused("PUT /v1/desired: 503 opening")

    message = [("ObjectRefused", "Deployment job-actor was refused: denied by a policy")]
    reported = [(each.reason, each.sentence) for each in blockers.current([denied])]
    assert reported[:1] == message
    assert [reason for reason, _ in reported] == ["ObjectRefused", "EarlierJob"], (
        "a coordinator may refuse for a moment"
    )
    now[0] += REFUSAL_PATIENCE_SECONDS
    blockers.refused("PUT /v1/desired: 503 still opening")
    assert [each.sentence for each in blockers.current()][
        -1
    ] == "the coordinator refuses: PUT /v1/desired: 503 still opening"
    blockers.applied(ApplyOutcome())
    blockers.ordered()
    assert blockers.current() == ()


@pytest.mark.parametrize(
    ("message", "is_named"),
    [
        param(
            "pods is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi", True, id="its maximum"
        ),
        param("pods is forbidden: minimum cpu usage per Pod is 1, but request is 100m.", True, id="its minimum"),
        param("pods is forbidden: exceeded quota: small, requested: pods=1", False, id="a quota has its own name"),
        param("denied by a webhook", False, id="a webhook"),
    ],
)
def test_a_refusal_by_a_limit_range_states_what_it_is_of(message: str, is_named: bool) -> None:
    named = f"{message.rstrip('.')}. This is a LimitRange of the namespace: kubectl get limitrange"
    assert with_limit_range(message) == (named if is_named else message)


def test_what_is_being_deleted_is_named_with_the_finalizers_that_keep_it() -> None:
    blockers = BlockerMemory()
    blockers.applied(ApplyOutcome(waits=True, leaving=(replace(CLAIM, finalizers=("example.com/audit",)), STORAGE)))

    (found,) = blockers.current()
    assert found.sentence.endswith(
        ": PersistentVolumeClaim job-checkpoints (finalizers: example.com/audit), StatefulSet job-storage"
    )
