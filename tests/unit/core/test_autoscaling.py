"""How many rollouts are wanted: the two formulas, and what is judged, decided and reported, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import ConditionType, Phase, ScalingStatus
from rljob_api.wire.observation import DemandObservation
from rljob_operator.core import Decision, PodState, Reason
from rljob_operator.core.autoscaling import fewer, more
from rljob_operator.core.conditions import is_true
from tests.unit.core.cluster import Cluster
from tests.unit.core.worlds import START, make_autoscaling, make_queue

STEP_SECONDS = 20.0
COUNTED_SINCE = START - 500.123456789  # finer than the status has it


@pytest.mark.parametrize(
    ("replicas", "pressure", "expected"),
    [
        pytest.param(4, 0.0, 4, id="nobody waits"),
        pytest.param(4, 0.1, 4, id="the actor waits as long as is tolerated"),
        pytest.param(4, 0.11, 5, id="a little longer"),
        pytest.param(4, 0.2, 5, id="one more is just enough"),
        pytest.param(4, 0.4, 7, id="rounded up, so that it is enough"),
        pytest.param(4, 0.5, 8, id="the actor waits half of the time"),
        pytest.param(4, 1.0, 8, id="at most twice as many, as long as it may wait"),
        pytest.param(1, 0.9, 2, id="one becomes two"),
        pytest.param(4, -0.5, 4, id="rollouts are idle"),
    ],
)
def test_more(replicas: int, pressure: float, expected: int) -> None:
    assert more(replicas, pressure, 0.1) == expected


@pytest.mark.parametrize(
    ("replicas", "pressure", "expected"),
    [
        pytest.param(4, 0.0, 4, id="nobody waits"),
        pytest.param(4, -0.1, 4, id="rollouts are as idle as is tolerated"),
        pytest.param(4, -0.2, 4, id="without one of them the actor would wait"),
        pytest.param(4, -0.25, 3, id="one is too many"),
        pytest.param(10, -0.12, 9, id="one of many is too many"),
        pytest.param(4, -1.0, 2, id="at most half of them go"),
        pytest.param(5, -1.0, 3, id="and no more than half"),
        pytest.param(1, -1.0, 1, id="the last one stays"),
        pytest.param(4, 0.5, 4, id="the actor waits"),
    ],
)
def test_fewer(replicas: int, pressure: float, expected: int) -> None:
    assert fewer(replicas, pressure, 0.1) == expected


@given(st.integers(1, 1024), st.floats(0, 1), st.floats(0.01, 0.9))
def test_what_was_added_is_not_taken_away_for_being_enough(replicas: int, starved: float, tolerance: float) -> None:
    """The replicas that the actor asked for are idle with what they are more than it needs, and they stay."""
    needed = replicas / max(1 - starved, 1e-6)
    added = more(replicas, starved, tolerance)
    idle = max(0.0, 1 - needed / added)
    assert added >= replicas
    assert fewer(added, -idle, tolerance) == added
    assert more(added, -idle, tolerance) == added


@given(st.integers(1, 1024), st.floats(0, 1), st.floats(0.01, 0.9))
def test_those_that_stay_are_enough(replicas: int, idle: float, tolerance: float) -> None:
    busy = replicas * (1 - idle)
    assert busy - 1e-6 <= fewer(replicas, -idle, tolerance) <= replicas
    assert fewer(replicas, -idle, tolerance) >= replicas / 2


# --- in `decide`, on a cluster ---------------------------------------------------------------------------------------


def make_scaled(replicas: int = 2, **fields: int) -> Cluster:
    """A job that is well, with the fewest replicas that it may have; its pods obey at once."""
    autoscaling = make_autoscaling(min_replicas=replicas, **fields)
    return Cluster(replicas={Role.ROLLOUT: replicas, Role.ACTOR: 1}, autoscaling=autoscaling).settle()


def train(world: Cluster, steps: int, *, starved: float = 0.0, idle: float = 0.0) -> list[Decision]:
    """Steps end one after another, with a turn of the operator after each."""
    decisions = []
    for _ in range(steps):
        old = world.demand or DemandObservation(
            since=COUNTED_SINCE,
            at=world.now,
            step=world.step,
            actor_seconds=0.0,
            starved_seconds=0.0,
            rollout_seconds=0.0,
            withheld_seconds=0.0,
        )
        count = sum(pod.role is Role.ROLLOUT and pod.state is PodState.RUNNING for pod in world.pods)
        world.step = old.step + 1
        world.demand = DemandObservation(
            since=old.since,
            at=world.now + STEP_SECONDS,
            step=world.step,
            actor_seconds=old.actor_seconds + STEP_SECONDS,
            starved_seconds=old.starved_seconds + starved * STEP_SECONDS,
            rollout_seconds=old.rollout_seconds + count * STEP_SECONDS,
            withheld_seconds=old.withheld_seconds + idle * count * STEP_SECONDS,
        )
        decisions.append(world.turn(STEP_SECONDS))
    return decisions


def reported(decisions: list[Decision]) -> list[str]:
    """Events of scaling."""
    text = (Reason.SCALED_UP, Reason.SCALED_DOWN)
    return [event.message for decision in decisions for event in decision.events if event.reason in text]


def names(count: int) -> list[str]:
    return [f"rollout-{n}" for n in range(count)]


def test_a_job_begins_with_the_fewest_and_states_what_it_wants() -> None:
    world = make_scaled()
    assert world.membership(Role.ROLLOUT) == names(2)
    assert world.status.scaling == ScalingStatus(replicas=2, desired=2, selector="role=rollout")


def test_a_starved_actor_gets_more_and_the_reason_is_reported() -> None:
    world = make_scaled()
    decisions = train(world, 5, starved=0.5, idle=0.02)
    assert reported(decisions) == [
        "rollout scales from 2 to 4 replicas (in the last 60 s the actor was starved of rows for 50% of its time, and "
        "rollouts stood idle, their tickets withheld, with 2% of their capacity)"
    ]
    assert world.membership(Role.ROLLOUT) == names(4)
    scaling = world.status.scaling
    assert (scaling.desired, scaling.reason, scaling.last_decision) == (4, "ActorStarved", world.now)
    assert reported(decisions)[0].endswith(f"({scaling.message})")
    assert is_true(world.settle().status, ConditionType.READY)
    assert world.status.restart.epoch == 1


def test_rollouts_that_are_idle_drain_and_go() -> None:
    world = make_scaled(1)
    train(world, 6, starved=0.6)
    world.settle()
    train(world, 7, starved=0.6)
    assert world.status.scaling.desired == 4
    world.settle()
    decisions = train(world, 10, idle=0.6)
    assert reported(decisions)[0] == (
        "rollout scales from 4 to 2 replicas: rollout-2, rollout-3 drains (in the last 120 s the actor was starved of "
        "rows for 0% of its time, and rollouts stood idle, their tickets withheld, with 60% of their capacity)"
    )
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)
    assert (world.status.scaling.desired, world.status.scaling.reason) == (2, "RolloutsIdle")


def test_neither_bound_is_passed() -> None:
    world = make_scaled(2, max_replicas=3)
    train(world, 40, starved=0.9)
    assert world.membership(Role.ROLLOUT) == names(3)
    train(world, 60, idle=0.9)
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)


def test_where_both_wait_alike_nothing_is_changed() -> None:
    assert reported(train(make_scaled(), 60, starved=0.5, idle=0.45)) == []


def test_a_replica_without_a_place_asks_for_no_more_and_goes_when_it_is_not_needed() -> None:
    world = make_scaled(2)
    world.starts = PodState.PENDING
    train(world, 6, starved=0.5)
    assert (world.status.scaling.desired, world.status.phase) == (4, Phase.RUNNING)
    assert reported(train(world, 60, starved=0.9)) == []
    decisions = train(world, 12, idle=0.3)
    assert reported(decisions)[0].startswith("rollout scales from 4 to 2 replicas")
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)
    assert is_true(world.status, ConditionType.READY)


def test_a_restart_begins_the_judgement_again() -> None:
    world = make_scaled()
    train(world, 4, starved=0.5)
    assert world.status.scaling.up_since is not None
    world.pod(Role.ACTOR).deaf = True
    world.ask(restart_request=RestartRequestSpec(id="a"))
    assert reported(train(world, 20, starved=0.9)) == []
    assert world.status.scaling.up_since is None
    world.pod(Role.ACTOR).deaf = False
    world.settle()
    assert reported(train(world, 3, starved=0.9)) == []
    assert len(reported(train(world, 1, starved=0.9))) == 1


def test_an_operator_that_begins_again_goes_on_where_the_last_one_was() -> None:
    """All that it knows is in the status, as the API server gives it back."""
    world = make_scaled()
    decisions = []
    for _ in range(6):
        decisions += train(world, 1, starved=0.5)
        world.status = type(world.status).model_validate_json(world.status.model_dump_json(by_alias=True))
    assert len(reported(decisions)) == 1


def test_a_coordinator_that_counts_again_is_not_compared_with_what_it_counted_before() -> None:
    world = make_scaled()
    train(world, 5)
    assert world.demand is not None
    world.demand = world.demand.model_copy(update={"since": world.now, "actor_seconds": 0.0, "rollout_seconds": 0.0})
    assert reported(train(world, 3, starved=0.9)) == []
    assert len(reported(train(world, 1, starved=0.9))) == 1


def test_while_the_coordinator_does_not_answer_nothing_is_decided_nor_forgotten() -> None:
    world = make_scaled()
    train(world, 5, starved=0.5)
    retained = world.status.scaling
    world.answers = False
    world.turn(STEP_SECONDS)
    assert world.status.scaling == retained


def test_while_the_queue_drains_nothing_is_judged() -> None:
    world = make_scaled()
    world.queue = make_queue().model_copy(update={"draining_since": START})
    assert reported(train(world, 60, starved=0.9)) == []


def test_other_bounds_are_followed_at_once() -> None:
    world = make_scaled(1)
    world.autoscaling = make_autoscaling(min_replicas=3)
    world.ask()
    decision = world.turn()
    assert reported([decision]) == ["rollout scales from 1 to 3 replicas (autoscaling keeps from 3 to 8 replicas)"]
    assert decision.status.scaling.reason == "BoundsChanged"


def test_without_autoscaling_the_spec_states_how_many_and_nothing_is_left_of_it() -> None:
    world = make_scaled()
    train(world, 6, starved=0.5)
    world.settle()
    world.autoscaling = None
    world.ask()
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)
    assert world.status.scaling == ScalingStatus(replicas=2, desired=2, selector="role=rollout")


def test_replicas_that_somebody_gave_before_stay_within_the_bounds() -> None:
    world = Cluster(replicas={Role.ROLLOUT: 4, Role.ACTOR: 1}).settle()
    world.autoscaling, world.replicas[Role.ROLLOUT] = make_autoscaling(), 1
    world.ask()
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(4)


def test_a_new_epoch_has_as_many_as_were_decided() -> None:
    world = make_scaled()
    train(world, 6, starved=0.5)
    world.settle()
    world.ask(revision="r2")
    world.settle()
    assert (world.status.restart.epoch, world.membership(Role.ROLLOUT)) == (2, names(4))


def test_a_job_that_was_suspended_begins_with_as_many_as_were_decided() -> None:
    world = make_scaled()
    train(world, 6, starved=0.5)
    world.settle()
    world.ask(suspend=True)
    world.settle()
    assert world.status.phase is Phase.SUSPENDED
    world.ask(suspend=False)
    decisions = [world.turn() for _ in range(4)]
    assert reported(decisions) == []
    assert world.membership(Role.ROLLOUT) == names(4)
