"""The view on a terminal: a table that redraws itself below the events, which scroll by.

Made by `make_view`. Draws from the values that it received; the drawing thread only reads them.
"""

import time
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus
from rljob_operator.local.view import (
    Line,
    StepRates,
    View,
    clock_text,
    event_text,
    headline,
    number,
    phase_text,
    remaining,
    restart_text,
    steps_done,
    summary_rows,
    time_of_day,
)

SHOWN_RESTARTS = 3

_STYLES = {
    Phase.RUNNING.value: "green",
    Phase.SUCCEEDED.value: "bold green",
    Phase.FAILED.value: "bold red",
}
_OTHER_STYLE = "yellow"


class LiveView(View):
    """Progress bar, figures, restarts."""

    def __init__(self, console: Console) -> None:
        """Draws nothing yet."""
        self._console = console
        self._name, self._total, self._bound, self._capacity = "", 0, 0, 0
        self._started_at = time.monotonic()
        self._status = RLJobStatus()
        self._step: Line = {}
        self._pace = StepRates()
        self._restarts: deque[Line] = deque(maxlen=SHOWN_RESTARTS)
        self._num_restarts = 0
        self._last_message = ""
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._draw)

    def open(self, job: RLJob, out: str) -> None:
        """Starts to draw."""
        rollout = job.spec.rollout
        self._name, self._total, self._bound = job.metadata.name, rollout.num_rollouts, rollout.max_staleness
        self._capacity = rollout.capacity
        self._console.print(Text.assemble((self._name, "bold"), f": files are in {out}"))
        self._live.start()

    def event(self, line: Line) -> None:
        """Scrolls by; restarts also stay in the table."""
        self._last_message = line["message"]
        self._console.print(_columns([(time_of_day(line["time"]), Text(event_text(line), _event_style(line)))]))
        if line.get("scope"):
            self._restarts.append(line)
            self._num_restarts += 1

    def step(self, line: Line) -> None:
        """Into the table."""
        self._step = line
        self._pace.add(line)

    def status(self, status: RLJobStatus) -> None:
        """Into the table."""
        self._status = status

    def close(self, summary: Line) -> None:
        """Stops to draw; the summary stays. The last event named the cause of the end, unless there was none."""
        self._live.stop()
        if summary["message"] != self._last_message:
            self._console.print(Text(headline(summary), _STYLES.get(str(summary["phase"]), _OTHER_STYLE)))
        self._console.print(_columns([(name, Text(value)) for name, value in summary_rows(summary)]))

    def _draw(self) -> RenderableType:
        status, step, pace = self._status, self._step, self._pace
        training = status.training
        done = max(steps_done(status), int(step.get("step", -1)) + 1)
        phase = Text(phase_text(status), _STYLES.get(status.phase, _OTHER_STYLE))
        rows: list[tuple[str, Text]] = [
            ("phase", phase),
            ("epoch", Text(str(status.restart.epoch))),
            ("reward", _with_note(number(pace.reward), _reward_note(pace))),
            ("samples/s", _with_note(number(pace.samples_per_second), f"{number(pace.tokens_per_second)} tokens/s")),
            ("staleness", _with_note(str(step.get("staleness", "-")), f"at most {self._bound} allowed")),
            ("queue", _with_note(str(training.queue_depth), f"of {self._capacity} groups, from ticket to training")),
            ("restarts", _with_note(str(self._num_restarts), f"{status.restart.global_restarts} of the whole job")),
        ]
        rows += [("", Text(f"{time_of_day(line['time'])} {restart_text(line)}", "dim")) for line in self._restarts]
        return Group("", self._bar(done), _columns(rows))

    def _bar(self, done: int) -> Table:
        """Name, bar, step and time: one line of the terminal's width."""
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        left = remaining(self._total - done, self._pace)
        elapsed = clock_text(time.monotonic() - self._started_at)
        bar = ProgressBar(total=max(self._total, 1), completed=done)
        line.add_row(Text(self._name, "bold"), bar, f"step {done}/{self._total}", f"{elapsed}, {left} left")
        return line


def _columns(rows: list[tuple[str, Text]]) -> Table:
    """Names and what belongs to them, which wraps in its own column."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column()
    for name, text in rows:
        grid.add_row(name, text)
    return grid


def _with_note(value: str, note: str) -> Text:
    return Text.assemble(f"{value:<8}", (note, "dim"))


def _reward_note(pace: StepRates) -> str:
    first = f", of the first ten {number(pace.first_reward)}" if pace.first_reward is not None else ""
    return f"mean of the last ten steps{first}"


def _event_style(line: Line) -> str:
    if line.get("scope"):
        return _OTHER_STYLE
    return _STYLES.get(str(line["reason"]), "default")
