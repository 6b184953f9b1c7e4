"""Output of `rljob run`: plain or JSON lines, their sentences and the rates over the last steps.

The journal passes lines and status to a view, which prints them. A view requests and decides nothing; the live table
is in `live_view`, since only a terminal needs rich.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, TextIO

from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus

WINDOW_STEPS = 10


class StepRates:
    """Means over the last ten steps of an epoch; None until there are two to measure between."""

    def __init__(self) -> None:
        """Before the first step."""
        self._window: deque[Mapping[str, Any]] = deque(maxlen=WINDOW_STEPS + 1)
        self._first_rewards: list[float] = []
        self._num_steps = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """One more step. A new epoch is measured from its own first step, without the gap before it."""
        if self._window and self._window[-1]["epoch"] != line["epoch"]:
            self._window.clear()
        self._window.append(line)
        self._num_steps += 1
        if len(self._first_rewards) < WINDOW_STEPS:
            self._first_rewards.append(line["reward"])

    @property
    def reward(self) -> float | None:
        """Mean of the last steps."""
        return fmean(line["reward"] for line in list(self._window)[-WINDOW_STEPS:]) if self._window else None

    @property
    def first_reward(self) -> float | None:
        """Mean of the first ten steps, once none of them is one of the last ten."""
        return fmean(self._first_rewards) if self._num_steps >= 2 * WINDOW_STEPS else None

    @property
    def samples_per_second(self) -> float | None:
        """From the end of one step to the end of another."""
        return self._rate("samples")

    @property
    def tokens_per_second(self) -> float | None:
        """Likewise."""
        return self._rate("tokens")

    @property
    def seconds_per_step(self) -> float | None:
        """Likewise."""
        seconds = self._seconds()
        return seconds / (len(self._window) - 1) if seconds is not None else None

    def _rate(self, counted: str) -> float | None:
        seconds = self._seconds()
        return sum(line[counted] for line in list(self._window)[1:]) / seconds if seconds is not None else None

    def _seconds(self) -> float | None:
        if len(self._window) < 2:
            return None
        return max(float(self._window[-1]["time"] - self._window[0]["time"]), 1e-9)


Line = Mapping[str, Any]


SECONDS_PER_HOUR = 3600


EXACT_SECONDS = 100.0
"""Durations below this are printed with a digit after the point."""


_NOT_YET = (Phase.STARTING, Phase.RESTARTING)


_HINTS = {"Draining": " (Ctrl-C again kills everything at once)"}
"""What a user at the keyboard wants to know beside the event of this reason."""


def step_text(line: Line, total: int, pace: StepRates) -> str:
    """A step in one line, with the pace of the last ten."""
    done = int(line["step"]) + 1
    return (
        f"step {done}/{total}  reward {number(line['reward'])}  staleness {line['staleness']}  "
        f"queue {number(line['queueDepth'])}  {number(pace.samples_per_second)} samples/s  "
        f"{remaining(total - done, pace)} left"
    )


def event_text(line: Line) -> str:
    """An event in one line."""
    scope = f" [{line['scope']}]" if line.get("scope") else ""
    return f"{line['reason']}{scope}: {line['message']}{_HINTS.get(str(line['reason']), '')}"


def restart_text(line: Line) -> str:
    """An event that restarted something, in short."""
    return f"{line['reason']} of {line['role'] or 'the job'} ({line['scope']})"


def phase_text(status: RLJobStatus) -> str:
    """The phase, and who is waited for."""
    if status.phase not in _NOT_YET:
        return status.phase
    waiting = [pod.name for role in status.roles for pod in role.pods if not pod.ready]
    return f"{status.phase}, waiting for {', '.join(waiting)}" if waiting else status.phase


def status_text(status: RLJobStatus) -> str:
    """Phase and progress in one line."""
    training = status.training
    if status.phase in _NOT_YET:
        return phase_text(status)
    return (
        f"{phase_text(status)}; step {steps_done(status)}/{training.total_steps}, queue {training.queue_depth} groups"
    )


def steps_done(status: RLJobStatus) -> int:
    """How many rollouts are trained."""
    return 0 if status.training.step is None else status.training.step + 1


def headline(summary: Line) -> str:
    """How the run ended and why."""
    return f"{summary['phase']}: {summary['message']}"


def summary_rows(summary: Line) -> list[tuple[str, str]]:
    """The end of a run as names and values."""
    rows = []
    if summary["steps"]:
        rows += [
            ("reward", _rewards(summary)),
            ("steps", f"{summary['steps']}, {number(summary['samplesPerSecond'])} samples/s"),
        ]
    rows += [("warning", event_text(trouble)) for trouble in summary["troubles"]]
    if summary["evaluation"]:
        rows.append(("evaluation", f"{summary['evaluation']} (mean rewards @ version)"))
    if summary["seconds"]:
        rows.append(("time", duration(summary["seconds"])))
    rows.append(("restarts", f"{summary['globalRestarts']} of the whole job"))
    if summary["checkpoint"] is not None:
        rows.append(("checkpoint", f"version {summary['checkpoint']}"))
    rows.append(("files", str(summary["out"])))
    if summary["phase"] == Phase.FAILED.value:
        rows.append(("details", "events.jsonl has every decision, logs/ the last words of every process"))
    if summary["resume"]:
        rows.append(("resume with", str(summary["resume"])))
    return rows


def _rewards(summary: Line) -> str:
    """Rewards of the beginning and of the end, which share no step."""
    first, last, window = number(summary["rewardFirst"]), number(summary["rewardLast"]), summary["rewardSteps"]
    if summary["steps"] == 1:
        return f"{last} (of the only step)"
    if window == 1:
        return f"{first} -> {last} (of the first and the last step)"
    return f"{first} -> {last} (means of the first and last {window} steps)"


def remaining(steps: int, pace: StepRates) -> str:
    """How long so many steps will take at this pace."""
    return "-" if pace.seconds_per_step is None else clock_text(steps * pace.seconds_per_step)


def clock_text(seconds: float) -> str:
    """As 1:05 or 2:00:07."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """As 24.9 s or 2:00 minutes."""
    if seconds < EXACT_SECONDS:
        return f"{seconds:.1f} s"
    return clock_text(seconds) + (" hours" if seconds >= SECONDS_PER_HOUR else " minutes")


def time_of_day(at: object) -> str:
    """Of a line of events.jsonl (text, UTC) or metrics.jsonl (seconds), where the user is."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(float(str(at)), UTC)
    return moment.astimezone().strftime("%H:%M:%S")


