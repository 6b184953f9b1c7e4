"""The start-up deadline: who is not Ready in time gives back what it holds, and says what it waited for."""

import pytest

from rljob_api.names import Role
from rljob_api.status import Phase
from rljob_operator.core import PodEnding, PodState, ProcessFact, Reason, Stop, UserRequest
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_policy

LIMIT = 60
REQUEST = UserRequest(revision="r1", generation=1, startup_deadline_seconds=LIMIT)
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def pending(**fields: object) -> Cluster:
    """A job of which no pod can be placed."""
    world = Cluster(starts=PodState.PENDING, **{"request": REQUEST, **fields})  # type: ignore[arg-type]
    world.turn()
    for pod in world.pods:
        pod.reason, pod.last_message = "Unschedulable", NO_GPU
    return world


def well(**fields: object) -> Cluster:
    return make_cluster(request=REQUEST, **fields)


def place(world: Cluster) -> None:
    for pod in world.pods:
        pod.state, pod.created = PodState.RUNNING, world.now


def test_a_job_that_is_not_ready_in_time_fails_names_what_it_waits_for_and_scales_to_nothing() -> None:
    world = pending()
    decision = world.turn(LIMIT - 2)
    assert world.failure() is None
    assert decision.next_turn_at <= world.now + 1

    decision = world.turn(2)
    names = " and ".join(f"{role.name}-{n}" for role in world.status.roles for n in range(len(role.pods)))
    assert world.failure() == (
        "StartupDeadlineExceeded",
        f"the job has not been Ready for startupDeadlineSeconds (60 s): Unschedulable: waiting for {names} ({NO_GPU})",
    )
    assert [event.reason for event in decision.events] == [Reason.STARTUP_DEADLINE_EXCEEDED]
    assert world.status.phase is Phase.FAILED
    assert any(isinstance(action, Stop) for action in world.turn(15).actions)


def test_without_a_deadline_it_waits_for_ever() -> None:
    world = pending(request=UserRequest(revision="r1", generation=1))
    for _ in range(10):
        world.turn(100_000)
    assert world.failure() is None


def test_suspended_time_does_not_count_and_a_resumed_job_has_its_time_again() -> None:
    world = pending()
    world.turn(LIMIT - 10)
    world.ask(suspend=True)
    world.turn(1)
    for _ in range(3):
        world.turn(1000)
    assert world.status.phase is Phase.SUSPENDED
    world.ask(suspend=False)
    world.turn(1)
    world.turn(LIMIT - 5)
    assert world.failure() is None
    world.turn(10)
    assert world.failure() is not None


def test_a_job_that_became_ready_in_time_runs_as_long_as_it_likes() -> None:
    world = well()
    for _ in range(10):
        world.step += 1
        world.turn(100)
    assert world.failure() is None
    assert world.status.waiting_since is None


def test_a_pod_that_was_lost_and_can_be_placed_nowhere_counts_from_its_loss() -> None:
    world = well()
    world.turn(1000)
    world.starts = PodState.PENDING
    world.end(world.pod(Role.REFERENCE), PodEnding.EVICTED)
    world.turn()
    world.settle()
    world.turn(LIMIT - 10)
    assert world.failure() is None
    world.turn(20)
    found = world.failure()
    assert found is not None
    assert "waiting for reference-0" in found[1]


def test_replicas_that_join_a_job_that_runs_are_not_waited_for_and_a_restart_then_has_its_whole_time() -> None:
    world = well()
    world.starts = PodState.PENDING
    world.replicas[Role.ROLLOUT] += 1
    world.turn()
    for _ in range(10):
        world.step += 1
        world.turn(LIMIT)
    assert world.failure() is None
    assert world.status.reason == "Scaling"
    world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
    world.turn()
    world.turn(LIMIT - 10)
    assert world.failure() is None
    world.turn(20)
    assert world.failure() is not None


def test_restarts_within_one_spell_give_no_time_but_a_back_off_does() -> None:
    world = pending(policy=make_policy(backoff={"initialSeconds": 30}))
    place(world)
    world.turn(LIMIT - 20)
    world.starts = PodState.PENDING
    world.end(world.pods[0], PodEnding.EVICTED)  # before it was Ready: the spell goes on
    world.turn(1)
    until = world.status.restart.backoff_until or world.now
    while world.now < until + LIMIT - 2:
        assert world.failure() is None
        world.turn(1)
    world.turn(5)
    assert world.failure() is not None


@pytest.mark.parametrize(
    ("away", "fails"),
    [
        pytest.param(False, False, id="its coordinator only does not answer"),
        pytest.param(True, True, id="its coordinator has no pod that runs"),
    ],
)
def test_nothing_counts_that_no_one_can_know(away: bool, fails: bool) -> None:
    world = well()
    world.end(world.pod(Role.REFERENCE), PodEnding.EVICTED)
    world.turn(0.1)
    world.answers = False
    if away:
        reason = "Unschedulable"
        gone = ProcessFact("coordinator", None, alive=True, down_since=world.now, reason=reason, waits_for=reason)
        world.infrastructure = [gone]
    world.turn(1)
    world.turn(LIMIT * 2)
    assert (world.failure() is not None) is fails


def test_time_in_which_no_one_could_know_is_not_held_against_a_job_that_is_learned_of_again() -> None:
    world = well()
    world.starts = PodState.PENDING
    world.end(world.pod(Role.REFERENCE), PodEnding.EVICTED)
    world.turn(0.1)
    world.silent_since, world.silent_for = world.now, Reason.COORDINATOR_UNREACHABLE
    world.turn(LIMIT / 2)
    world.turn(LIMIT * 3)
    world.silent_since = None
    world.turn(1)
    world.turn(LIMIT - 10)
    assert world.failure() is None
    world.turn(20)
    assert world.failure() is not None


def test_an_earlier_version_that_left_the_mark_as_it_was_fails_no_job() -> None:
    world = well()
    world.turn(1000)
    world.status = world.status.model_copy(update={"waiting_since": world.now - 900})
    world.starts = PodState.PENDING
    world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
    world.turn(1)
    world.turn(LIMIT - 10)
    assert world.failure() is None
