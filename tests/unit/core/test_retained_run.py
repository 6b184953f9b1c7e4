"""What a job makes of the checkpoints that an earlier one of its name has left."""

from dataclasses import replace

import pytest

from rljob_api.status import ConditionType, Phase
from rljob_api.wire.observation import ServerState
from rljob_operator.core import DeleteJob, RaiseEpoch, Reason, RetainedRun, SetDesired, Stop, UserRequest, decide
from rljob_operator.core.conditions import find, is_true
from tests.unit.core.cluster import Cluster
from tests.unit.core.worlds import actions_of

CLAIM = "job-checkpoints"


def test_a_job_begins_above_every_epoch_that_its_checkpoints_were_trained_in() -> None:
    world = Cluster(earlier_epoch=3, retained=RetainedRun(CLAIM, recorded=7))
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.ACCEPTED, Reason.STARTED, Reason.RESUMED]
    assert decision.events[-1].message == (
        "epoch 4 begins after epoch 3 of an earlier job, whose last checkpoint it goes on from"
    )
    (raised,) = actions_of(decision, RaiseEpoch)
    assert (raised.epoch, raised.decision_id) == (4, decision.status.restart.decision_id)
    status = world.settle().status
    assert (status.phase, status.restart.epoch, status.restart.global_restarts) == (Phase.RUNNING, 4, 0)
    assert is_true(status, ConditionType.READY)


@pytest.mark.parametrize("earlier", [1, 2])
def test_the_very_epoch_of_the_earlier_job_is_not_taken_twice(earlier: int) -> None:
    assert Cluster(earlier_epoch=earlier).settle().status.restart.epoch == earlier + 1


def test_what_the_coordinator_has_not_read_yet_decides_nothing() -> None:
    world = Cluster(earlier_epoch=3)
    observed = replace(world.observe(), status=decide(world.observe(), world.now).status)
    assert observed.coordinator is not None
    opening = observed.coordinator.model_copy(update={"server": ServerState.OPENING})
    begun = decide(replace(observed, status=world.status, coordinator=opening), world.now)
    assert begun.status.restart.epoch == 1
    assert not actions_of(begun, RaiseEpoch)


def test_an_epoch_that_was_noted_and_never_opened_is_passed_over() -> None:
    """The coordinator noted it, and the control Redis was lost before it had it."""
    world = Cluster().settle()
    world.epoch, world.decision_id, world.earlier_epoch, world.desired = 0, "", 2, None
    world.status = world.status.model_copy(update={"restart": world.status.restart.model_copy(update={"epoch": 2})})
    decision = world.turn()
    assert [event.message for event in decision.events if event.reason is Reason.RESUMED] == [
        "epoch 3 begins after epoch 2"
    ]
    assert decision.status.restart.epoch == 3


def test_a_lost_control_state_of_a_running_job_is_no_earlier_job() -> None:
    world = Cluster().settle()
    world.epoch, world.decision_id, world.earlier_epoch = 0, "", 1
    decision = world.turn()
    assert decision.status.restart.reason == Reason.CONTROL_STATE_LOST
    assert decision.status.restart.epoch == 2


def test_a_job_that_an_earlier_one_has_done_succeeds_and_starts_nothing() -> None:
    world = Cluster(retained=RetainedRun(CLAIM, recorded=100, folder="100-e2-aaaaaaaaaaaa"), answers=False)
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.ACCEPTED, Reason.SUCCEEDED]
    assert (
        "all 100 rollouts were trained by an earlier job of this name: the claim job-checkpoints has version 100"
        in (decision.events[-1].message)
    )
    assert actions_of(decision, Stop)
    status = decision.status
    assert (status.phase, status.restart.epoch, status.roles) == (Phase.SUCCEEDED, 0, [])
    assert (status.training.checkpoint, status.training.step, status.training.total_steps) == (100, 99, 100)
    assert status.training.checkpoint_folder == "100-e2-aaaaaaaaaaaa"
    again = world.turn()
    assert (again.status, again.events) == (status, ())
    assert not world.pods


def test_its_time_to_live_counts_from_there() -> None:
    request = UserRequest(revision="r1", generation=1, ttl_seconds_after_finished=60)
    world = Cluster(retained=RetainedRun(CLAIM, recorded=100), answers=False, request=request)
    assert world.turn().next_turn_at == world.now + 60
    assert actions_of(world.turn(61), DeleteJob)


@pytest.mark.parametrize(
    "retained",
    [None, RetainedRun(CLAIM), RetainedRun(CLAIM, recorded=99)],
    ids=["none", "ended without a record", "one rollout less"],
)
def test_a_job_with_something_left_to_train_begins(retained: RetainedRun | None) -> None:
    world = Cluster(retained=retained)
    assert actions_of(world.turn(), SetDesired)
    assert world.settle().status.phase is Phase.RUNNING


def test_a_job_that_is_made_suspended_waits_first() -> None:
    world = Cluster(retained=RetainedRun(CLAIM, recorded=100), answers=False)
    world.ask(suspend=True)
    assert world.turn().status.phase is Phase.SUSPENDED
    world.ask(suspend=False)
    status = world.turn().status
    assert status.phase is Phase.SUCCEEDED
    suspended = find(status, ConditionType.SUSPENDED)
    assert suspended is not None
    assert suspended.status == "False"