def number(value: object) -> str:
    """Four digits are enough to compare."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


STEP_LINE_SECONDS = 1.0
"""Plain lines: of the steps within this long only one is printed. metrics.jsonl has all of them."""


LONGEST_SILENCE_SECONDS = 30.0
"""Plain lines: a line this often while nothing happens."""


class View(ABC):
    """Output of one run; the journal calls it in the order in which things happen."""

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
        self._printed_at = clock()
        self._step_at = -STEP_LINE_SECONDS
        self._pace = StepRates()
        self._total = 0
        self._waiting = ""
        self._last_message = ""

    def open(self, job: RLJob, out: str) -> None:
        """Names the job and its folder."""
        self._total = job.spec.rollout.num_rollouts
        self._print(time.time(), f"{job.metadata.name}: {self._total} rollouts to train; files are in {out}")

    def event(self, line: Line) -> None:
        """Reason and sentence."""
        self._last_message = line["message"]
        self._print(line["time"], event_text(line))

    def step(self, line: Line) -> None:
        """The numbers of a step, if the last line of a step is old enough; of the last step always."""
        self._pace.add(line)
        is_last = line["step"] + 1 == self._total
        if is_last or self._clock() - self._step_at >= STEP_LINE_SECONDS:
            self._step_at = self._clock()
            self._print(line["time"], step_text(line, self._total, self._pace))

    def status(self, status: RLJobStatus) -> None:
        """Who is waited for, when that is news; else only when nothing was printed for long."""
        waiting = phase_text(status) if status.phase in (Phase.STARTING, Phase.RESTARTING) else ""
        if self._clock() - self._printed_at < (
            STEP_LINE_SECONDS if waiting != self._waiting else LONGEST_SILENCE_SECONDS
        ):
            return
        if waiting or waiting == self._waiting:
            self._print(time.time(), status_text(status))
        self._waiting = waiting

    def close(self, summary: Line) -> None:
        """The summary; the last event named the cause of the end, unless there was none."""
        if summary["message"] != self._last_message:
            self._print(time.time(), headline(summary))
        for name, value in summary_rows(summary):
            self._out.write(f"  {name}: {value}\n")
        self._out.flush()

    def _print(self, at: object, text: str) -> None:
        self._printed_at = self._clock()
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
