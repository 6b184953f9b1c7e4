"""Gives a tracker what a run has written, from where it stopped last: metrics, evaluations, events and samples.

The cursor is written after the tracker has flushed, so that a process that dies gives some lines twice and none never.
Called by the process of a tracker; reads the run folder, and writes its cursor there and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rljob_api import evaluations, generations
from rljob_api.cluster import TRACKERS_FOLDER
from rljob_api.spec import Tracker as TrackerName
from rljob_workers.telemetry.trackers.base import TrackedRun, Tracker
from rljob_workers.telemetry.trackers.tail import Place, read_on

FOLDER = TRACKERS_FOLDER
"""Folder in the run folder: cursors, and what trackers keep there."""


class Cursor(BaseModel):
    """`trackers/NAME.json`."""

    metrics: Place = Place()
    evaluations: Place = Place()
    events: Place = Place()
    samples: Place = Place()
    last_step: int = -1
    """The last one that was given; -1: none was."""
    last_epoch: int = 0
    last_version: int = -1
    """The last one whose evaluation was given; -1: none was."""

    @property
    def lines(self) -> int:
        """Lines of all kinds."""
        return sum(place.lines for place in (self.metrics, self.evaluations, self.events, self.samples))

    @classmethod
    def read(cls, file: Path) -> Cursor:
        """As it was left; from the beginning where there is none, or none that can be understood."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return cls()

    def write(self, file: Path) -> None:
        """Atomically. A power cut may take it back by some lines."""
        beside = file.with_name(f".{file.name}.new")
        beside.write_text(self.model_dump_json())
        beside.replace(file)


def cursor_file(run: Path, name: TrackerName) -> Path:
    """Where the cursor of a tracker is."""
    return run / FOLDER / f"{name.value}.json"


@dataclass(frozen=True, slots=True)
class NamedRun:
    """The run whose record is in a folder."""

    job: str
    run: str
    """Drawn with the folder, or with the volume that it is."""
    spec: Mapping[str, Any]
    """Resolved."""

    @classmethod
    def of_folder(cls, run: Path) -> NamedRun:
        """As `rljob run` has left it."""
        manifest = json.loads((run / "job.json").read_bytes())
        record = json.loads((run / "run.json").read_bytes())
        return cls(manifest["metadata"]["name"], record["run"], manifest["spec"])


def tracked_run(run: Path, named: NamedRun, name: TrackerName) -> TrackedRun:
    """The run in the folder `run`, as a tracker shall have it."""
    cursor = Cursor.read(cursor_file(run, name))
    folder = run / FOLDER / name.value
    folder.mkdir(parents=True, exist_ok=True)
    return TrackedRun(
        id=f"{named.job}-{named.run}",
        name=named.job,
        config=named.spec,
        folder=folder,
        next_step=cursor.last_step + 1,
        next_version=cursor.last_version + 1,
        given_lines=cursor.lines,
    )


def figures_of(line: Mapping[str, Any], group: str) -> dict[str, float]:
    """The numbers of a line by group and name, those without one in `group`; what is not finite is left out."""
    numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name not in _NO_FIGURE}
    named = {name if "/" in name else f"{group}/{name}": float(value) for name, value in numbers.items()}
    return {name: value for name, value in named.items() if math.isfinite(value)}


_NO_FIGURE = frozenset(("time", "step", "version", "restates"))


class Feed:
    """One tracker's."""

    def __init__(self, run: Path, name: TrackerName, tracker: Tracker) -> None:
        self._run = run
        self._file = cursor_file(run, name)
        self._cursor = Cursor.read(self._file)
        self._tracker = tracker

    def turn(self) -> bool:
        """Gives what is new, a part of it where that is much; whether there was anything."""
        before = self._cursor
        after = before.model_copy()
        self._give_steps(after)
        self._give_evaluations(after)
        self._give_samples(after)
        lines, after.events = read_on(self._run / "events.jsonl", before.events)
        if lines:
            self._tracker.events(before.events.lines, [line for line, _ in lines])
        if after == before:
            return False
        self._tracker.flush()
        after.write(self._file)
        self._cursor = after
        return True

    def _give_steps(self, cursor: Cursor) -> None:
        lines, cursor.metrics = read_on(self._run / "metrics.jsonl", cursor.metrics)
        for line, _ in lines:
            step = int(line["step"])
            if step <= cursor.last_step:
                self._tracker.forget(step)
            self._tracker.step(step, figures_of(line, "step"))
            cursor.last_step, cursor.last_epoch = step, int(line["epoch"])

    def _give_evaluations(self, cursor: Cursor) -> None:
        lines, cursor.evaluations = read_on(self._run / evaluations.FILE, cursor.evaluations)
        for line in evaluations.of_run(line for line, _ in lines):
            version = int(line["version"])
            if version <= cursor.last_version:
                self._tracker.forget_evaluations(version)
            self._tracker.evaluation(version, figures_of(line, "evaluation"))
            cursor.last_version = version

    def _give_samples(self, cursor: Cursor) -> None:
        """Samples of a step that was not given yet wait for it: it may take an earlier one of its number back."""
        lines, after = read_on(self._run / generations.FILE, cursor.samples, self._run / generations.OLDER_FILE)
        given = list(takewhile(lambda read: _is_of_step_before(read[0], cursor), lines))
        for rollout, rows in groupby((line for line, _ in given), key=lambda line: int(line["rollout"])):
            self._tracker.samples(rollout, list(rows))
        if len(given) == len(lines):
            cursor.samples = after
        elif given:
            cursor.samples = given[-1][1]


def _is_of_step_before(sample: Mapping[str, Any], cursor: Cursor) -> bool:
    return (int(sample["epoch"]), int(sample["rollout"])) <= (cursor.last_epoch, cursor.last_step)
