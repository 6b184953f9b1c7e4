"""The work queue, by example and by random schedules."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kube.work_queue import (
    FIRST_DELAY_SECONDS,
    LONGEST_DELAY_SECONDS,
    RISE_SECONDS,
    SPACING_SECONDS,
    TURNS,
    Urgency,
    WorkQueue,
)

ALARM, PROGRESS = Urgency.ALARM, Urgency.PROGRESS
KEYS = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, st.floats(0, 5), st.sampled_from(Urgency)),
        st.tuples(st.sampled_from(["take", "take alarms", "done", "failed"]), KEYS, st.just(0.0), st.just(ALARM)),
        st.tuples(st.just("wait"), KEYS, st.floats(0, 4), st.just(ALARM)),
    ),
    max_size=80,
)


def taken(queue: WorkQueue[str], now: float) -> str | None:
    found = queue.take(now)
    return None if found is None else found.key


def test_what_is_due_for_longest_comes_first() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("late", 2.0, PROGRESS)
    queue.add("early", 1.0, PROGRESS)

    assert taken(queue, 0.5) is None
    first = queue.take(3.0)
    assert first is not None
    assert (first.key, first.urgency, first.since) == ("early", PROGRESS, 1.0)
    assert taken(queue, 3.0) == "late"
    assert taken(queue, 3.0) is None


def test_an_alarm_goes_before_progress_that_waits_for_longer() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for name in "abc":
        queue.add(name, 0.0, PROGRESS)
    queue.add("c", 1.0, ALARM)

    assert [taken(queue, 1.0) for _ in range(4)] == ["c", "a", "b", None]


def test_progress_that_has_risen_goes_before_an_alarm_that_came_after_that() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("old", 0.0, PROGRESS)
    queue.add("before", RISE_SECONDS - 0.1, ALARM)
    queue.add("after", RISE_SECONDS + 0.1, ALARM)

    assert [taken(queue, 99.0) for _ in range(3)] == ["before", "old", "after"]


def test_who_serves_alarms_only_is_not_offered_progress() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)

    assert queue.take(100.0, [ALARM]) is None
    assert queue.next_due([ALARM]) is None
    queue.add("a", 50.0, ALARM)
    assert queue.next_due([ALARM]) == 50.0
    found = queue.take(100.0, [ALARM])
    assert found is not None
    assert (found.urgency, found.since) == (ALARM, 50.0)
    queue.done("a")
    assert queue.next_due() is None, "the turn has served both"


def test_an_alarm_while_it_is_in_work_for_progress_is_an_alarm_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    queue.add("b", 0.0, PROGRESS)
    assert taken(queue, 0.0) == "a"
    queue.add("a", 0.0, ALARM)
    queue.done("a")

    found = queue.take(1.0)
    assert found is not None
    assert (found.key, found.urgency) == ("a", ALARM)


def test_an_earlier_time_overtakes_a_later_one_and_not_the_other_way_round() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60.0, PROGRESS)
    queue.add("a", 1.0, PROGRESS)
    queue.add("a", 30.0, PROGRESS)

    assert queue.next_due() == 1.0
    assert taken(queue, 1.0) == "a"
    queue.done("a")
    assert queue.next_due() is None


def test_a_key_that_is_added_while_in_work_comes_once_more_and_only_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    assert taken(queue, 0.0) == "a"
    for urgency in (PROGRESS, ALARM, PROGRESS):
        queue.add("a", 0.0, urgency)

    assert taken(queue, 0.0) is None
    queue.done("a")
    assert taken(queue, 1.0) == "a"
    queue.done("a")
    assert taken(queue, 100.0) is None


def test_a_burst_of_events_makes_one_turn_and_not_one_each() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 10.0, ALARM)
    assert taken(queue, 10.0) == "a"
    queue.add("a", 10.0, ALARM)
    queue.done("a")

    assert taken(queue, 10.001 + SPACING_SECONDS / 2) is None
    assert taken(queue, 10.0 + SPACING_SECONDS) == "a"


def test_what_fails_comes_back_later_and_later_and_events_do_not_hurry_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    now, delays = 0.0, []
    for _ in range(12):
        assert taken(queue, now) == "a"
        queue.add("a", now, ALARM)
        delays.append(queue.failed("a", now))
        assert queue.next_due() == now + delays[-1]
        now += delays[-1]

    assert delays[:3] == [FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert delays[-1] == LONGEST_DELAY_SECONDS
    found = queue.take(now)
    assert found is not None
    assert found.urgency is ALARM, "it is still one"
    queue.done("a")
    queue.add("a", now, PROGRESS)
    assert taken(queue, now) == "a"
    assert queue.failed("a", now) == FIRST_DELAY_SECONDS


def test_a_server_that_states_when_to_come_back_is_obeyed() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    queue.take(0.0)

    assert queue.failed("a", 0.0, at_least=7.0) == 7.0


@pytest.mark.parametrize("message", [3600.0, math.inf, math.nan])
def test_no_answer_of_a_server_silences_an_alarm_for_longer_than_the_longest_delay(message: float) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    queue.take(0.0)

    assert queue.failed("a", 0.0, at_least=message) == LONGEST_DELAY_SECONDS
    queue.add("a", 0.01, ALARM)
    assert taken(queue, LONGEST_DELAY_SECONDS) == "a"


def test_progress_does_not_hurry_what_fails_nor_hide_that_it_is_an_alarm() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, ALARM)
    now = 0.0
    for _ in range(4):
        now = now + queue.failed("a", now) if taken(queue, now) == "a" else now
    delay = now
    queue.add("a", delay - 0.01, PROGRESS)

    assert taken(queue, delay - 0.01) is None
    found = queue.take(delay, [ALARM])
    assert found is not None
    assert found.urgency is ALARM


def test_an_alarm_hurries_what_fails_but_not_the_server() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0, PROGRESS)
    queue.add("b", 0.0, PROGRESS)
    for _ in range(2):
        queue.take(0.0)
    assert queue.failed("a", 0.0) > 0.01
    assert queue.failed("b", 0.0, at_least=7.0) == 7.0
    queue.add("a", 0.01, ALARM)
    queue.add("b", 0.01, ALARM)

    assert taken(queue, 0.01) == "a"
    assert taken(queue, 6.9) is None
    assert taken(queue, 7.0) == "b"


def test_an_alarm_that_is_served_before_its_time_is_still_one_when_that_turn_fails() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 9.0, ALARM)
    queue.add("a", 1.0, PROGRESS)
    found = queue.take(1.0)
    assert found is not None
    assert (found.urgency, found.since) == (PROGRESS, 1.0)
    queue.failed("a", 1.0)

    found = queue.take(2.0, [ALARM])
    assert found is not None
    assert found.key == "a"


def test_the_lag_is_that_of_the_key_that_waits_for_longest() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 3.0, ALARM)
    queue.add("b", 1.0, PROGRESS)
    queue.add("a", 2.0, PROGRESS)
    queue.add("c", 90.0, ALARM)

    assert queue.lag(11.0) == 10.0
    assert queue.depth(11.0) == 2


@given(STEPS)
def test_no_key_is_lost_or_in_work_twice_and_alarms_come_first_but_not_for_ever(
    steps: list[tuple[str, str, float, Urgency]],
) -> None:
    queue: WorkQueue[str] = WorkQueue()
    now = 0.0
    working: dict[str, bool] = {}
    """What is in work, and whether that is for an alarm too."""
    owed: dict[str, dict[Urgency, float]] = {}
    for step, key, seconds, urgency in steps:
        now += 0.001
        if step == "add":
            queue.add(key, now + seconds, urgency)
            due = owed.setdefault(key, {})
            due[urgency] = min(now + seconds, due.get(urgency, now + seconds))
        elif step.startswith("take"):
            urgencies = [ALARM] if step == "take alarms" else list(Urgency)
            found = queue.take(now, urgencies)
            free = {name: due for name, due in owed.items() if name not in working}
            if found is None:
                assert not any(due.get(urgency, now + 1) <= now for due in free.values() for urgency in urgencies)
                continue
            assert found.key in free
            assert_no_one_was_passed_over(found.key, found.urgency, free, urgencies, now)
            working[found.key] = ALARM in owed.pop(found.key)
        elif step == "wait":
            now += seconds
        elif key in working:
            is_alarm, again = working.pop(key), owed.pop(key, {})
            if step == "done":
                queue.done(key)
                owed |= {key: again} if again else {}
                now += SPACING_SECONDS  # from its start on it is spaced
            else:
                at = now + queue.failed(key, now)
                owed[key] = {ALARM if is_alarm or ALARM in again else PROGRESS: at}
                now = max(now, at)
    for key in working:
        queue.done(key)
    found_keys = set()
    while (left := queue.take(now + 1000)) is not None:
        found_keys.add(left.key)
        queue.done(left.key)
    assert found_keys == set(owed)


def assert_no_one_was_passed_over(
    key: str, urgency: Urgency, free: dict[str, dict[Urgency, float]], urgencies: list[Urgency], now: float
) -> None:
    """Progress was taken only where no alarm is due but later than it had risen; and an alarm, where none had."""
    alarms = [due[ALARM] for name, due in free.items() if name != key and due.get(ALARM, now + 1) <= now]
    risen = [due[PROGRESS] for name, due in free.items() if name != key and due.get(PROGRESS, now + 1) <= now]
    if urgency is PROGRESS:
        assert all(at + 0.1 >= free[key][PROGRESS] + RISE_SECONDS for at in alarms)
    elif PROGRESS in urgencies:
        mine = min(free[key].get(ALARM, now), free[key].get(PROGRESS, now) + RISE_SECONDS)
        assert all(at + RISE_SECONDS + 0.1 >= mine for at in risen)


def test_a_key_about_which_there_is_always_something_new_leaves_the_others_their_turns() -> None:
    queue: WorkQueue[str] = WorkQueue()
    now, turns = 0.0, []
    queue.add("noisy", now, Urgency.ALARM)
    while now < 100.0:
        due = queue.next_due()
        assert due is not None
        now = max(now, due)
        taken = queue.take(now)
        assert taken is not None
        turns.append(now)
        queue.add("noisy", now, Urgency.ALARM)
        queue.done("noisy")

    assert len(turns) <= TURNS.burst + 100.0 / TURNS.every_seconds + 1
    assert turns[TURNS.burst - 1] < 2.0, "a burst is looked at as it comes"
    queue.add("quiet", now, Urgency.ALARM)
    taken = queue.take(now)
    assert taken is not None
    assert taken.key == "quiet", "it is due at once, and the noisy one is not"
