"""Plugins of a launcher's loop: parts that have a turn in it and may be waited for.

The launcher calls them; they never call it. On one machine there are none.
"""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import Protocol

from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.launchers import EngineState


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine of the pod."""

    state: EngineState | None = None
    """None: not started yet, or not wanted any more."""
    starts: int = 0
    """Lives so far."""


@dataclass(frozen=True, slots=True)
class LauncherState:
    """What the launcher knows of its pod at the end of a turn."""

    order: PodOrder | None = None
    num_ranks: int = 0
    ranks_up: int = 0
    ranks_ready: int = 0
    """Alive, in the order's epoch and generation, and Ready by their own word."""
    rank_starts: int = 0
    engines: tuple[EngineFacts, ...] = ()
    """By index."""
    seen_seq: int = 0


class LoopPlugin(Protocol):
    """Something with a turn in the launcher's loop. No turn may wait."""

    def turn(self, state: LauncherState) -> None:
        """Does what can be done at once."""

    def watch(self, poller: select.poll) -> None:
        """Registers what it waits for."""

    def close(self) -> None:
        """Closes what a forked child must not have."""
