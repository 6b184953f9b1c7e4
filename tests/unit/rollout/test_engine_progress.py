"""An engine's progress: when it is stalled, and which of its tokens bring the job forward."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import RolloutId
from rljob_workers.rollout.engine_access import (
    CREDITED_BEGINNINGS,
    FROZEN_SECONDS,
    ROLLOUTS_REMEMBERED,
    EngineProgress,
)
from rljob_workers.transfer_queue.types import Ticket
from tests.clock import Clock


def make_ticket(rollout: int, group: int, attempt: int = 0, number: int = 0) -> Ticket:
    return Ticket(number, RolloutId(rollout), group, attempt, prompt_index=group, alone=False)


TICKETS = [make_ticket(0, 0)]


def make_progress(clock: Clock | None = None) -> EngineProgress:
    return EngineProgress(clock or Clock(), tokens_per_ticket=100)


@contextmanager
def request(progress: EngineProgress, tickets: Sequence[Ticket]) -> Iterator[Callable[[int], None]]:
    """All the work on these tickets is one request."""
    made = progress.counted(tickets)
    with progress.expecting():
        yield made


def test_an_engine_without_requests_is_not_stalled() -> None:
    clock = Clock()
    progress = make_progress(clock)
    clock.now += 1000
    assert progress.stalled_seconds() == 0
    with request(progress, TICKETS):
        assert progress.stalled_seconds() == 0, "it counts from the request on"
        clock.now += 5
        assert progress.stalled_seconds() == 5
    assert progress.stalled_seconds() == 0


def test_a_token_of_any_request_is_progress_for_all() -> None:
    clock = Clock()
    progress = make_progress(clock)
    with request(progress, TICKETS) as made, request(progress, TICKETS):
        clock.now += 50
        made(1)
        clock.now += 2
        assert progress.stalled_seconds() == 2


def test_another_request_is_no_progress() -> None:
    clock = Clock()
    progress = make_progress(clock)
    with request(progress, TICKETS):
        clock.now += 50
        with request(progress, TICKETS):
            assert progress.stalled_seconds() == 50


def test_an_update_of_the_weights_does_not_count() -> None:
    clock = Clock()
    progress = make_progress(clock)
    with request(progress, TICKETS):
        clock.now += 50
        with progress.paused():
            clock.now += 500
            assert progress.stalled_seconds() == 0
        clock.now += 3
        assert progress.stalled_seconds() == 3


def test_the_next_incarnation_of_an_engine_has_all_its_time() -> None:
    clock = Clock()
    progress = make_progress(clock)
    with request(progress, TICKETS):
        clock.now += 50
        progress.restart()
        clock.now += 3
        assert progress.stalled_seconds() == 3


def test_the_time_in_which_the_process_was_frozen_does_not_count() -> None:
    clock = Clock()
    progress = make_progress(clock)
    clock.now += 1000  # without requests no look is made
    with request(progress, TICKETS), request(progress, TICKETS):
        clock.now += 1
        assert progress.poll() == progress.poll() == 1
        clock.now += FROZEN_SECONDS + 1
        assert progress.poll() == progress.poll() == 0, "of two requests, the first that looks finds it"
        clock.now += FROZEN_SECONDS
        assert progress.poll() == FROZEN_SECONDS


@given(st.lists(st.floats(0.1, 59.9), min_size=1, max_size=50))
def test_an_answer_that_grows_is_never_given_up(waits: list[float]) -> None:
    """However long it takes in all: what counts is the longest time without a token."""
    clock = Clock()
    progress = make_progress(clock)
    with request(progress, TICKETS) as made:
        for wait in waits:
            clock.now += wait
            assert progress.stalled_seconds() < 60
            made(1)


def test_every_token_of_an_answer_counts() -> None:
    progress = make_progress()
    with request(progress, [make_ticket(0, 0), make_ticket(0, 1)]) as made:
        for _ in range(10):
            made(20)
    assert progress.tokens == 200


def test_an_engine_that_never_ends_a_sample_makes_no_progress_for_ever() -> None:
    progress = make_progress()
    with request(progress, [make_ticket(0, 0)]) as made:
        for _ in range(10):
            made(20)
    assert progress.tokens == 100


def test_an_answer_may_be_begun_again_a_few_times() -> None:
    progress = make_progress()
    for number in range(2 * CREDITED_BEGINNINGS):
        with request(progress, [make_ticket(0, 0, number=number)]) as made:
            made(100)
    assert progress.tokens == 100 * CREDITED_BEGINNINGS, "a ticket has another number each time it is given"


@pytest.mark.parametrize(
    ("carried", "counted"),
    [
        ([0, 0, 0, 0, 0], 3),
        ([0, 10, 20, 30, 40], 5),
        ([0, 0, 0, 1, 1, 1, 1], 6),
        ([10, 0, 10, 0, 10, 0, 10], 3),
    ],
)
def test_an_answer_that_goes_on_behind_more_tokens_than_ever_may_be_begun_as_often_again(
    carried: list[int], counted: int
) -> None:
    progress = make_progress()
    for number in carried:
        progress.counted([make_ticket(0, 0)], [number])(1)
    assert progress.tokens == counted


def test_another_draw_is_another_answer() -> None:
    progress = make_progress()
    for attempt in range(8):
        with request(progress, [make_ticket(0, 0, attempt)]) as made:
            made(100)
    assert progress.tokens == 800, "attempts are counted by the queue, which ends the job after so many"


def test_rollouts_that_are_long_trained_are_forgotten() -> None:
    progress = make_progress()
    for rollout in range(10 * ROLLOUTS_REMEMBERED):
        with request(progress, [make_ticket(rollout, group) for group in range(4)]):
            pass
    assert len(progress._beginnings) <= 4 * (ROLLOUTS_REMEMBERED + 1)


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7), min_size=1, max_size=4), st.lists(st.integers(0, 60), max_size=6)),
        max_size=200,
    )
)
def test_what_counts_between_two_steps_is_bounded_whatever_is_begun_and_lost(
    requests: list[tuple[set[int], list[int]]],
) -> None:
    progress = make_progress()
    before = 0
    with ExitStack() as begun:
        for groups, tokens in requests:
            made = begun.enter_context(request(progress, [make_ticket(3, group) for group in sorted(groups)]))
            for number in tokens:
                made(number)
                assert before <= progress.tokens <= before + number
                before = progress.tokens
    assert progress.tokens <= 8 * CREDITED_BEGINNINGS * 100
