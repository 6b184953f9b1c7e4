"""The state of a watch: what counts as open, as a sign of life and as an answer."""

import logging

import pytest

from rljob_operator.kube.errors import refusal
from rljob_operator.kube.watch_state import WatchState
from tests.clock import Clock

FORBIDDEN = refusal("watch", 403, "Forbidden", "no right")


def make_state() -> tuple[WatchState, Clock]:
    clock = Clock()
    state = WatchState("the watch of pods", "pods", clock)
    state.begin()
    return state, clock


def test_a_list_that_is_answered_opens_no_watch() -> None:
    state, clock = make_state()
    clock.now += 40
    state.answered()
    assert (state.is_open, state.age(), state.closed_for(), state.silence()) == (False, 40, 40, 0)


def test_an_open_watch_counts_from_its_last_report_and_a_closed_one_from_its_end() -> None:
    state, clock = make_state()
    state.opened()
    clock.now += 5
    state.reported()
    clock.now += 3
    assert (state.age(), state.closed_for(), state.silence()) == (3, 0, 3)
    state.ended()
    clock.now += 2
    state.ended()
    assert (state.age(), state.closed_for(), state.problem) == (5, 2, "")


def test_a_refusal_is_an_answer_and_a_broken_stream_is_none() -> None:
    state, clock = make_state()
    clock.now += 7
    state.broke(TimeoutError())
    assert (state.silence(), state.problem) == (7, "TimeoutError")
    state.broke(FORBIDDEN)
    assert (state.silence(), state.problem) == (0, "watch: 403 Forbidden: no right")


def test_a_cause_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    state, clock = make_state()
    with caplog.at_level(logging.WARNING):
        state.opened()
        for _ in range(3):
            clock.now += 1
            state.broke(FORBIDDEN)
        state.opened()
        state.ended()
        state.opened()
    assert [record.getMessage() for record in caplog.records] == [
        "the watch of pods is closed, and is tried again and again: watch: 403 Forbidden: no right",
        "the watch of pods goes on again, after 2 s",
    ]
