"""How often a waiting client asks: a notice or an old answer makes it ask, a turn of its role does not."""

import pytest

from rljob_workers.transfer_queue.control.connection import RECHECK_SECONDS, Notices, Polling, Wait
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
        received = [at for at in self.notice_times if at <= self.clock.now]
        self.notice_times = [at for at in self.notice_times if at > self.clock.now]
        return not self.listens or bool(received)

    def wait(self, seconds: float) -> None:
        self.clock.now = min([self.clock.now + seconds, *self.notice_times])

    def close(self) -> None: ...


class Queue:
    """Says `not yet` so many times."""

    def __init__(self, not_yet: int, *, stands: bool = True) -> None:
        self.not_yet = not_yet
        self.stands = stands
        self.asked = 0

    def ask(self, wait: Wait[str], question: object = "same") -> str:
        """As a claim does."""
        for _ in wait.turns(question, 0.2):
            self.asked += 1
            if self.asked > self.not_yet:
                return "rows"
            if self.stands:
                wait.answer = "not yet"
            else:
                wait.failed("not yet")
        return wait.answer


def turns(wait: Wait[str], queue: Queue, count: int, question: object = "same") -> list[str]:
    return [queue.ask(wait, question) for _ in range(count)]


def test_what_is_there_is_asked_for_once_and_no_one_listens() -> None:
    clock = Clock()
    notices, queue = Listened(clock), Queue(0)
    assert turns(Wait(notices, "task", clock), queue, 3) == ["rows"] * 3
    assert queue.asked == 3
    assert not notices.listens


def test_who_begins_to_listen_asks_again_since_something_may_have_come_meanwhile() -> None:
    clock = Clock()
    queue = Queue(1)
    assert turns(Wait(Listened(clock), "task", clock), queue, 1) == ["rows"]
    assert clock.now == 100.0


def test_a_notice_is_answered_at_once() -> None:
    clock = Clock()
    queue = Queue(2)
    assert turns(Wait(Listened(clock, 0.05), "task", clock), queue, 1) == ["rows"]
    assert clock.now == pytest.approx(100.05)


def test_without_a_notice_the_answer_stands_over_many_turns() -> None:
    clock = Clock()
    queue = Queue(1000)
    assert turns(Wait(Listened(clock), "task", clock), queue, 50) == ["not yet"] * 50
    assert clock.now == pytest.approx(110.0)
    assert queue.asked <= 2 + 10 / RECHECK_SECONDS


def test_a_notice_between_two_turns_is_not_missed() -> None:
    clock = Clock()
    queue = Queue(2)
    wait = Wait[str](Listened(clock, 0.3), "task", clock)
    assert turns(wait, queue, 1) == ["not yet"]
    clock.sleep(0.2)
    assert turns(wait, queue, 1) == ["rows"]


def test_another_question_is_asked_at_once() -> None:
    clock = Clock()
    queue = Queue(2)
    wait = Wait[str](Listened(clock), "task", clock)
    assert turns(wait, queue, 1, "version 3") == ["not yet"]
    assert turns(wait, queue, 1, "version 4") == ["rows"]
    assert clock.now == pytest.approx(100.2)


def test_what_a_broken_connection_stated_does_not_stand() -> None:
    clock = Clock()
    queue = Queue(4, stands=False)
    assert turns(Wait(Listened(clock), "task", clock), queue, 1) == ["rows"]
    assert clock.now < 100.1


def test_polling_asks_again_and_again() -> None:
    clock = Clock()
    queue = Queue(5)
    assert turns(Wait(Polling(clock.sleep), "task", clock), queue, 1) == ["rows"]
    assert queue.asked == 6
