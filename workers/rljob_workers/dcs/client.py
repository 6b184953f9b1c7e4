"""Typed, blocking requests to the coordinator that outlive its restarts.

Used by session, weights, checkpoints, launcher client and the tests. Every request may be sent twice without harm (the
coordinator knows ids and call ids), so whatever got no answer is sent again until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.wire.identity import Endpoints, Refusal
from rljob_workers.dcs.channel import Answer, ChannelBroken, HttpChannel
from rljob_workers.dcs.errors import (
    CoordinatorRefused,
    CoordinatorUnreachable,
    DcsError,
    LifeOver,
    WeightDead,
    WeightIncomplete,
)

ATTEMPT_SECONDS = 5.0
"""How long one attempt may stay without answer, beyond the wait that it asked for."""
PAUSE_SECONDS = 0.1
"""Between attempts: a restarted coordinator waits for its launchers' word, so they must come back soon."""

_REFUSALS: dict[str, type[DcsError]] = {
    "Fenced": LifeOver,
    "WrongEpoch": LifeOver,
    "Dead": WeightDead,
    "Incomplete": WeightIncomplete,
}

A = TypeVar("A", bound=ApiModel)


class CoordinatorClient:
    """One connection to the coordinator, for one thread."""

    def __init__(
        self,
        endpoints: Endpoints,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = endpoints.coordinator
        self.channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._clock = clock
        self._sleep = sleep

    def call(self, method: str, path: str, body: ApiModel | None, *, deadline: float, wait: float = 0.0) -> bytes:
        """The body of the answer; sent again until `deadline` (monotonic) while the coordinator is away or not open.

        `wait` is how long the coordinator was asked to hold the request (a long poll).
        """
        payload = None if body is None else body.model_dump_json().encode()
        failure = "no attempt was made"
        begun = self._clock()
        while True:
            try:
                answer = self.channel.request(method, path, payload, timeout=wait + ATTEMPT_SECONDS)
                if answer.status < 500:
                    return accept(answer)
                failure = f"status {answer.status}: {answer.body[:200].decode(errors='replace')}"
            except ChannelBroken as error:
                failure = str(error)
            if self._clock() + PAUSE_SECONDS >= deadline:
                raise CoordinatorUnreachable(
                    f"{method} {path}: the coordinator at {self.url} has not answered for "
                    f"{self._clock() - begun:.1f} s ({failure})."
                )
            self._sleep(PAUSE_SECONDS)

    def ask(self, method: str, path: str, body: ApiModel | None, kind: type[A], *, deadline: float) -> A:
        """As `call`, with the answer parsed."""
        return kind.model_validate_json(self.call(method, path, body, deadline=deadline))

    def close(self) -> None:
        """Closes the connection; a later request makes a new one."""
        self.channel.close()


def accept(answer: Answer) -> bytes:
    """The body of a good answer; a refusal is raised as the error of its reason."""
    if answer.status < 400:
        return answer.body
    refusal = _refusal(answer)
    raise _REFUSALS.get(refusal.reason, CoordinatorRefused)(refusal.message)


def _refusal(answer: Answer) -> Refusal:
    try:
        return Refusal.model_validate_json(answer.body)
    except ValidationError:
        text = answer.body[:500].decode(errors="replace")
        return Refusal(reason="BadRequest", message=f"status {answer.status}: {text}")
