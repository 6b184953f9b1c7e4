"""Trackio: a run in its database on this machine (`TRACKIO_DIR`), or at the Space or server that its variables name.

Steps and evaluations that come again replace the earlier ones in the database of this machine: their rows are deleted.
A Space or a server has both, of which the later one has the higher `step/epoch` or `evaluation/epoch`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing

import trackio
from trackio.sqlite_storage import SQLiteStorage

from rljob_workers.telemetry.trackers.base import Line, TrackedRun, Tracker

PROJECT = "TRACKIO_PROJECT"
COLUMNS = ("epoch", "reward", "prompt", "response", "responseTokens", "finishReason", "advantage")
"""Columns of a table of samples."""
_EVALUATIONS = """json_type(CAST(metrics AS TEXT), '$."evaluation/epoch"') IS NOT NULL"""
_STEPS = f"NOT ({_EVALUATIONS})"
"""Rows of both have a number in the column `step`."""


class TrackioRun(Tracker):
    """A run by the name `JOB-ID`, in the project of TRACKIO_PROJECT, or `rljob`."""

    def __init__(self, run: TrackedRun) -> None:
        self._tracked = run
        self._project = os.environ.get(PROJECT) or "rljob"
        if run.given_lines:  # a process that died may have given more than its cursor says
            self._delete(_STEPS, run.next_step)
            self._delete(_EVALUATIONS, run.next_version)
        self._run = self._open()

    def forget(self, step: int) -> None:
        """See the base."""
        self._give_again(_STEPS, step)

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """See the base."""
        self._run.log(dict(figures), step=step)

    def forget_evaluations(self, version: int) -> None:
        """See the base."""
        self._give_again(_EVALUATIONS, version)

    def evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        """See the base. Its step is the version."""
        self._run.log(dict(figures), step=version)

    def samples(self, step: int, samples: Sequence[Line]) -> None:
        """See the base."""
        table = trackio.Table(columns=list(COLUMNS), data=[[line.get(name) for name in COLUMNS] for line in samples])
        self._run.log({"samples": table}, step=step)

    def events(self, first: int, events: Sequence[Line]) -> None:
        """See the base. As alerts, of the lowest level: its own are for what a user must see."""
        del first
        for line in events:
            self._run.alert(title=line["reason"], text=line["message"], level=trackio.AlertLevel.INFO)

    def flush(self) -> None:
        """See the base. Its threads write within a second; only an end waits for them."""
        self._run.finish()
        self._run = self._open()

    def close(self) -> None:
        """See the base."""
        self._run.finish()

    def _open(self) -> trackio.Run:
        return trackio.init(
            project=self._project,
            name=self._tracked.id,
            config=dict(self._tracked.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _give_again(self, rows: str, step: int) -> None:
        self._run.finish()
        self._delete(rows, step)
        self._run = self._open()

    def _delete(self, rows: str, step: int) -> None:
        file = SQLiteStorage.get_project_db_path(self._project)
        if not file.exists():
            return
        with closing(sqlite3.connect(file, timeout=30.0)) as database, database:
            statement = f"DELETE FROM metrics WHERE run_name = ? AND step >= ? AND {rows}"  # noqa: S608 - one of ours
            database.execute(statement, (self._tracked.id, step))
