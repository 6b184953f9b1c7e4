"""A queue that someone drains: reported, and no stall."""

from dataclasses import replace

import pytest

from rljob_api.status import ConditionType, Phase
from rljob_api.wire.observation import ServerState
from rljob_operator.core import Decision, Observed, RaiseEpoch, Reason, decide
from rljob_operator.core.conditions import find, is_true
from tests.unit.core.worlds import START, actions_of, make_policy, make_queue, make_running, with_coordinator


def make_draining(since: float | None = START + 5, until: float | None = None) -> Observed:
    """A job that is well, whose queue drains since then."""
    queue = make_queue().model_copy(update={"draining_since": since, "drained_until": until})
    return with_coordinator(make_running(make_policy(stallTimeoutSeconds=60)), queue=queue)


def reported(decision: Decision) -> list[tuple[Reason, str]]:
    return [(event.reason, event.message) for event in decision.events]


def test_a_drain_is_reported_once_as_an_event_and_in_the_status() -> None:
    observed = make_draining()
    decision = decide(observed, START + 6)
    message = "the queue drains: no ticket is given since 1970-01-12T13:46:45.000000Z, until `rljob queue drain --off`"
    assert reported(decision) == [(Reason.QUEUE_DRAINING, message)]
    condition = find(decision.status, ConditionType.STALLED)
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == ("False", "QueueDraining", message)
    assert (decision.status.phase, decision.status.reason) == (Phase.RUNNING, "QueueDraining")
    again = decide(replace(observed, status=decision.status), START + 7)
    assert (reported(again), again.status.reason) == ([], "QueueDraining")


def test_a_drained_job_that_does_not_advance_is_not_stalled() -> None:
    decision = decide(make_draining(), START + 9000)
    assert not actions_of(decision, RaiseEpoch)
    assert not is_true(decision.status, ConditionType.STALLED)


@pytest.mark.parametrize(
    ("now", "stalls"),
    [
        pytest.param(START + 559, False, id="a job has its whole time from the end of the drain on"),
        pytest.param(START + 561, True, id="then it is stalled"),
    ],
)
def test_the_end_of_a_drain_begins_the_time_of_a_stall_again(now: float, stalls: bool) -> None:
    before = decide(make_draining(), START + 400)
    observed = replace(make_draining(None, START + 500), status=before.status)
    decision = decide(observed, now)
    assert reported(decision)[0 if not stalls else -1][0] is (Reason.STALLED if stalls else Reason.TICKETS_GIVEN)
    assert bool(actions_of(decision, RaiseEpoch)) is stalls


def test_the_end_of_a_drain_is_reported_once() -> None:
    before = decide(make_draining(), START + 6)
    decision = decide(replace(make_draining(None, START + 8), status=before.status), START + 9)
    assert reported(decision) == [(Reason.TICKETS_GIVEN, "the drain was taken back: tickets are given again")]
    again = decide(replace(make_draining(None, START + 8), status=decision.status), START + 10)
    assert (reported(again), again.status.reason) == ([], "")


def test_a_job_that_stalled_and_is_drained_then_is_not_called_stalled_any_more() -> None:
    stalled = decide(make_draining(None), START + 100)
    assert stalled.status.phase is Phase.STALLED
    decision = decide(replace(make_draining(START + 110), status=stalled.status), START + 111)
    assert not is_true(decision.status, ConditionType.STALLED)


def test_while_the_coordinator_is_silent_nothing_is_reported() -> None:
    before = decide(make_draining(), START + 6)
    silent = replace(make_draining(), coordinator=None, status=before.status)
    decision = decide(silent, START + 7)
    assert reported(decision) == []
    assert decision.status.reason == "QueueDraining"


def test_a_coordinator_that_begins_does_not_know_of_the_drain_and_ends_nothing() -> None:
    before = decide(make_draining(), START + 6)
    observed = with_coordinator(replace(make_draining(None), status=before.status), server=ServerState.OPENING)
    decision = decide(observed, START + 9000)
    assert reported(decision) == []
    assert not actions_of(decision, RaiseEpoch)
