"""What the user sees while a job runs: a live table on a terminal, plain lines elsewhere, JSON lines for programs.

A view is told what happened and draws it; it asks nobody and decides nothing.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TextIO

from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus
from rljob_operator.local.pace import Pace
from rljob_operator.local.sentences import (
    Line,
    event_text,
    headline,
    phase_text,
    status_text,
    step_text,
    summary_rows,
    time_of_day,
)

STEP_LINE_SECONDS = 1.0
"""Plain lines: of the steps within this long only one is told. metrics.jsonl has all of them."""
SIGN_OF_LIFE_SECONDS = 30.0
"""Plain lines: a line this often while nothing happens."""


class View(ABC):
    """Told by the supervisor, in the order in which things happen."""

    @abstractmethod
    def open(self, job: RLJob, out: str) -> None:
        """The run begins."""

    @abstractmethod
    def event(self, line: Line) -> None:
        """A line of events.jsonl."""

    @abstractmethod
    def step(self, line: Line) -> None:
        """A line of metrics.jsonl."""

    @abstractmethod
    def status(self, status: RLJobStatus) -> None:
        """The status as it is now; after every decision."""

    @abstractmethod
    def close(self, summary: Line) -> None:
        """The run is over."""


class PlainView(View):
    """One line a fact, for logs and pipes."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._said_at = clock()
        self._step_at = -STEP_LINE_SECONDS
        self._pace = Pace()
        self._total = 0
        self._waiting = ""
        self._last_message = ""

    def open(self, job: RLJob, out: str) -> None:
        """Names the job and its folder."""
        self._total = job.spec.rollout.num_rollouts
        self._say(time.time(), f"{job.metadata.name}: {self._total} rollouts to train; files are in {out}")

    def event(self, line: Line) -> None:
        """Reason and sentence."""
        self._last_message = line["message"]
        self._say(line["time"], event_text(line))

    def step(self, line: Line) -> None:
        """The numbers of a step, if the last line of a step is old enough; of the last step always."""
        self._pace.add(line)
        is_last = line["step"] + 1 == self._total
        if is_last or self._clock() - self._step_at >= STEP_LINE_SECONDS:
            self._step_at = self._clock()
            self._say(line["time"], step_text(line, self._total, self._pace))

    def status(self, status: RLJobStatus) -> None:
        """Who is waited for, when that is news; else only when nothing was said for long."""
        waiting = phase_text(status) if status.phase in (Phase.STARTING, Phase.RESTARTING) else ""
        if self._clock() - self._said_at < (STEP_LINE_SECONDS if waiting != self._waiting else SIGN_OF_LIFE_SECONDS):
            return
        if waiting or waiting == self._waiting:
            self._say(time.time(), status_text(status))
        self._waiting = waiting

    def close(self, summary: Line) -> None:
        """The summary; why it ended was told by the last event, unless there was none."""
        if summary["message"] != self._last_message:
            self._say(time.time(), headline(summary))
        for name, value in summary_rows(summary):
            self._out.write(f"  {name}: {value}\n")
        self._out.flush()

    def _say(self, at: object, text: str) -> None:
        self._said_at = self._clock()
        self._out.write(f"{time_of_day(at)} {text}\n")
        self._out.flush()


class JsonView(View):
    """One JSON object a line: events, steps, and last the result."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def open(self, job: RLJob, out: str) -> None:
        """With kind `start`."""
        self._write("start", {"name": job.metadata.name, "out": out, "totalSteps": job.spec.rollout.num_rollouts})

    def event(self, line: Line) -> None:
        """With kind `event`."""
        self._write("event", line)

    def step(self, line: Line) -> None:
        """With kind `step`."""
        self._write("step", line)

    def status(self, status: RLJobStatus) -> None:
        """Programs read status.json."""

    def close(self, summary: Line) -> None:
        """With kind `result`."""
        self._write("result", summary)

    def _write(self, kind: str, line: Line) -> None:
        self._out.write(json.dumps({"kind": kind, **line}) + "\n")
        self._out.flush()


def make_view(output: str) -> View:
    """Live on a terminal, plain lines where not, JSON lines when asked for."""
    if output == "json":
        return JsonView(sys.stdout)
    if not sys.stdout.isatty():
        return PlainView(sys.stdout)
    from rich.console import Console  # here, since only a terminal needs what draws

    from rljob_operator.local.live_view import LiveView

    return LiveView(Console(highlight=False))
