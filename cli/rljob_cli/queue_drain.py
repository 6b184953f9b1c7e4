"""Waiting for a drained queue: asks, and says what is still waited for whenever that changes. Decides nothing.

Used by `rljob queue drain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rljob_api.wire.queue import DrainRequest, DrainState, Tickets
from rljob_cli.queue_access import Coordinator, NoAnswer, QueueProblem

LOOK_SECONDS = 0.5

Say = Callable[[str, str, dict[str, object]], None]
"""Kind, sentence, facts."""


def give_again(coordinator: Coordinator, say: Say) -> None:
    """Ends a drain; nothing if there is none."""
    _order(coordinator, Tickets.GIVE)
    say("result", "Tickets are given.", {"tickets": Tickets.GIVE.value})


def drain(
    coordinator: Coordinator,
    say: Say,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Withholds tickets and waits until nothing moves any more; raises QueueProblem at the deadline."""
    deadline = clock() + seconds
    state = _order(coordinator, Tickets.WITHHOLD)
    say("drain", "No ticket is given any more.", {"tickets": Tickets.WITHHOLD.value})
    told: Sequence[str] = []
    while state.waits:
        if state.waits != told:
            say("progress", f"waiting: {_listed(state.waits)}", {"waits": state.waits})
            told = state.waits
        if clock() >= deadline:
            raise QueueProblem(
                f"The queue was not drained within {seconds:g} s: {_listed(state.waits)}. Tickets stay withheld; wait"
                " again with the same command, or give them with --off."
            )
        sleep(LOOK_SECONDS)
        state = _look(coordinator, deadline, clock, sleep)
    for sentence in state.stays:
        say("stays", sentence, {"stays": sentence})
    say("result", "The queue is drained. `rljob queue drain --off` gives tickets again.", {"drained": True})


def _order(coordinator: Coordinator, tickets: Tickets) -> DrainState:
    return coordinator.order(DrainState, "/v1/queue/drain", DrainRequest(tickets=tickets))


def _look(
    coordinator: Coordinator, deadline: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> DrainState:
    """The state now; a coordinator that is being restarted is asked again."""
    while True:
        try:
            state = coordinator.ask(DrainState, "/v1/queue/drain")
        except NoAnswer:
            if coordinator.has_ended():
                raise QueueProblem("The job ended before its queue was drained.") from None
            if clock() >= deadline:
                raise
            sleep(LOOK_SECONDS)
            continue
        if state.draining_since is None:
            raise QueueProblem("Somebody took the drain back before the queue was drained: tickets are given.")
        return state


def _listed(waits: Sequence[str]) -> str:
    return "; ".join(waits)
