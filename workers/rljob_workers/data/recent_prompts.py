"""Prompts that were asked for a moment ago, not made again: a rollout asks whether one fits, and then generates for it.

Used by the entry of a rollout rank. Any thread may ask, as of every source.
"""

from __future__ import annotations

from functools import lru_cache

from rljob_workers.data.base import Prompt, PromptSource

KEPT = 1024
"""More than a replica asks for before it generates for the first of them."""


class RecentPrompts(PromptSource):
    """The same stream as that of `source`."""

    def __init__(self, source: PromptSource) -> None:
        """Reads nothing yet."""
        self._source = source
        self._at = lru_cache(KEPT)(source.at)

    def __len__(self) -> int:
        """See `PromptSource`."""
        return len(self._source)

    def at(self, index: int) -> Prompt:
        """See `PromptSource.at`."""
        return self._at(index)
