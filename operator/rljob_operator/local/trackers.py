"""Processes that feed trackers with a run: begun anew when they die or stand still, and never waited for.

Called by the supervisor. Nothing here decides about the job: what goes wrong becomes an event, and the lines that a
tracker has not got stay in the run folder, where its cursor says how far it is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_api import evaluations
from rljob_api.spec import Tracker
from rljob_operator.core.reasons import last_line
from rljob_operator.local import processes
from rljob_operator.local.run_folder import RunFolder

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Before a process that has ended is begun anew; doubled each time, until one gives something."""
STILL_SECONDS = 120.0
"""A process that gives nothing for so long, while there is something, is ended: its tracker hangs."""
FINISH_SECONDS = 20.0
"""For all trackers together, once the job is over."""
POLL_SECONDS = 1.0

_MODULE = "rljob_workers.telemetry.trackers"

_FOLLOWED = {"metrics.jsonl": "metrics", evaluations.FILE: "evaluations"}
"""Files by which it is judged how far a tracker is, and what its cursor calls them. Events and samples are not waited
for."""


class Trackers:
    """Those of one start of a run."""

    def __init__(
        self,
        trackers: Sequence[Tracker],
        folder: RunFolder,
        note: Callable[[str], None],
        *,
        still_seconds: float = STILL_SECONDS,
    ) -> None:
        """`note` is given a sentence for each new thing that goes wrong."""
        self._trackers = tuple(dict.fromkeys(trackers))
        self._folder = folder
        self._note = note
        self._still_seconds = still_seconds
        self._running: dict[Tracker, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._noted: dict[Tracker, str] = {}

    def start(self) -> None:
        """Returns at once. Call it from the main thread: children die with the thread that made them."""
        self._tasks = [asyncio.create_task(self._feed(one), name=f"feed {one.value}") for one in self._trackers]

    async def finish(self, *, patience: float) -> None:
        """Once nothing is written any more: at most `patience` seconds for what they have not got, then ends all."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(map(self._may_go_on, self._trackers)):
            await asyncio.sleep(min(POLL_SECONDS / 5, patience))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = max(0.0, deadline - time.monotonic())
        await asyncio.gather(*(processes.stop(one, patience=left) for one in self._running.values()))
        for one in self._trackers:
            if self._bytes_left(one):
                names = " and ".join(file.name for file in self._followed())
                self._report(
                    one,
                    f"it has not got all of {names}. `python -m {_MODULE} {self._folder.path}"
                    f" {one.value} --once` gives it the rest",
                )

    async def _feed(self, tracker: Tracker) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            while not self._bytes_left(tracker):  # its imports would compete with those of the job's own start
                await asyncio.sleep(POLL_SECONDS)
            before = self._offset(tracker)
            try:
                process = await processes.start(self._command(tracker), self._log(tracker))
            except OSError as error:
                self._report(tracker, f"its process cannot be started: {error}")
            else:
                self._running[tracker] = process
                self._report(tracker, await self._watch(tracker, process))
                del self._running[tracker]
            pause = FIRST_PAUSE_SECONDS if self._offset(tracker) != before else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _watch(self, tracker: Tracker, process: asyncio.subprocess.Process) -> str:
        """Until it has ended; what was wrong with it."""
        offset, moved_at = self._offset(tracker), time.monotonic()
        while process.returncode is None:
            await asyncio.sleep(POLL_SECONDS)
            now = self._offset(tracker)
            if now != offset or not self._bytes_left(tracker):
                offset, moved_at = now, time.monotonic()
            if time.monotonic() - moved_at > self._still_seconds:
                await processes.stop(process, patience=0.0)
                return f"it has taken nothing for {self._still_seconds:.0f} s"
        last = last_line(self._folder.tail(_log_name(tracker)))
        return f"its process ended with {process.returncode}: {last or 'without output'}"

    def _may_go_on(self, tracker: Tracker) -> bool:
        """Whether it may still get what it lacks: its process works, or was not begun yet."""
        return self._bytes_left(tracker) > 0 and (tracker in self._running or tracker not in self._noted)

    def _report(self, tracker: Tracker, what: str) -> None:
        """Once, until it is another thing."""
        if self._noted.get(tracker) != what:
            self._noted[tracker] = what
            self._note(f"telemetry.reportTo: {tracker.value}: {what}. The job does not wait for it.")

    def _command(self, tracker: Tracker) -> list[str]:
        # Behind everything that trains, since its imports alone take seconds.
        return ["nice", "-n", "10", sys.executable, "-m", _MODULE, str(self._folder.path), tracker.value]

    def _log(self, tracker: Tracker) -> Path:
        return self._folder.log(_log_name(tracker))

    def _offset(self, tracker: Tracker) -> int:
        """How much of the files of `_FOLLOWED` it has, in bytes."""
        try:
            cursor = json.loads((self._folder.path / "trackers" / f"{tracker.value}.json").read_bytes())
            return sum(int(cursor.get(name, {}).get("offset", 0)) for name in _FOLLOWED.values())
        except (OSError, ValueError, AttributeError, TypeError):
            return 0

    def _bytes_left(self, tracker: Tracker) -> int:
        return sum(file.stat().st_size for file in self._followed()) - self._offset(tracker)

    def _followed(self) -> list[Path]:
        return [file for name in _FOLLOWED if (file := self._folder.path / name).exists()]


def _log_name(tracker: Tracker) -> str:
    return f"tracker-{tracker.value}"
