"""`rljob queue drain` without a job: what it says, and how it waits."""

from __future__ import annotations

import pytest

from rljob_api.wire.queue import DrainState
from rljob_cli.commands.queue import drain_and_wait, give_again
from rljob_cli.jobs.coordinator import CoordinatorApi, NoAnswer, QueueProblem
from rljob_cli.ui.reporter import Reporter
from tests.unit.cli.scripted import Scripted


class Recorded(Reporter):
    """What a drain reports; its waits cost no time."""

    def __init__(self) -> None:
        super().__init__("text")
        self.kinds: list[str] = []
        self.sentences: list[str] = []
        self.now = 0.0

    def report(self, kind: str, sentence: str, **facts: object) -> None:
        self.kinds.append(kind)
        self.sentences.append(sentence)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def drain(self, coordinator: CoordinatorApi, seconds: float = 10) -> None:
        drain_and_wait(coordinator, self, seconds, clock=lambda: self.now, sleep=self.sleep)


def state(*waits: str, stays: tuple[str, ...] = (), since: float | None = 1.0) -> DrainState:
    return DrainState(draining_since=since, waits=list(waits), stays=list(stays))


def test_a_drain_states_what_it_waits_for_whenever_that_changes() -> None:
    reported = Recorded()
    reported.drain(Scripted(state("a"), state("a"), state("b"), state(stays=("train_4 stays",))))
    assert reported.kinds == ["drain", "progress", "progress", "stays", "result"]
    assert reported.sentences[1:4] == ["waiting: a", "waiting: b", "train_4 stays"]


def test_a_drain_that_takes_too_long_names_what_it_waits_for() -> None:
    reported = Recorded()
    with pytest.raises(
        QueueProblem, match=r"was not drained within 1 s: 3 tickets are in work\. Tickets stay withheld"
    ):
        reported.drain(Scripted(*[state("3 tickets are in work")] * 9), seconds=1)


def test_a_coordinator_that_is_restarted_is_asked_again() -> None:
    reported = Recorded()
    reported.drain(Scripted(state("a"), NoAnswer("away"), NoAnswer("away"), state()))
    assert reported.kinds[-1] == "result"


def test_a_coordinator_that_stays_away_is_named_at_the_deadline() -> None:
    with pytest.raises(NoAnswer, match="away"):
        Recorded().drain(Scripted(state("a"), *[NoAnswer("away")] * 9), seconds=2)


def test_a_job_that_ends_meanwhile_is_reported() -> None:
    with pytest.raises(QueueProblem, match=r"The job ended before its queue was drained\."):
        Recorded().drain(Scripted(state("a"), NoAnswer("away"), ended=True))


def test_a_drain_that_somebody_takes_back_is_reported() -> None:
    with pytest.raises(QueueProblem, match="Somebody took the drain back before the queue was drained"):
        Recorded().drain(Scripted(state("a"), state("a", since=None)))


def test_giving_tickets_again_waits_for_nothing() -> None:
    reported, coordinator = Recorded(), Scripted(state(since=None))
    give_again(coordinator, reported)
    assert (reported.kinds, coordinator.asked) == (["result"], [("PUT", "/v1/queue/drain")])
