"""Steps, evaluations and events as lines of files in the coordinator's run folder, which trackers read on a cluster.

`serving` follows the coordinator's events with it, in a thread of its own, so that a slow volume delays no beat. The
pods of trackers have the volume and no token: they see these files, and nothing of the coordinator. A process that is
killed, and a new coordinator, write on where the files end: no step of an epoch, no evaluation and no event is there
twice.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rljob_api import evaluations
from rljob_api.cluster import RUN_NAME_FILE, TRACKERS_FOLDER
from rljob_api.evaluations import evaluation_line
from rljob_api.spec import RLJob
from rljob_api.times import timestamp
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_api.wire.step_line import step_line
from rljob_workers.dcs.coordinator.records import MAX_EVENTS

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
_NAME_BYTES = 6
_TAIL_BYTES = 4 << 20
"""Read again at the beginning: what the coordinator still knows of events fits into it."""

Line = dict[str, Any]


class WrittenRecord:
    """Of one job. Written by one coordinator at a time; every call may block on the volume. OSError where it fails."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_step = (0, -1)
        """Epoch and step of the last line of metrics.jsonl."""
        self._evaluations: set[tuple[float, int]] = set()
        """Time and version of the last lines of evaluations.jsonl."""
        self._events: set[tuple[int, int, str]] = set()
        """Epoch, id and time of the last lines of events.jsonl."""

    def begin(self) -> None:
        """Draws the run's name, unless there is one, and finds where the files end."""
        trackers = self._folder / TRACKERS_FOLDER
        trackers.mkdir(exist_ok=True)
        name = self._folder / RUN_NAME_FILE
        if not name.exists():
            beside = name.with_name(f".{name.name}.new")
            beside.write_text(secrets.token_hex(_NAME_BYTES))
            beside.replace(name)
        for line in _tail(self._folder / METRICS):
            self._last_step = (int(line["epoch"]), int(line["step"]))
        found = evaluations.of_run(_tail(self._folder / evaluations.FILE))
        self._evaluations = {(float(line["time"]), int(line["version"])) for line in found}
        lines = _tail(self._folder / EVENTS)[-MAX_EVENTS:]
        self._events = {(int(line["epoch"]), int(line["id"]), str(line["time"])) for line in lines}

    def write(self, events: Iterable[CoordinatorEvent]) -> None:
        """Those that are not written yet. An epoch is above those before it, also over jobs, and its steps ascend."""
        for event in events:
            line, found = step_line(event, None), evaluation_line(event)
            if found is not None:
                self._write_evaluation(event, found)
            if line is not None:
                self._write_step(event, line)
            elif event.kind not in _PROGRESS:
                self._write_event(event)

    def _write_step(self, event: CoordinatorEvent, line: Mapping[str, object]) -> None:
        place = (int(event.epoch), int(str(line["step"])))
        if place > self._last_step:
            _append(self._folder / METRICS, line)
            self._last_step = place

    def _write_evaluation(self, event: CoordinatorEvent, line: Mapping[str, object]) -> None:
        key = (event.at, int(str(line["version"])))
        if key not in self._evaluations:
            _append(self._folder / evaluations.FILE, line)
            self._evaluations.add(key)

    def _write_event(self, event: CoordinatorEvent) -> None:
        at = timestamp(event.at)
        key = (int(event.epoch), event.id, at)
        if key in self._events:
            return
        line = {
            "time": at,
            "reason": str(event.kind),
            "role": None if event.pod is None else event.pod.role.value,
            "scope": None,
            "message": event.message,
            "epoch": event.epoch,
            "id": event.id,
        }
        _append(self._folder / EVENTS, line)
        self._events.add(key)


_PROGRESS = frozenset((EventKind.STEP_TRAINED, EventKind.PUBLISHED))
"""Of every step: its line says as much."""


def record_of(job: RLJob, endpoints: Endpoints) -> WrittenRecord | None:
    """The job's, where a tracker reads it."""
    return WrittenRecord(Path(endpoints.run_dir)) if job.spec.telemetry.report_to else None


def _append(file: Path, line: Mapping[str, object]) -> None:
    """One write per line: a kill can tear only the last one, which the next line then closes."""
    with file.open("a+b") as out:
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - 1))
        torn = size > 0 and out.read(1) != b"\n"
        out.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def _tail(file: Path) -> list[Line]:
    """The last whole lines; none where there is no such file."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - _TAIL_BYTES))
            parts = opened.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for part in parts:
        try:
            line = json.loads(part)
        except ValueError:  # torn by a kill, or by where reading began
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
