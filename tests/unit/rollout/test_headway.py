"""Tokens that bring the job forward: all of an answer that grows, and an end of what is made for nothing."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import RolloutId
from rljob_workers.rollout.engine_access import CREDITED_BEGINNINGS, ROLLOUTS_REMEMBERED, Headway
from rljob_workers.transfer_queue.types import Ticket


def make_ticket(rollout: int, group: int, attempt: int = 0, number: int = 0) -> Ticket:
    return Ticket(number, RolloutId(rollout), group, attempt, prompt_index=group, alone=False)


def test_every_token_of_an_answer_counts() -> None:
    headway = Headway(100)
    made = headway.begin([make_ticket(0, 0), make_ticket(0, 1)])
    for _ in range(10):
        made(20)
    assert headway.tokens == 200


def test_an_engine_that_never_ends_a_sample_makes_no_headway_for_ever() -> None:
    headway = Headway(100)
    made = headway.begin([make_ticket(0, 0)])
    for _ in range(10):
        made(20)
    assert headway.tokens == 100


def test_an_answer_may_be_begun_anew_a_few_times() -> None:
    headway = Headway(100)
    for number in range(2 * CREDITED_BEGINNINGS):
        headway.begin([make_ticket(0, 0, number=number)])(100)
    assert headway.tokens == 100 * CREDITED_BEGINNINGS, "a ticket has another number each time it is given"


def test_another_draw_is_another_answer() -> None:
    headway = Headway(100)
    for attempt in range(8):
        headway.begin([make_ticket(0, 0, attempt)])(100)
    assert headway.tokens == 800, "attempts are counted by the queue, which ends the job after so many"


def test_rollouts_that_are_long_trained_are_forgotten() -> None:
    headway = Headway(100)
    for rollout in range(10 * ROLLOUTS_REMEMBERED):
        headway.begin([make_ticket(rollout, group) for group in range(4)])
    assert len(headway._beginnings) <= 4 * (ROLLOUTS_REMEMBERED + 1)


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7), min_size=1, max_size=4), st.lists(st.integers(0, 60), max_size=6)),
        max_size=200,
    )
)
def test_what_counts_between_two_steps_is_bounded_whatever_is_begun_and_lost(
    requests: list[tuple[set[int], list[int]]],
) -> None:
    headway = Headway(100)
    before = 0
    for groups, tokens in requests:
        made = headway.begin([make_ticket(3, group) for group in sorted(groups)])
        for number in tokens:
            made(number)
            assert before <= headway.tokens <= before + number
            before = headway.tokens
    assert headway.tokens <= 8 * CREDITED_BEGINNINGS * 100
