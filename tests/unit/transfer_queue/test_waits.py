"""How often a waiting client asks: a notice or an old answer makes it ask, a turn of its role does not."""

from collections.abc import Callable

import pytest

from rljob_workers.transfer_queue.control.connection import RECHECK_SECONDS, Attempt, Notices, Polling, Waits
from tests.clock import Clock


class Listened(Notices):
    """Notices at the given times."""

    def __init__(self, clock: Clock, *notice_times: float) -> None:
        self.clock = clock
        self.notice_times = [100.0 + at for at in notice_times]
        self.listens = False

    def listen(self, channel: str) -> bool:
        was_listening, self.listens = self.listens, True
        return not was_listening

    def noticed(self, channel: str) -> bool:
        heard = [at for at in self.notice_times if at <= self.clock.now]
        self.notice_times = [at for at in self.notice_times if at > self.clock.now]
        return not self.listens or bool(heard)

    def wait(self, seconds: float) -> None:
        self.clock.now = min([self.clock.now + seconds, *self.notice_times])

    def close(self) -> None: ...


def turns(waits: Waits, ask: Callable[[float], Attempt[str]], count: int, question: object = "same") -> list[str]:
    return [waits.first_final("task", question, ask, 0.2) for _ in range(count)]


class Queue:
    """Says `not yet` so many times."""

    def __init__(self, not_yet: int, *, stands: bool = True) -> None:
        self.not_yet = not_yet
        self.stands = stands
        self.asked = 0

    def __call__(self, deadline: float) -> Attempt[str]:
        self.asked += 1
        return Attempt("rows", True) if self.asked > self.not_yet else Attempt("not yet", False, self.stands)


def test_what_is_there_is_asked_for_once_and_nobody_listens() -> None:
    clock = Clock()
    notices, queue = Listened(clock), Queue(0)
    assert turns(Waits(notices, clock), queue, 3) == ["rows"] * 3
    assert queue.asked == 3
    assert not notices.listens


def test_who_begins_to_listen_asks_again_since_something_may_have_come_meanwhile() -> None:
    clock = Clock()
    queue = Queue(1)
    assert turns(Waits(Listened(clock), clock), queue, 1) == ["rows"]
    assert clock.now == 100.0


def test_a_notice_is_answered_at_once() -> None:
    clock = Clock()
    queue = Queue(2)
    assert turns(Waits(Listened(clock, 0.05), clock), queue, 1) == ["rows"]
    assert clock.now == pytest.approx(100.05)


def test_without_a_notice_the_answer_stands_over_many_turns() -> None:
    clock = Clock()
    queue = Queue(1000)
    assert turns(Waits(Listened(clock), clock), queue, 50) == ["not yet"] * 50
    assert clock.now == pytest.approx(110.0)
    assert queue.asked <= 2 + 10 / RECHECK_SECONDS


def test_a_notice_between_two_turns_is_not_missed() -> None:
    clock = Clock()
    queue = Queue(2)
    waits = Waits(Listened(clock, 0.3), clock)
    assert turns(waits, queue, 1) == ["not yet"]
    clock.sleep(0.2)
    assert turns(waits, queue, 1) == ["rows"]


def test_another_question_is_asked_at_once() -> None:
    clock = Clock()
    queue = Queue(2)
    waits = Waits(Listened(clock), clock)
    assert turns(waits, queue, 1, "version 3") == ["not yet"]
    assert turns(waits, queue, 1, "version 4") == ["rows"]
    assert clock.now == pytest.approx(100.2)


def test_what_a_broken_connection_said_does_not_stand() -> None:
    clock = Clock()
    queue = Queue(4, stands=False)
    assert turns(Waits(Listened(clock), clock), queue, 1) == ["rows"]
    assert clock.now < 100.1


def test_polling_asks_again_and_again() -> None:
    clock = Clock()
    queue = Queue(5)
    assert turns(Waits(Polling(clock.sleep), clock), queue, 1) == ["rows"]
    assert queue.asked == 6
