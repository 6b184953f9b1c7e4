"""Finds a rank's engine up and with nothing to do: what the rank's last life had asked of it is nobody's.

Called by the entry of a rollout rank, before it generates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from rljob_workers.engines.base import Engine
from rljob_workers.engines.errors import EngineAway, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.roles.event_loop import EventLoopThread

LIVES = 5
"""So many that died or hung at their first questions are enough: the next one would, too."""


@dataclass(frozen=True, slots=True)
class IdleEngine:
    """What such an engine says of itself."""

    max_tokens: int
    """Of prompt and answer together."""
    capacity: int
    """Samples that it runs at once."""


def find_idle_engine(
    engine: Engine, events: EventLoopThread, await_up: Callable[[], bool], end_engine: Callable[[str], object]
) -> IdleEngine | None:
    """Blocks until it is there; None where `await_up` says that nobody waits any more.

    An engine that dies or hangs meanwhile is no failure of the rank: its launcher starts the next life.
    `end_engine` ends one that hangs or refuses. Raises what the last of LIVES of them raised.
    """
    for life in count(1):
        if not await_up():
            return None
        try:
            events.call(engine.abort_all())
            return IdleEngine(events.call(engine.max_tokens()), events.call(engine.capacity()))
        except (EngineAway, EngineGone):
            if life == LIVES:
                raise
        except EngineTimeout as error:
            end_engine(str(error))
            if life == LIVES:
                raise
        except EngineRefused as error:
            end_engine(str(error))  # it outlives this rank, and would refuse the next one too
            raise
    raise AssertionError("count has no end")
