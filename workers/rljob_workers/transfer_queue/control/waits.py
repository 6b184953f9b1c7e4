"""Waiting for an answer that counts: asks, waits for a notice, and asks again only where something may have changed.

For `client`. A claim is asked in turns of a fraction of a second, for hours while there is nothing; so an answer of
`not yet` stands until a notice comes or it is old, over as many turns as that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from rljob_workers.transfer_queue.control.connection import RETRY_SECONDS, Clock
from rljob_workers.transfer_queue.control.notices import Notices

RECHECK_SECONDS = 1.0
"""`Not yet` is believed for so long: leases end without a notice, and a notice may be lost."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Answer(Generic[A]):
    """What came of one question."""

    value: A
    is_final: bool
    stands: bool = True
    """The queue itself said `not yet`, and not a connection that failed."""


@dataclass(frozen=True, slots=True)
class _NotYet:
    question: object
    answer: object
    until: float


class Waits:
    """The waits of one client, which never waits for two things at a time."""

    def __init__(self, notices: Notices, clock: Clock) -> None:
        self._notices = notices
        self._clock = clock
        self._not_yet: dict[str, _NotYet] = {}

    def first_final(self, channel: str, question: object, ask: Callable[[float], Answer[A]], timeout: float) -> A:
        """The first final answer within `timeout` seconds, else the last one.

        `question` compares equal where the same is asked: while its answer stands it is not asked again. `ask` gets
        the deadline.
        """
        deadline = self._clock() + timeout
        if self._notices.noticed(channel):
            self._not_yet.pop(channel, None)
        while True:
            known = self._standing(channel, question)
            if known is None:
                answer = ask(deadline)
                if answer.is_final:
                    self._not_yet.pop(channel, None)
                    return answer.value
                known = self._remember(channel, question, answer)
            left = deadline - self._clock()
            if left <= 0:
                return cast(A, known.answer)
            if self._notices.listen(channel):
                # What came between the answer and this moment was missed.
                self._not_yet.pop(channel, None)
                continue
            self._notices.wait(max(0.0, min(left, known.until - self._clock())))
            if self._notices.noticed(channel):
                self._not_yet.pop(channel, None)

    def _standing(self, channel: str, question: object) -> _NotYet | None:
        known = self._not_yet.get(channel)
        if known is None or known.question != question or self._clock() >= known.until:
            return None
        return known

    def _remember(self, channel: str, question: object, answer: Answer[A]) -> _NotYet:
        seconds = RECHECK_SECONDS if answer.stands else RETRY_SECONDS
        known = self._not_yet[channel] = _NotYet(question, answer.value, self._clock() + seconds)
        return known
