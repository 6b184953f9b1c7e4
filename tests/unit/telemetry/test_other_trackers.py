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


def tracked(folder: Path, next_step: int, given_lines: int) -> TrackedRun:
    return TrackedRun(ID, "demo", {"seed": 3}, folder, next_step, given_lines)


def give(tracker: Tracker, epoch: int, *steps: int) -> None:
    for step in steps:
        tracker.step(step, {"reward/mean": 10.0 * epoch + step, "step/epoch": float(epoch)})


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

    with sqlite3.connect(tmp_path / "trackio/rljob.db") as database:
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
    second = WandbRun(tracked(tmp_path, 3, 6))
    give(second, 2, 3)
    second.close()

    runs, rows = set(), []
    for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        for record in records(file):
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

    def steps() -> list[int]:
        (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        rows = [record.history for record in records(file) if record.HasField("history")]
        items = [item for row in rows for item in row.item if (item.key or item.nested_key[0]) == "step"]
        return [json.loads(item.value_json) for item in items]

    deadline = time.monotonic() + 60  # its own process writes them, and outlives ours
    while steps() != [0, 1, 2] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert steps() == [0, 1, 2]
