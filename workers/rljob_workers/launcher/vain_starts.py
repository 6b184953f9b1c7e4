"""Starts in vain: whether an engine that dies before it was ever up would die of the same again.

Pure. Kept by `engine_keeper`, which outlives ranks and epochs: so the count goes on over restarts of the job.
"""

from __future__ import annotations

import re

MAX_BY_ONE_CAUSE = 3
"""Starts in a row that one cause has ended: the model, the flags or the environment make it, and will again."""

MAX_STARTS = 10
"""Where causes pass by themselves, differ, or left no words. With the delays between starts that is a minute for an
engine that dies at once, and some for one that loads a model first: processes end and give their memory back."""

_PASSES = re.compile(
    r"out ?of ?memory|cannot allocate memory|address already in use|busy or unavailable|temporarily unavailable"
    r"|no space left|too many open files|stale file handle|input/output error|timed? ?out|connection (refused|reset)"
    r"|no free memory|not enough memory|NCCL|exit code:? -9\b",
    re.IGNORECASE,
)
"""What another process may hold that is about to end, or what a disk or network may get over. SGLang says -9 of a
scheduler that was killed, as the kernel does for want of memory."""

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)*", re.IGNORECASE)


class VainStarts:
    """Of one engine, from its first start with its settings on."""

    def __init__(self) -> None:
        self._was_up = False
        self._starts = 0
        self._cause: str | None = None
        self._by_cause = 0

    def up(self) -> None:
        """It has answered: its settings can work, and later deaths are none of theirs."""
        self._was_up = True

    def ended(self, cause: str | None) -> bool:
        """Counts the end of a life, of `cause` in words; whether another start would be in vain, too."""
        if self._was_up:
            return False
        said = None if cause is None else _NUMBERS.sub("#", cause)
        self._by_cause = self._by_cause + 1 if said is not None and said == self._cause else 1
        self._cause = said
        self._starts += 1
        is_lasting = cause is not None and _PASSES.search(cause) is None
        return self._starts >= MAX_STARTS or (is_lasting and self._by_cause >= MAX_BY_ONE_CAUSE)

    @property
    def words(self) -> str:
        """How often, for a sentence."""
        return f"{self._starts} starts, and it was never up" if self._starts > 1 else "it was never up"
