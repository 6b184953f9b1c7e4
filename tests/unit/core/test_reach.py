"""No one can ask the coordinator: it is said, nothing is counted, and all heals by itself."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.spec.restart import absence_seconds
from rljob_api.status import ConditionType, Phase
from rljob_operator.core import NoContact, Observed, PodState, Reason
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.decide import next_turn_at
from rljob_operator.core.derived_status import with_lost_contact
from rljob_operator.core.observed import ProcessFact
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_policy

REACHABLE, READY = ConditionType.COORDINATOR_REACHABLE, ConditionType.READY
LIMIT = make_policy().heartbeat_timeout_seconds
ABSENCE = absence_seconds(make_policy())


def stated(world: Cluster, kind: ConditionType) -> tuple[str, str]:
    condition = find(world.status, kind)
    assert condition is not None
    return condition.status, condition.reason


def cut_off(world: Cluster, since: float | None = None, reason: Reason = Reason.COORDINATOR_UNREACHABLE) -> None:
    world.silent_since, world.silent_for = world.now if since is None else since, reason


def test_a_job_whose_coordinator_answers_states_it_without_an_event() -> None:
    world = Cluster()
    reported = [event.reason for _ in range(6) for event in world.turn(0.1).events]
    assert stated(world, REACHABLE) == ("True", "Answers")
    assert Reason.COORDINATOR_REACHABLE not in reported


@pytest.mark.parametrize("reason", [Reason.COORDINATOR_UNREACHABLE, Reason.COORDINATOR_REFUSED, Reason.SECRET_LOST])
def test_a_silence_is_reported_once_then_no_one_knows_how_the_job_is_and_it_heals_alone(reason: Reason) -> None:
    world = make_cluster()
    before = world.status.restart
    cut_off(world, reason=reason)

    assert world.turn(9).events == ()
    assert is_true(world.status, REACHABLE), "a coordinator that is started again is refused for a moment"

    (event,) = world.turn(2).events
    assert event.reason is reason
    assert stated(world, REACHABLE) == ("False", reason.value)
    assert event.message == world.message(REACHABLE)
    assert event.message.startswith("operator op asks GET http://c/v1/status: no answer (since 1970-01-12T13:46:4")
    assert (world.status.phase, is_true(world.status, READY)) == (Phase.RUNNING, True)

    assert world.turn(LIMIT - 10).events == ()
    assert stated(world, READY) == ("Unknown", reason.value)
    assert (world.status.phase, world.status.reason) == (Phase.UNKNOWN, reason.value)
    assert [event for _ in range(50) for event in world.turn(100).events] == []

    world.silent_since = None
    events = [(event.reason, event.message) for event in world.turn().events]
    assert events == [
        (Reason.COORDINATOR_REACHABLE, "the coordinator answers the operator again"),
        (Reason.READY, "every role is ready in epoch 1, and the coordinator answers again"),
    ]
    assert stated(world, REACHABLE) == ("True", "CoordinatorReachable")
    assert (world.status.phase, world.status.restart) == (Phase.RUNNING, before)


def test_a_job_that_never_reached_its_coordinator_is_starting_and_states_why() -> None:
    world = Cluster()
    cut_off(world)
    reported = [event.reason for seconds in (1, 11, LIMIT) for event in world.turn(seconds).events]
    assert reported == [Reason.ACCEPTED, Reason.STARTED, Reason.COORDINATOR_UNREACHABLE]
    assert stated(world, READY) == ("False", "CoordinatorUnreachable")
    assert world.message(READY) == "the epoch is not open yet; operator op asks GET http://c/v1/status: no answer"
    assert (world.status.phase, world.status.reason) == (Phase.STARTING, "CoordinatorUnreachable")

    world.silent_since = None
    world.settle()
    assert (world.status.phase, world.status.restart.epoch) == (Phase.RUNNING, 1)


def test_workers_that_were_cut_off_too_get_their_time_once_more() -> None:
    world = make_cluster(policy=make_policy(stallTimeoutSeconds=600))
    cut_off(world)
    world.turn(1000)
    for pod in world.pods:
        pod.silent = 1000.0
    world.silent_since = None

    assert {event.reason for event in world.turn().events} == {Reason.COORDINATOR_REACHABLE, Reason.READY}
    for pod in world.pods:
        pod.silent = 1000.0 + ABSENCE
    assert not world.turn(ABSENCE - 1).events
    (event,) = world.turn(4).events
    assert (event.reason, world.status.restart.epoch) == (Reason.LAUNCHER_LOST, 2)
    assert "has not asked the coordinator for orders in 16" in event.message, "what nobody could see is not told either"
    assert world.status.restart.counted_towards_max == 0


def test_a_pod_that_its_platform_ends_meanwhile_is_restarted_all_the_same() -> None:
    """That is known without the coordinator; what follows is carried out when it answers."""
    world = make_cluster()
    cut_off(world)
    world.turn(100)
    world.pod(Role.ACTOR).state, world.pod(Role.ACTOR).exit_code = PodState.EXITED, 1
    assert [event.reason for event in world.turn().events] == [Reason.LAUNCHER_LOST]
    assert (world.status.restart.epoch, world.status.phase) == (2, Phase.RESTARTING)
    world.silent_since = None
    world.settle()
    assert (world.status.restart.epoch, world.status.phase) == (2, Phase.RUNNING)


def test_where_the_pod_is_down_both_conditions_state_it_with_one_reason_at_one_time() -> None:
    world = make_cluster()
    text = "CrashLoopBackOff: back-off 5m0s"
    down = ProcessFact("coordinator", None, alive=True, down_since=world.now, reason=text[:16], waits_for=text)
    world.infrastructure = [down]
    cut_off(world, reason=Reason.INFRASTRUCTURE_DOWN)

    world.turn(LIMIT - 1)
    assert is_true(world.status, REACHABLE)
    assert is_true(world.status, READY)
    assert not world.turn(5).events, "the restart of the pod is told where it is seen"
    assert stated(world, REACHABLE) == stated(world, READY) == ("False", "InfrastructureDown")
    assert world.status.phase is Phase.RUNNING


def test_a_coordinator_without_a_pod_is_waited_for_by_name() -> None:
    world = make_cluster()
    world.silent_since, world.silent_for = world.now, Reason.INFRASTRUCTURE_DOWN
    world.turn(LIMIT + 1)
    assert world.message(READY) == "waiting for operator op asks GET http://c/v1/status: no answer"
    assert stated(world, READY) == ("False", "InfrastructureDown")


def test_an_operator_that_was_started_meanwhile_goes_on_from_what_was_reported() -> None:
    world = make_cluster()
    cut_off(world)
    world.turn(12)
    world.turn(8)
    cut_off(world)  # as the new one sees it
    assert world.turn(LIMIT - 13).events == ()
    world.turn(6)
    assert world.status.phase is Phase.UNKNOWN


def test_a_suspended_job_has_no_coordinator_to_reach() -> None:
    world = make_cluster()
    world.ask(suspend=True)
    for pod in world.pods:
        pod.silent = 0.1
    for _ in range(4):
        world.turn(30)
    assert world.status.phase is Phase.SUSPENDED
    assert find(world.status, REACHABLE) is None


@pytest.mark.parametrize("since", [0.0, LIMIT + 1.0], ids=["a moment ago", "for longer than the limit"])
def test_a_job_that_may_not_be_asked_is_not_called_well_for_ever(since: float) -> None:
    world = make_cluster()
    no_contact = NoContact(world.now - since, Reason.NAME_TAKEN, "its name may be taken", world.now - since)
    message = with_lost_contact(world.status, no_contact, LIMIT, world.now)
    if not since:
        assert message == world.status
        return
    world.status = message
    assert message.phase is Phase.UNKNOWN
    conditions = [find(message, kind) for kind in (READY, REACHABLE)]
    assert [(each.status, each.reason) for each in conditions if each] == [
        ("Unknown", "NameTaken"),
        ("False", "NameTaken"),
    ]
    world.turn()
    assert (world.status.phase, world.status.restart.epoch) == (Phase.RUNNING, 1)


def test_a_job_that_has_not_been_well_stays_what_it_is() -> None:
    world = Cluster(starts=PodState.PENDING, answers=False)
    world.settle()
    no_contact = NoContact(0.0, Reason.NAME_TAKEN, "its name may be taken", 0.0)
    assert with_lost_contact(world.status, no_contact, LIMIT, world.now) == world.status


@example(cuts=[(1, 1), (1, 1), (1, 186), (9, 400)])
@given(cuts=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=5))
def test_however_the_coordinator_comes_and_goes_nothing_is_restarted_and_all_is_well_in_the_end(
    cuts: list[tuple[int, int]],
) -> None:
    world = make_cluster()
    for dark, light in cuts:
        cut_off(world)
        for _ in range(3):
            decision = world.turn(dark / 3)
            assert decision.next_turn_at <= world.now + 30.0
        world.silent_since = None
        world.step += 1  # it trains: else it would be stalled
        world.turn(light)
        assert world.status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 1
    assert world.status.restart.global_restarts == 0


def test_it_is_looked_when_a_silence_is_reported_and_when_it_counts() -> None:
    world = make_cluster()
    world.turn(100)
    cut_off(world, world.now + 1)
    observed: Observed = world.observe()
    assert next_turn_at(observed, world.status, world.now) == pytest.approx(world.now + 11)
    world.turn(12)
    no_contact = world.observe().no_contact
    assert isinstance(no_contact, NoContact)
    expected = no_contact.since + LIMIT
    assert next_turn_at(world.observe(), world.status, world.now) == pytest.approx(expected)
