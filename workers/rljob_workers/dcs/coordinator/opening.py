"""When a restarted control Redis may be opened: after its launchers have said how far they had seen it. Pure.

Called by the coordinator's gate with what was heard; asks no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpeningPatience:
    """How long words are waited for. Only time counts in which they could be heard."""

    silent_one_seconds: float
    """A launcher that is silent for so long is not waited for: it is dead or stopped, and the job must go on."""
    all_silent_seconds: float
    """After a start of coordinator and Redis together: if no launcher speaks for so long, none lives, as when a run is
    resumed."""


ON_ONE_MACHINE = OpeningPatience(silent_one_seconds=3.0, all_silent_seconds=1.0)
"""Living launchers are heard within milliseconds: their connections wait in the backlog of the kept socket."""

ACROSS_MACHINES = OpeningPatience(silent_one_seconds=15.0, all_silent_seconds=15.0)
"""A launcher may have to give up a connection to a machine that is gone, and the way to the new one takes seconds."""


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


def launchers_awaited(
    closed: Closed, registered: frozenset[str], words: Mapping[str, Word], waited: float, patience: OpeningPatience
) -> list[str]:
    """The launchers whose word is still missing after so many seconds; none: the server may be opened."""
    heard = {launcher for launcher, word in words.items() if word.at >= closed.since}
    if waited >= patience.silent_one_seconds:
        return []
    if closed.coordinator_is_new:
        awaited = registered if heard or waited < patience.all_silent_seconds else frozenset[str]()
    else:
        lately = closed.since - patience.silent_one_seconds
        awaited = frozenset(name for name in registered if name in words and words[name].at >= lately)
    return sorted(awaited - heard)
