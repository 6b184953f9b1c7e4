"""The work queue, by example and by random schedules."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.adapters.work_queue import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, SPACING_SECONDS, WorkQueue

KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, st.floats(0, 5)),
        st.tuples(st.just("take"), KEYS, st.just(0.0)),
        st.tuples(st.just("done"), KEYS, st.just(0.0)),
        st.tuples(st.just("failed"), KEYS, st.just(0.0)),
        st.tuples(st.just("wait"), KEYS, st.floats(0, 2)),
    ),
    max_size=60,
)


def test_what_is_due_for_longest_comes_first() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("late", 2.0)
    queue.add("early", 1.0)

    assert queue.take(0.5) is None
    assert queue.take(3.0) == ("early", 1.0)
    assert queue.take(3.0) == ("late", 2.0)
    assert queue.take(3.0) is None


def test_an_earlier_time_overtakes_a_later_one_and_not_the_other_way_round() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60.0)
    queue.add("a", 1.0)
    queue.add("a", 30.0)

    assert queue.next_due() == 1.0
    assert queue.take(1.0) == ("a", 1.0)
    queue.done("a")
    assert queue.next_due() is None


def test_a_key_that_is_added_while_in_work_comes_once_more_and_only_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    assert queue.take(0.0) is not None
    for _ in range(5):
        queue.add("a", 0.0)

    assert queue.take(0.0) is None
    queue.done("a")
    assert queue.take(1.0) is not None
    queue.done("a")
    assert queue.take(100.0) is None


def test_a_burst_of_events_makes_one_turn_and_not_one_each() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 10.0)
    assert queue.take(10.0) is not None
    queue.add("a", 10.0)
    queue.done("a")

    assert queue.take(10.001 + SPACING_SECONDS / 2) is None
    assert queue.take(10.0 + SPACING_SECONDS) is not None


def test_what_fails_comes_back_later_and_later_and_events_do_not_hurry_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    now, delays = 0.0, []
    for _ in range(12):
        assert queue.take(now) is not None
        queue.add("a", now)
        delays.append(queue.failed("a", now))
        assert queue.next_due() == now + delays[-1]
        now += delays[-1]

    assert delays[:3] == [FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert delays[-1] == LONGEST_DELAY_SECONDS
    assert queue.take(now) is not None
    queue.done("a")
    queue.add("a", now)
    assert queue.take(now) is not None
    assert queue.failed("a", now) == FIRST_DELAY_SECONDS


def test_a_server_that_says_when_to_come_back_is_obeyed() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    queue.take(0.0)

    assert queue.failed("a", 0.0, at_least=7.0) == 7.0


def test_what_is_forgotten_does_not_come_back() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    queue.add("b", 0.0)
    queue.take(0.0)
    queue.add("a", 0.0)
    queue.forget("a")
    queue.done("a")
    queue.forget("b")

    assert queue.take(100.0) is None
    assert (queue.depth(100.0), queue.lag(100.0)) == (0, 0.0)


def test_the_lag_is_that_of_the_key_that_waits_for_longest() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 3.0)
    queue.add("b", 1.0)
    queue.add("c", 90.0)

    assert queue.lag(11.0) == 10.0
    assert queue.depth(11.0) == 2


@given(STEPS)
def test_no_key_is_lost_and_none_is_in_work_twice(steps: list[tuple[str, str, float]]) -> None:
    queue: WorkQueue[str] = WorkQueue()
    now = 0.0
    working: set[str] = set()
    owed: set[str] = set()
    for step, key, seconds in steps:
        now += 0.001
        if step == "add":
            queue.add(key, now + seconds)
            owed.add(key)
        elif step == "take":
            taken = queue.take(now)
            if taken is not None:
                assert taken[0] not in working
                assert taken[0] in owed
                working.add(taken[0])
                owed.discard(taken[0])
        elif step == "wait":
            now += seconds
        elif key in working:
            working.discard(key)
            if step == "done":
                queue.done(key)
            else:
                queue.failed(key, now)
                owed.add(key)
    for key in working:
        queue.done(key)
    found = set()
    while (taken := queue.take(now + 1000)) is not None:
        found.add(taken[0])
        queue.done(taken[0])
    assert found == owed
