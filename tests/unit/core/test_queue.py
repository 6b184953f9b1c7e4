"""A job with a queue: held back until it is admitted, saved when its quota is taken, by whom it is suspended."""

import pytest

from rljob_api.status import ConditionType, Phase, PodSetStatus, QueueStatus, RLJobStatus
from rljob_operator.core import Reason, SetDesired, UserRequest
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.queue import Hold, QueueFact
from tests.unit.core.cluster import Cluster
from tests.unit.core.worlds import actions_of

ADMISSION = QueueStatus(
    name="team", cluster_queue="gpus", pod_sets=[PodSetStatus(name="actor", node_selector={"pool": "a100"})]
)
ADMITTED = QueueFact(None, ADMISSION, wanted=2, granted=2)


def held(reason: Reason = Reason.QUEUED, message: str = "LocalQueue team: couldn't assign flavors") -> QueueFact:
    return QueueFact(Hold(reason, message), wanted=2)


def condition(status: RLJobStatus, kind: ConditionType) -> tuple[str, str, str]:
    found = find(status, kind)
    assert found is not None
    return found.status, found.reason, found.message


def make_admitted() -> Cluster:
    return Cluster(admission=ADMITTED).settle()


def test_a_job_that_is_not_admitted_has_no_pods_and_names_what_it_waits_for() -> None:
    world = Cluster(admission=held())
    decision = world.turn()
    assert (decision.status.phase, decision.status.reason) == (Phase.SUSPENDED, "Queued")
    assert decision.actions == ()
    assert not world.settle().pods
    assert condition(world.status, ConditionType.ADMITTED) == ("False", "Queued", held().hold.message)  # type: ignore[union-attr]
    expected = "nothing was started yet: LocalQueue team: couldn't assign flavors"
    assert condition(world.status, ConditionType.SUSPENDED) == ("True", "Queued", expected)


def test_what_it_waits_for_is_as_new_as_kueue_states() -> None:
    world = Cluster(admission=held()).settle()
    world.admission = held(message="LocalQueue team: the quota is reserved")
    assert "the quota is reserved" in condition(world.settle().status, ConditionType.SUSPENDED)[2]


def test_an_admitted_job_begins_with_what_the_flavors_state() -> None:
    world = Cluster(admission=held()).settle()
    world.admission = ADMITTED
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.ADMITTED, Reason.STARTED]
    assert decision.status.queue == ADMISSION
    assert world.settle().status.phase is Phase.RUNNING
    assert condition(world.status, ConditionType.ADMITTED) == (
        "True",
        "Admitted",
        "the job is admitted by ClusterQueue gpus",
    )


def test_a_flavor_that_changes_later_changes_nothing_of_pods_that_run() -> None:
    world = make_admitted()
    world.admission = QueueFact(None, QueueStatus(name="team", cluster_queue="gpus"), wanted=2, granted=2)
    assert world.settle().status.queue == ADMISSION


def test_quota_that_is_taken_costs_no_step_and_is_waited_for_again() -> None:
    world = make_admitted()
    world.admission = held(Reason.QUOTA_TAKEN, "LocalQueue team: Kueue takes the quota back (Preempted): by job b")
    decision = world.turn()
    assert decision.status.phase is Phase.DRAINING
    assert actions_of(decision, SetDesired)
    expected = "LocalQueue team: Kueue takes the quota back (Preempted): by job b: actor and critic save"
    assert decision.events[-1].message.startswith(expected)
    decision = world.turn()
    assert (decision.status.phase, decision.status.reason) == (Phase.SUSPENDED, "QuotaTaken")
    assert decision.events[-1].reason is Reason.QUOTA_TAKEN
    assert "will go on from checkpoint 3" in decision.events[-1].message
    assert not world.pods

    world.admission = held()
    assert world.turn().status.reason == "Queued"
    world.admission = ADMITTED
    assert world.turn().events[-1].reason is Reason.RESUMED
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.counted_towards_max) == (2, 0)


def test_an_admission_while_the_actor_saves_is_begun_by_once_that_is_done() -> None:
    world = make_admitted()
    world.admission = held(Reason.QUOTA_TAKEN)
    world.turn()
    world.admission = ADMITTED
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.SUSPENDED, Reason.ADMITTED, Reason.RESUMED]
    assert world.settle().status.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        pytest.param("user", "Suspended", id="the user, and then the queue"),
        pytest.param("queue", "QuotaTaken", id="the queue, and then the user"),
    ],
)
def test_the_condition_states_who_has_suspended_a_job(first: str, reason: str) -> None:
    world = make_admitted()
    if first == "user":
        world.ask(suspend=True)
    else:
        world.admission = held(Reason.QUOTA_TAKEN, "taken")
    world.settle()
    assert condition(world.status, ConditionType.SUSPENDED)[1] == reason

    world.admission = held()
    world.ask(suspend=True)
    world.settle()
    assert condition(world.status, ConditionType.SUSPENDED)[1] == "Suspended"

    world.ask(suspend=False)
    world.settle()
    assert condition(world.status, ConditionType.SUSPENDED)[1] == "Queued"
    assert not world.pods
    world.admission = ADMITTED
    assert world.settle().status.phase is Phase.RUNNING


def test_a_queue_that_a_job_gets_while_it_runs_is_waited_for_and_one_that_it_loses_is_not() -> None:
    world = Cluster(request=UserRequest(revision="r1", generation=1)).settle()
    assert world.status.queue is None
    world.admission = held()
    world.turn()
    assert world.turn().status.phase is Phase.SUSPENDED
    world.admission = None
    assert world.settle().status.phase is Phase.RUNNING
    assert find(world.status, ConditionType.ADMITTED) is None


def test_more_rollouts_than_there_is_quota_for_are_named() -> None:
    world = make_admitted()
    world.admission = QueueFact(None, ADMISSION, wanted=3, granted=2)
    message = condition(world.turn().status, ConditionType.ADMITTED)[2]
    assert "for 2 of 3 rollouts: the others come when it is admitted again" in message


def test_time_in_the_queue_is_no_run_time() -> None:
    world = Cluster(
        admission=held(), request=UserRequest(revision="r1", generation=1, startup_deadline_seconds=10)
    ).settle()
    assert world.turn(1000).status.phase is Phase.SUSPENDED
    world.admission = ADMITTED
    assert world.settle().status.phase is Phase.RUNNING


def test_an_ended_job_keeps_what_was_stated_of_its_admission() -> None:
    world = make_admitted()
    world.recorded, world.step = 100, 99
    world.settle()
    world.admission = held()
    world.turn(100)
    assert is_true(world.status, ConditionType.SUCCEEDED)
    assert condition(world.status, ConditionType.ADMITTED)[0] == "True"
