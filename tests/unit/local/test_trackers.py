"""A tracker whose process dies costs a run nothing, and an event says so; at the end it is waited for in bounds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.spec import Tracker
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.trackers import Trackers

MISSING = Tracker.TRACKIO
DEADLINE_SECONDS = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Of a run without a manifest, which no tracker's process can follow."""
    (tmp_path / "logs").mkdir()
    opened = RunFolder.open(tmp_path, fresh=False)
    yield opened
    opened.close()


async def until_reported(messages: list[str]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not messages and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def test_a_process_that_dies_is_reported_once_and_not_waited_for(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"step": 0}\n')
    messages: list[str] = []

    async def job() -> None:
        trackers = Trackers([MISSING, MISSING], folder, messages.append)
        trackers.start()
        await until_reported(messages)
        await trackers.finish(patience=0.0)

    asyncio.run(job())
    first, last = messages
    assert first.startswith("telemetry.reportTo: trackio: its process ended with 1: ")
    assert last == (
        "telemetry.reportTo: trackio: it has not got all of metrics.jsonl. `python -m rljob_workers.telemetry.trackers"
        f" {folder.path} trackio --once` gives it the rest. The job does not wait for it."
    )


def test_one_that_stands_still_is_ended_and_reported(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"step": 0}\n')
    os.mkfifo(folder.path / "job.json")  # no one writes to it, so that its reader hangs
    messages: list[str] = []

    async def job() -> None:
        trackers = Trackers([MISSING], folder, messages.append, still_seconds=1.0)
        trackers.start()
        await until_reported(messages)
        await trackers.finish(patience=0.0)

    asyncio.run(job())
    assert messages[0] == "telemetry.reportTo: trackio: it has taken nothing for 1 s. The job does not wait for it."


def test_a_run_that_has_written_nothing_starts_none(folder: RunFolder) -> None:
    messages: list[str] = []

    async def job() -> None:
        trackers = Trackers([MISSING], folder, messages.append)
        trackers.start()
        await asyncio.sleep(0)
        await trackers.finish(patience=0.0)

    asyncio.run(job())
    assert messages == []
    assert not (folder.path / "logs/tracker-trackio.log").exists()
