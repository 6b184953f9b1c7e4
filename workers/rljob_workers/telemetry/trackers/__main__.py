"""`python -m rljob_workers.telemetry.trackers FOLDER TRACKER`: feeds one tracker with a run, until SIGTERM.

With --once it gives what there is and ends: for a run that ended before its tracker had everything.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from rljob_api.spec import Tracker as TrackerName
from rljob_workers.telemetry.trackers import open_tracker
from rljob_workers.telemetry.trackers.feed import NamedRun, tracked_run
from rljob_workers.telemetry.trackers.following import follow


def main() -> None:
    """Returns once everything was given that was there when it was asked to end."""
    parser = argparse.ArgumentParser(prog="python -m rljob_workers.telemetry.trackers")
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("tracker", type=TrackerName, choices=list(TrackerName))
    parser.add_argument("--once", action="store_true", help="end when all is given")
    given = parser.parse_args()
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    if given.once:
        asked.set()
    run = given.folder.absolute()
    tracker = open_tracker(given.tracker, tracked_run(run, NamedRun.of_folder(run), given.tracker))
    follow(run, given.tracker, tracker, asked)


if __name__ == "__main__":
    main()
