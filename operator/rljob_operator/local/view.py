"""What the user sees while a job runs: a live table on a terminal, plain lines elsewhere, JSON lines for programs.

A view is told what happened and draws it; it asks nobody and decides nothing.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_api.status import Phase, RLJobStatus

Line = Mapping[str, object]

STATUS_LINE_SECONDS = 5.0
"""Plain lines: a sign of life this often while no step is trained."""


class View(ABC):
    """Told by the supervisor, in the order in which things happen."""

    @abstractmethod
    def open(self, name: str, out: str) -> None:
        """The run begins."""

    @abstractmethod
    def event(self, line: Line) -> None:
        """A line of events.jsonl."""

    @abstractmethod
    def step(self, line: Line) -> None:
        """A line of metrics.jsonl."""

    @abstractmethod
    def status(self, status: RLJobStatus) -> None:
        """The status as it is now; about once a second."""

    @abstractmethod
    def close(self, summary: Line) -> None:
        """The run is over."""


class PlainView(View):
    """One line a fact, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = time.monotonic()
        self._total = 0

    def open(self, name: str, out: str) -> None:
        """Names the job and its folder."""
        self._say(f"{name}: starting, files are in {out}")

    def event(self, line: Line) -> None:
        """Reason and sentence."""
        self._say(event_text(line))

    def step(self, line: Line) -> None:
        """The numbers of a step."""
        self._say(step_text(line, self._total))

    def status(self, status: RLJobStatus) -> None:
        """Only when nothing else was said for a while."""
        self._total = status.training.total_steps
        if time.monotonic() - self._last >= STATUS_LINE_SECONDS:
            self._say(status_text(status))

    def close(self, summary: Line) -> None:
        """The summary."""
        self._say(summary_text(summary))

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        self._out.write(text + "\n")
        self._out.flush()


class JsonView(View):
    """One JSON object a line: events, steps, and last the result."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def open(self, name: str, out: str) -> None:
        """With kind `start`."""
        self._write("start", {"name": name, "out": out})

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


class LiveView(View):
    """A table that redraws itself; events scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._name = ""
        self._status = RLJobStatus()
        self._step: Line = {}
        self._restarts: list[str] = []

    def open(self, name: str, out: str) -> None:
        """Starts to draw."""
        self._name = name
        self._console.print(f"[bold]{name}[/bold]: files are in {out}", highlight=False)
        self._live.start()

    def event(self, line: Line) -> None:
        """Scrolls by; restarts also stay in the table."""
        self._console.print(Text(event_text(line)))
        if line.get("scope"):
            restart = f"{line['reason']} of {line['role'] or 'the job'} ({line['scope']})"
            self._restarts = [*self._restarts, restart][-3:]

    def step(self, line: Line) -> None:
        """Into the table."""
        self._step = line
        self._live.update(self._draw())

    def status(self, status: RLJobStatus) -> None:
        """Into the table."""
        self._status = status
        self._live.update(self._draw())

    def close(self, summary: Line) -> None:
        """Stops to draw; the summary stays."""
        self._live.stop()
        self._console.print(Text(summary_text(summary)))

    def _draw(self) -> Group:
        training = self._status.training
        done = (training.step + 1) if training.step is not None else 0
        bar = ProgressBar(total=max(training.total_steps, 1), completed=done, width=40)
        table = Table.grid(padding=(0, 2))
        table.add_row("phase", _phase_text(self._status))
        table.add_row("step", f"{done}/{training.total_steps}")
        table.add_row("reward", _number(self._step.get("reward")))
        table.add_row("staleness", f"{training.staleness.current} (largest {training.staleness.max})")
        table.add_row("queue", f"{training.queue_depth} groups")
        table.add_row("samples/s", _number(training.samples_per_second))
        restarts = ", ".join(self._restarts) or "none"
        table.add_row("restarts", f"{self._status.restart.global_restarts} global; last: {restarts}")
        return Group(Text(f"{self._name}, epoch {self._status.restart.epoch}"), bar, table)


def make_view(output: str) -> View:
    """Live on a terminal, plain lines where not, JSON lines when asked for."""
    if output == "json":
        return JsonView(sys.stdout)
    console = Console()
    return LiveView(console) if console.is_terminal else PlainView(sys.stdout)


def step_text(line: Line, total: int) -> str:
    """A step in one line."""
    return (
        f"step {int(str(line['step'])) + 1}/{total}  reward {_number(line['reward'])}  loss {_number(line['loss'])}  "
        f"staleness {line['staleness']}  queue {line['queueDepth']}  "
        f"{_number(line['samplesPerSecond'])} samples/s  epoch {line['epoch']}"
    )


def event_text(line: Line) -> str:
    """An event in one line."""
    scope = f" [{line['scope']}]" if line.get("scope") else ""
    return f"{line['reason']}{scope}: {line['message']}"


def status_text(status: RLJobStatus) -> str:
    """A sign of life."""
    training = status.training
    done = (training.step + 1) if training.step is not None else 0
    return f"{_phase_text(status)}; step {done}/{training.total_steps}, queue {training.queue_depth} groups"


def summary_text(summary: Line) -> str:
    """The end of a run, in a few lines."""
    lines = [f"{summary['phase']}: {summary['message']}"]
    if summary["steps"]:
        first, last = _number(summary["rewardFirst"]), _number(summary["rewardLast"])
        lines.append(f"reward {first} -> {last} (means of the first and last ten steps) in {summary['steps']} steps")
    lines.append(f"time {_number(summary['seconds'])} s, global restarts {summary['globalRestarts']}")
    lines.append(f"files {summary['out']}")
    if summary["resume"]:
        lines.append(f"resume with: {summary['resume']}")
    return "\n".join(lines)


def _phase_text(status: RLJobStatus) -> str:
    if status.phase not in (Phase.STARTING, Phase.RESTARTING):
        return status.phase.value
    waiting = [pod.name for role in status.roles for pod in role.pods if not pod.ready]
    return f"{status.phase.value}, waiting for {', '.join(waiting)}" if waiting else status.phase.value


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)
