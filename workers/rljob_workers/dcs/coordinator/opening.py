"""When a restarted control Redis may be opened: after its launchers have said how far they had seen it. Pure.

Called by the coordinator's watch with what was heard; asks no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PATIENCE_SECONDS = 3.0
"""A launcher that is silent for so long is not waited for: it is dead or stopped, and the job must go on."""
SILENCE_SECONDS = 1.0
"""After a start of coordinator and Redis together: if no launcher speaks for so long, none lives (a resumed run).

Living launchers are heard within milliseconds, since their connections wait in the backlog of the kept socket.
"""


@dataclass(frozen=True, slots=True)
class Word:
    """What a launcher said last."""

    at: float
    seen_seq: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The server is not open since `since`; `coordinator_is_new` when nobody can have spoken before that."""

    since: float
    coordinator_is_new: bool


def launchers_awaited(closed: Closed, registered: frozenset[str], words: Mapping[str, Word], now: float) -> list[str]:
    """The launchers whose word is still missing; none: the server may be opened with the highest seq heard."""
    heard = {launcher for launcher, word in words.items() if word.at >= closed.since}
    waited = now - closed.since
    if waited >= PATIENCE_SECONDS:
        return []
    if closed.coordinator_is_new:
        awaited = registered if heard or waited < SILENCE_SECONDS else frozenset[str]()
    else:
        lately = closed.since - PATIENCE_SECONDS
        awaited = frozenset(name for name in registered if name in words and words[name].at >= lately)
    return sorted(awaited - heard)
