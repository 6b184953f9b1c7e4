"""When an engine stands still: it has requests, its weights are not being changed, and no token comes."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.rollout.engine_access import Standstill
from tests.clock import Clock


def test_an_engine_without_requests_does_not_stand_still() -> None:
    clock = Clock()
    standstill = Standstill(clock)
    clock.now += 1000
    assert standstill.seconds() == 0
    with standstill.request():
        assert standstill.seconds() == 0, "it counts from the request on"
        clock.now += 5
        assert standstill.seconds() == 5
    assert standstill.seconds() == 0


def test_a_token_of_any_request_is_progress_for_all() -> None:
    clock = Clock()
    standstill = Standstill(clock)
    with standstill.request(), standstill.request():
        clock.now += 50
        standstill.progress()
        clock.now += 2
        assert standstill.seconds() == 2


def test_another_request_is_no_progress() -> None:
    clock = Clock()
    standstill = Standstill(clock)
    with standstill.request():
        clock.now += 50
        with standstill.request():
            assert standstill.seconds() == 50


def test_an_update_of_the_weights_does_not_count() -> None:
    clock = Clock()
    standstill = Standstill(clock)
    with standstill.request():
        clock.now += 50
        with standstill.excused():
            clock.now += 500
            assert standstill.seconds() == 0
        clock.now += 3
        assert standstill.seconds() == 3


@given(st.lists(st.floats(0.1, 59.9), min_size=1, max_size=50))
def test_an_answer_that_grows_is_never_given_up(waits: list[float]) -> None:
    """However long it takes in all: what counts is the longest time without a token."""
    clock = Clock()
    standstill = Standstill(clock)
    with standstill.request():
        for wait in waits:
            clock.now += wait
            assert standstill.seconds() < 60
            standstill.progress()
