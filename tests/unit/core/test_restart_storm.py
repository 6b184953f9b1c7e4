"""One cause, one restart, whatever the back-off: what a decision does to a pod on the way is no failure of the job."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.names import EXIT_FENCED, Role
from rljob_api.spec.restart import BackoffSpec
from rljob_api.status import ConditionType
from rljob_api.wire.identity import PodKey
from rljob_operator.core import CreatePod, Decision, Event, Observed, PodState, RaiseEpoch, Reason, decide
from rljob_operator.core.conditions import is_true
from tests.unit.core.worlds import (
    KEYS,
    START,
    actions_of,
    carried_out,
    generation_of,
    key,
    make_failure,
    make_policy,
    make_running,
    with_coordinator,
    with_fact,
    with_failures,
    with_pod,
)

BACKOFF: dict[str, Any] = {"backoff": {"initialSeconds": 10}}
ROLLOUT, REFERENCE = key(Role.ROLLOUT), key(Role.REFERENCE)


def fenced(observed: Observed, pod: PodKey, *, let_in: bool) -> Observed:
    """The launcher of `pod` exits as a fenced one does, after it registered or when it wished to."""
    observed = with_fact(observed, pod, state=PodState.EXITED, exit_code=EXIT_FENCED)
    if let_in:
        return observed
    assert observed.coordinator is not None
    return with_coordinator(observed, pods=[seen for seen in observed.coordinator.pods if seen.pod != pod])


def restarts_of(decision: Decision) -> list[Event]:
    """The events that report a restart."""
    return [event for event in decision.events if event.scope is not None]


@pytest.mark.parametrize("pod", [ROLLOUT, REFERENCE], ids=["of a global row", "of a row in place"])
def test_a_launcher_that_was_fenced_before_it_was_let_in_is_replaced_and_nothing_restarts(pod: PodKey) -> None:
    observed = make_running()
    decision = decide(fenced(observed, pod, let_in=False), START + 10)
    assert restarts_of(decision) == []
    assert [event.reason for event in decision.events] == [Reason.LAUNCHER_LOST]
    assert actions_of(decision, CreatePod) == [CreatePod(pod)]
    assert decision.status.restart == observed.status.restart
    assert generation_of(decision.status, pod) == generation_of(observed.status, pod) + 1


def test_a_launcher_that_was_fenced_while_it_carried_an_order_restarts_the_job_and_does_not_count() -> None:
    decision = decide(fenced(make_running(make_policy(maxGlobalRestarts=0)), ROLLOUT, let_in=True), START + 10)
    assert (decision.status.restart.epoch, decision.status.restart.counted_towards_max) == (2, 0)
    decision = decide(fenced(make_running(make_policy(threshold=1)), REFERENCE, let_in=True), START + 10)
    assert (decision.status.restart.epoch, sum(role.failures for role in decision.status.roles)) == (1, 0)


def test_a_launcher_that_was_fenced_before_the_epoch_was_opened_restarts_nothing_again() -> None:
    observed = with_fact(make_running(make_policy(**BACKOFF)), ROLLOUT, state=PodState.EXITED, exit_code=-9)
    observed = carried_out(observed, decide(observed, START + 10))
    assert (observed.status.restart.epoch, observed.status.restart.opened) == (2, 1)
    observed = with_fact(fenced(observed, ROLLOUT, let_in=False), ROLLOUT, started_at=START + 10.1)
    decision = decide(observed, START + 11)
    assert restarts_of(decision) == []
    assert decision.status.restart == observed.status.restart
    assert actions_of(decision, CreatePod) == [CreatePod(ROLLOUT)]


def test_a_silent_launcher_counts_whatever_the_incarnation_before_it_ended_with() -> None:
    observed = with_fact(make_running(), ROLLOUT, exit_code=EXIT_FENCED)
    decision = decide(with_pod(observed, ROLLOUT, poll_age=999), START + 10)
    assert decision.status.restart.counted_towards_max == 1


class Machine:
    """One machine, on which pods are new processes that register when they are up, ordered or not."""

    def __init__(self, backoff: BackoffSpec) -> None:
        self.now = START + 10
        policy = make_policy(maxGlobalRestarts=1000, threshold=1000, backoff=backoff.model_dump(by_alias=True))
        self.observed = make_running(policy)
        self.num_faults = 0
        self.num_restarts = 0
        """Global ones and those in place."""
        self._num_pods = 0

    def kill(self, pods: list[PodKey], how: str) -> None:
        """One cause: the launchers, or the ranks, of these pods end."""
        self.num_faults += 1
        if how == "launchers":
            for pod in pods:
                self.observed = with_fact(self.observed, pod, state=PodState.EXITED, exit_code=-9)
        else:
            failures = [make_failure(self.observed.status, pod) for pod in pods]
            self.observed = with_failures(self.observed, *failures)

    def turn(self, seconds: float) -> None:
        """Decides, carries it out; a pod whose order has not come when it is up is fenced."""
        self.now += seconds
        decision = decide(self.observed, self.now)
        self.num_restarts += bool(restarts_of(decision))
        created = [action.pod for action in actions_of(decision, CreatePod)]
        is_open = decision.status.restart.opened == decision.status.restart.epoch
        self.observed = carried_out(self.observed, decision)
        raised = bool(actions_of(decision, RaiseEpoch))
        for pod in created:
            self._num_pods += 1
            incarnation = f"uid-{self._num_pods}/0"
            self.observed = with_fact(self.observed, pod, incarnation=incarnation, started_at=self.now + 0.01)
            if not is_open and not raised:
                self.observed = fenced(self.observed, pod, let_in=False)


PODS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
FAULTS = st.tuples(PODS, st.sampled_from(["launchers", "ranks"]))
BACKOFFS = st.builds(BackoffSpec, initial_seconds=st.floats(0, 30), factor=st.floats(1, 10))


@settings(deadline=None, max_examples=80)
@given(BACKOFFS, st.lists(st.tuples(FAULTS, st.lists(st.floats(0.01, 5), min_size=1, max_size=4)), max_size=8))
def test_restarts_are_never_more_than_faults_for_any_backoff(
    backoff: BackoffSpec, schedule: list[tuple[tuple[list[PodKey], str], list[float]]]
) -> None:
    machine = Machine(backoff)
    for (pods, how), turns in schedule:
        machine.kill(pods, how)
        for seconds in turns:
            machine.turn(seconds)
            assert machine.num_restarts <= machine.num_faults
    for _ in range(8):
        machine.turn(61)
    assert machine.num_restarts <= machine.num_faults
    assert is_true(machine.observed.status, ConditionType.READY)
