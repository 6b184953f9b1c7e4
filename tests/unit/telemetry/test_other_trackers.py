"""Trackio's database and W&B's offline files, read back over a restart of the job and of the process: one run."""

from __future__ import annotations

import json
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_workers.telemetry.trackers.base import TrackedRun, Tracker

pytestmark = pytest.mark.long

ID = "demo-0123456789ab"
EVENT = {"time": "now", "reason": "Ready", "message": "every role", "role": None, "scope": None}
SAMPLE = {"reward": 0.5, "epoch": 1, "prompt": "1+1", "response": "2", "responseTokens": 1, "finishReason": "stop"}


def tracked(folder: Path, next_step: int, given_lines: int, next_version: int = 0) -> TrackedRun:
    return TrackedRun(ID, "demo", {"seed": 3}, folder, next_step, next_version, given_lines)


def give(tracker: Tracker, epoch: int, *steps: int) -> None:
    for step in steps:
        tracker.step(step, {"reward/mean": 10.0 * epoch + step, "step/epoch": float(epoch)})


def database_of(project: str) -> Path:
    """Trackio's package takes its folder once, when a process imports it."""
    from trackio.sqlite_storage import SQLiteStorage

    return Path(SQLiteStorage.get_project_db_path(project))


def evaluate(tracker: Tracker, epoch: int, *versions: int) -> None:
    for version in versions:
        tracker.evaluation(version, {"eval/dev/mean@4": 10.0 * epoch + version, "evaluation/epoch": float(epoch)})


def test_trackio_has_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="the extra trackio is not installed: pip install 'rljob[trackio]'")
    from rljob_workers.telemetry.trackers.trackio_run import TrackioRun

    first = TrackioRun(tracked(tmp_path, 0, 0))
    give(first, 1, 0, 1, 2)
    first.samples(2, [SAMPLE])
    first.events(0, [EVENT])
    first.forget(2)
    give(first, 2, 2)
    first.close()
    second = TrackioRun(tracked(tmp_path, 2, 5))  # the cursor of the first lacks its last step
    give(second, 2, 2, 3)
    second.close()

    with sqlite3.connect(database_of("rljob")) as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        alerts = database.execute("SELECT title, text FROM alerts").fetchall()
        configs = database.execute("SELECT DISTINCT run_name FROM configs").fetchall()
    assert [(name, step, json.loads(text)["reward/mean"]) for name, step, text in rows] == [
        (ID, 0, 10.0),
        (ID, 1, 11.0),
        (ID, 2, 22.0),
        (ID, 3, 23.0),
    ]
    assert alerts == [("Ready", "every role")]
    assert configs == [(ID,)]


def test_trackio_has_each_evaluation_once_whatever_steps_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_PROJECT", "evaluated")
    pytest.importorskip("trackio", reason="the extra trackio is not installed: pip install 'rljob[trackio]'")
    from rljob_workers.telemetry.trackers.trackio_run import TrackioRun

    first = TrackioRun(tracked(tmp_path, 0, 0))
    give(first, 1, 0, 1, 2, 3)
    evaluate(first, 1, 0, 2, 4)
    first.forget(2)  # the job goes on from version 2, which was evaluated
    give(first, 2, 2)
    first.forget_evaluations(4)
    evaluate(first, 2, 4)
    first.close()
    second = TrackioRun(tracked(tmp_path, 3, 5, next_version=3))  # the cursor of the first lacks version 4
    evaluate(second, 2, 4)
    second.close()

    with sqlite3.connect(database_of("evaluated")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    figures = [(step, json.loads(text)) for step, text in rows]
    evaluated = [(step, row["eval/dev/mean@4"]) for step, row in figures if "eval/dev/mean@4" in row]
    assert sorted(evaluated) == [(0, 10.0), (2, 12.0), (4, 24.0)]
    trained = [(step, row["reward/mean"]) for step, row in figures if "reward/mean" in row]
    assert sorted(trained) == [(0, 10.0), (1, 11.0), (2, 22.0)]


def records(file: Path) -> Iterator[Any]:
    """Of W&B's file: LevelDB's log, blocks of 32 KiB after a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def written(folder: Path, rows: int) -> list[Any]:
    """All records below a folder once so many rows are among them: W&B's own process writes them, and outlives ours."""
    deadline = time.monotonic() + 60
    while True:
        found = [record for file in sorted(folder.rglob("*.wandb")) for record in records(file)]
        if sum(record.HasField("history") for record in found) >= rows or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_wandb_has_one_run_whose_rows_are_numbered_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    pytest.importorskip("wandb", reason="the extra wandb is not installed: pip install 'rljob[wandb]'")
    from rljob_workers.telemetry.trackers.wandb_run import WandbRun

    first = WandbRun(tracked(tmp_path, 0, 0))
    give(first, 1, 0, 1, 2)
    first.forget(2)
    give(first, 2, 2)
    first.samples(2, [SAMPLE])
    first.events(0, [EVENT])
    first.close()
    later = tmp_path / "later"  # W&B names its folders by the second
    later.mkdir()
    second = WandbRun(tracked(later, 3, 6))
    give(second, 2, 3)
    second.close()

    runs, rows = set(), []
    for record in [*written(tmp_path / "wandb", 6), *written(later, 1)]:
        if record.HasField("run"):
            runs.add(record.run.run_id)
        if record.HasField("history"):
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            rows.append((items["_step"], items.get("step"), items.get("step/epoch"), items.get("reward/mean")))
    assert runs == {ID}
    assert [row for row in rows if row[3] is not None] == [
        (0, 0, 1, 10),
        (1, 1, 1, 11),
        (2, 2, 1, 12),
        (3, 2, 2, 22),
        (6, 3, 2, 23),
    ]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4, 5, 6]


def test_wandb_draws_evaluations_over_their_version_however_late_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    pytest.importorskip("wandb", reason="the extra wandb is not installed: pip install 'rljob[wandb]'")
    from rljob_workers.telemetry.trackers.wandb_run import WandbRun

    run = WandbRun(tracked(tmp_path, 0, 0))
    evaluate(run, 1, 0)
    give(run, 1, 0, 1, 2, 3)
    evaluate(run, 1, 2)
    run.forget_evaluations(2)
    evaluate(run, 2, 2)
    run.close()

    rows, axes = [], {}
    for record in written(tmp_path, 7):
        if record.HasField("metric") and record.metric.name:
            axes[record.metric.name] = record.metric.step_metric
        if record.HasField("history"):
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            rows.append((items["_step"], items.get("evaluation/version"), items.get("eval/dev/mean@4")))
    assert [row for row in rows if row[1] is not None] == [(0, 0, 10), (5, 2, 12), (6, 2, 22)]
    assert [row[0] for row in rows] == list(range(7))
    assert axes["eval/dev/mean@4"] == axes["evaluation/epoch"] == "evaluation/version"


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.telemetry.test_other_trackers import give, tracked
from rljob_workers.telemetry.trackers.wandb_run import WandbRun

run = WandbRun(tracked(Path(sys.argv[1]), 0, 0))
give(run, 1, 0, 1, 2)
run.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_wandb_has_what_was_flushed_by_a_process_that_was_killed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    pytest.importorskip("wandb", reason="the extra wandb is not installed: pip install 'rljob[wandb]'")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL

    rows = [record.history for record in written(tmp_path, 3) if record.HasField("history")]
    items = [item for row in rows for item in row.item if (item.key or item.nested_key[0]) == "step"]
    assert [json.loads(item.value_json) for item in items] == [0, 1, 2]
