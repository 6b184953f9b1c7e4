"""Entry point of a tracker's container on a cluster: `python -m rljob_workers.telemetry.trackers.pod`.

Reads the record that the coordinator writes on the checkpoint volume, and knows neither its token nor Redis. Whatever
goes wrong ends the process with a sentence, which the operator reports; the kubelet starts it again with growing
pauses, and it goes on where its cursor is. A tracker that hangs is ended, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rljob_api.cluster import RUN_DIR, RUN_NAME_FILE
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_SUCCEEDED
from rljob_api.spec import RLJob
from rljob_api.spec import Tracker as TrackerName
from rljob_workers.pod_environment import PodEnvironment, required
from rljob_workers.telemetry.trackers import open_tracker
from rljob_workers.telemetry.trackers.feed import NamedRun, tracked_run
from rljob_workers.telemetry.trackers.following import POLL_SECONDS, follow

STILL_SECONDS = 120.0
"""A tracker that does not return for so long hangs."""
EXIT_HUNG = 1


class Stillness:
    """Ends the process where nothing has moved for so long: a call that hangs cannot be interrupted otherwise."""

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        self._seconds = seconds
        self._end = end
        self._moved_at = time.monotonic()

    def moved(self) -> None:
        """Something has returned."""
        self._moved_at = time.monotonic()

    def watch(self) -> None:
        """From now on, in a thread of its own."""
        threading.Thread(target=self._watch, daemon=True, name="stillness").start()

    def _watch(self) -> None:
        while time.monotonic() - self._moved_at <= self._seconds:
            time.sleep(min(POLL_SECONDS, self._seconds / 4))
        self._end()


def main() -> int:
    """The whole life of the container."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        pod = PodEnvironment.read(os.environ)
        name = TrackerName(required(os.environ, "RLJOB_TRACKER"))
        job = pod.job()
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_MANIFEST
    if find_spec(name.value) is None:
        sys.stderr.write(
            f"the image has no {name.value}. Name one in spec.image that has it, or remove {name.value} from "
            "telemetry.reportTo.\n"
        )
        return EXIT_BAD_MANIFEST
    stillness = Stillness(STILL_SECONDS, lambda: _end_hung(name))
    stillness.watch()
    run = pod.folder(RUN_DIR)
    named = _named(run, job, asked, stillness)
    if named is not None:
        tracker = open_tracker(name, tracked_run(run, named, name))
        follow(run, name, tracker, asked, stillness.moved)
    return EXIT_SUCCEEDED


def _named(run: Path, job: RLJob, asked: threading.Event, stillness: Stillness) -> NamedRun | None:
    """Waits for the coordinator's first run; None where it is asked to end before that."""
    while True:
        try:
            drawn = (run / RUN_NAME_FILE).read_text().strip()
        except FileNotFoundError:
            if asked.wait(POLL_SECONDS):
                return None
            stillness.moved()
        else:
            return NamedRun(job.metadata.name, drawn, job.spec.model_dump(mode="json", by_alias=True))


def _end_hung(name: TrackerName) -> None:
    sys.stderr.write(f"{name.value} has taken nothing for {STILL_SECONDS:.0f} s, and is begun again\n")
    sys.stderr.flush()
    os._exit(EXIT_HUNG)


if __name__ == "__main__":
    sys.exit(main())
