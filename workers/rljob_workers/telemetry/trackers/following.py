"""A tracker's process follows its run: what comes, until it is asked to end, and then the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rljob_api.spec import Tracker as TrackerName
from rljob_workers.telemetry.trackers.base import Tracker
from rljob_workers.telemetry.trackers.feed import Feed

POLL_SECONDS = 1.0


def follow(
    run: Path, name: TrackerName, tracker: Tracker, asked: threading.Event, moved: Callable[[], None] = lambda: None
) -> None:
    """Gives what comes until `asked` is set, then the rest.

    Every call of the tracker may hang; between two of them `moved` is called.
    """
    feed = Feed(run, name, tracker)
    while True:
        is_last = asked.is_set()
        while feed.turn():
            moved()
        moved()
        if is_last:
            break
        asked.wait(POLL_SECONDS)
    tracker.close()
