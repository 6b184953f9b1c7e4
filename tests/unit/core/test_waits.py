"""What a job that is not Ready waits for: one reason and one sentence that name what keeps it."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import Role
from rljob_api.status import ConditionType
from rljob_api.wire.observation import ServerState
from rljob_operator.core import Observed, PodState, ProcessFact, UserRequest, decide
from rljob_operator.core.observed import Blocker
from rljob_operator.core.readiness import waited_for
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_coordinator

QUOTA = Blocker("FailedCreate", "exceeded quota")
DENIED = Blocker("ObjectRefused", "Deployment job-actor was refused: denied")
param = pytest.param


def starting() -> Cluster:
    """A job whose pods wait, in an epoch that no one has opened yet."""
    world = Cluster(starts=PodState.PENDING, answers=False)
    world.settle()
    return world


def without(role: Role) -> Observed:
    """As `starting`, and without the pods of a role."""
    world = starting()
    world.pods = [pod for pod in world.pods if pod.role is not role]
    return world.observe()


def opening(observed: Observed) -> Observed:
    return replace(observed, coordinator=make_coordinator(observed.status, [], server=ServerState.OPENING))


SHORT = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
BESIDE = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."


def retained_from_nodes() -> Observed:
    """The rollouts' nodes have no GPUs left; coordinator and actor wait to be beside them."""
    observed = starting().observe()
    text = {Role.ROLLOUT: SHORT, Role.ACTOR: BESIDE}
    pods = tuple(
        replace(
            fact, reason="Unschedulable" if fact.pod.role is Role.ROLLOUT else "Other", last_message=text[fact.pod.role]
        )
        for fact in observed.pods
        if fact.pod.role in text
    )
    beside = ProcessFact("coordinator", None, alive=True, down_since=1.0, reason="Other", waits_for=BESIDE)
    return replace(observed, pods=pods, infrastructure=(beside,))


AWAY = ProcessFact("control", None, alive=True, down_since=1.0, reason="FailedMount", waits_for="FailedMount: no disk")
NOT_OPEN = "the epoch is not open yet"
ROWS: list[Any] = [
    param(lambda: starting().observe(), "", NOT_OPEN, id="nothing but time"),
    param(
        lambda: replace(without(Role.ACTOR), unmade={Role.ACTOR: QUOTA, Role.ROLLOUT: QUOTA}),
        "FailedCreate",
        f"{NOT_OPEN}; waiting for actor-0 (exceeded quota)",
        id="a quota refuses pods: only of those that are not there",
    ),
    param(
        lambda: replace(without(Role.ROLLOUT), unmade={Role.ROLLOUT: QUOTA}),
        "FailedCreate",
        f"{NOT_OPEN}; waiting for rollout-0 and rollout-1 (exceeded quota)",
        id="the same of two is said once",
    ),
    param(
        lambda: replace(starting().observe(), blockers=(DENIED,)),
        "ObjectRefused",
        f"{NOT_OPEN}; {DENIED.sentence}",
        id="an object is refused",
    ),
    param(
        lambda: replace(starting().observe(), infrastructure=(AWAY,)),
        "FailedMount",
        f"{NOT_OPEN}; waiting for control (FailedMount: no disk)",
        id="a volume of the infrastructure",
    ),
    param(
        lambda: retained_from_nodes(),
        "Unschedulable",
        f"{NOT_OPEN}; waiting for rollout-0 and rollout-1 ({SHORT}), coordinator ({BESIDE}), actor-0 ({BESIDE})",
        id="what is missing comes before who waits to be beside it",
    ),
    param(
        lambda: replace(starting().observe(), request=UserRequest(revision="r1", generation=1, outdated=True)),
        "PodsLeaving",
        f"{NOT_OPEN}: pods of an older template are still there",
        id="pods that have to go first",
    ),
    param(
        lambda: opening(starting().observe()),
        "ControlStateOpening",
        f"{NOT_OPEN}: the coordinator reads the control state",
        id="a control state that is read",
    ),
]


@pytest.mark.parametrize(("make", "reason", "sentence"), ROWS)
def test_a_wait(make: Any, reason: str, sentence: str) -> None:
    observed = make()
    assert waited_for(observed, observed.status, 2_000_000.0) == Blocker(reason, sentence)


def test_a_back_off_is_named_as_long_as_it_lasts() -> None:
    world = starting()
    restart = world.status.restart.model_copy(update={"backoff_until": world.now + 30, "decided_at": world.now})
    world.status = world.status.model_copy(update={"restart": restart})
    found = waited_for(world.observe(), world.status, world.now + 1)
    assert (found.reason, found.sentence) == (
        "BackingOff",
        f"{NOT_OPEN}: it is opened 30 s after it was decided (restartPolicy.backoff)",
    )


def test_what_is_refused_to_a_job_that_runs_does_not_take_its_readiness_away() -> None:
    world = make_cluster()
    observed = replace(world.observe(), blockers=(DENIED,))
    status = decide(observed, world.now + 1).status
    ready = next(each for each in status.conditions if each.type == ConditionType.READY)
    assert (ready.status, ready.reason) == ("True", "Ready")
