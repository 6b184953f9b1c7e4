"""Stalls: counted from the last sign of progress, and called for a job that moves for nothing."""

from contextlib import ExitStack
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import RolloutId
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_operator.core import RaiseEpoch, decide
from rljob_workers.rollout.engine_access import CREDITED_BEGINNINGS, EngineProgress
from rljob_workers.transfer_queue.types import Ticket
from tests.unit.core.worlds import START, actions_of, make_policy, make_running, with_coordinator


def test_a_job_that_makes_tokens_is_not_stalled_and_one_that_stopped_is() -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    for seconds in range(10, 1000, 50):
        growing = with_coordinator(observed, progress_age_seconds=59.0)
        assert not decide(growing, START + seconds).events
    decision = decide(with_coordinator(observed, progress_age_seconds=60.0), START + 1000)
    assert actions_of(decision, RaiseEpoch)
    assert "nothing was done for one in 60 s (stallTimeoutSeconds 60)" in decision.events[-1].message


def test_a_job_all_of_whose_engines_start_waits_for_them() -> None:
    """A start is longer than a stall may be, and has a limit of its own."""
    observed = with_coordinator(make_running(make_policy(stallTimeoutSeconds=60)), progress_age_seconds=500.0)
    assert observed.coordinator is not None
    up, starting = (
        EngineProcess(pid=7, incarnation="1", url="http://engine", state=state)
        for state in (EngineState.RUNNING, EngineState.STARTING)
    )
    for engines, stalls in (([starting], False), ([starting, up], True), ([up], True), ([], True)):
        first, *others = observed.coordinator.pods
        pods = [first.model_copy(update={"engines": engines}), *others]
        decision = decide(with_coordinator(observed, pods=pods), START + 1000)
        assert bool(actions_of(decision, RaiseEpoch)) == stalls


@given(st.lists(st.tuples(st.floats(0.5, 90), st.booleans(), st.booleans()), max_size=60))
def test_a_stall_is_called_exactly_when_neither_a_step_nor_progress_came_in_time(
    turns: list[tuple[float, bool, bool]],
) -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    now, step, progressed = START + 2, 2, START + 1
    moved = START + 1
    for wait, trains, progresses in turns:
        now += wait
        step, progressed = step + trains, now if progresses else progressed
        moved = now if trains else max(moved, progressed)
        seen = with_coordinator(observed, step=step, progress_age_seconds=now - progressed)
        decision = decide(seen, now)
        assert bool(actions_of(decision, RaiseEpoch)) == (now - moved >= 60)
        if actions_of(decision, RaiseEpoch):
            return
        observed = replace(observed, status=decision.status)


def test_an_engine_that_churns_for_nothing_does_not_keep_a_job_from_being_stalled() -> None:
    """The same groups begun again and again: what counts as progress runs out, and then the clock."""
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    progress, reported_at = EngineProgress(lambda: 0.0, tokens_per_ticket=1000), START
    ticket = Ticket(7, RolloutId(3), group=0, attempt=0, prompt_index=0, alone=False)
    with ExitStack() as requests:
        for second in range(1000):
            now = START + 2 + second
            if second % 100 == 0:
                requests.close()
                made, before = progress.counted([ticket]), progress.tokens
                requests.enter_context(progress.expecting())
            made(5)
            if progress.tokens > before:
                before, reported_at = progress.tokens, now
            decision = decide(with_coordinator(observed, progress_age_seconds=now - reported_at), now)
            if actions_of(decision, RaiseEpoch):
                assert second > 100 * CREDITED_BEGINNINGS
                return
            observed = replace(observed, status=decision.status)
    raise AssertionError("the job was never called stalled")
