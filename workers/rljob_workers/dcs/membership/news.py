"""News of a rank for its owner, on the way from the thread that finds them to the main loop, which reports them.

news = NewsQueue()          of the rank; every part that may find something has it
news.put(News(...))         in any thread
session.notify(...)         by the main loop, for each
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from rljob_api.wire.ranks import NoticeKind


@dataclass(frozen=True, slots=True)
class News:
    """Something that the job survives and its owner should know."""

    kind: NoticeKind
    sentence: str
    subject: str | None = None
    """The subject, where other ranks may find the same."""


NewsQueue: TypeAlias = SimpleQueue[News]
