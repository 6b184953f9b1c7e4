"""Storage that was full: what went is reported once."""

from dataclasses import replace

import pytest

from rljob_api.wire.observation import RoomMade
from rljob_operator.core import Decision, Observed, RaiseEpoch, Reason, decide
from tests.unit.core.worlds import START, actions_of, make_policy, make_queue, make_running, with_coordinator


def make_full(rows: int | None, reported: int = 0) -> Observed:
    """A job that is well, whose coordinator reports so many rows, and whose status remembers so many."""
    room = None if rows is None else RoomMade(rows=rows, message=f"Storage was full: {rows} rows went.")
    observed = with_coordinator(make_running(make_policy()), queue=make_queue().model_copy(update={"room": room}))
    training = observed.status.training.model_copy(update={"rows_dropped": reported})
    return replace(observed, status=observed.status.model_copy(update={"training": training}))


def reported(decision: Decision) -> list[tuple[Reason, str]]:
    return [(event.reason, event.message) for event in decision.events]


@pytest.mark.parametrize(
    ("rows", "remembered", "is_reported"),
    [
        pytest.param(None, 0, False, id="nothing ever went"),
        pytest.param(8, 0, True, id="rows went for the first time"),
        pytest.param(8, 8, False, id="it was told"),
        pytest.param(24, 8, True, id="more went"),
        pytest.param(4, 8, True, id="the control Redis began anew, and rows went again"),
        pytest.param(None, 8, False, id="the control Redis began anew"),
    ],
)
def test_rows_that_went_are_reported_once(rows: int | None, remembered: int, is_reported: bool) -> None:
    decision = decide(make_full(rows, remembered), START + 5)
    assert reported(decision) == (
        [(Reason.ROWS_DROPPED, f"Storage was full: {rows} rows went.")] if is_reported else []
    )
    assert decision.status.training.rows_dropped == (remembered if rows is None else rows)
    assert not actions_of(decision, RaiseEpoch)


def test_a_silent_coordinator_reports_nothing() -> None:
    decision = decide(replace(make_full(8, 4), coordinator=None), START + 5)
    assert reported(decision) == []
    assert decision.status.training.rows_dropped == 4
