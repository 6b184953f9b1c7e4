"""What the views say: a line or a few for a step, an event, a status, the end of a run. Pure.

Used by the views alone; `metrics.jsonl` and `events.jsonl` hold the facts.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rljob_api.status import Phase, RLJobStatus
from rljob_operator.local.pace import Pace

Line = Mapping[str, Any]

SECONDS_PER_HOUR = 3600
EXACT_SECONDS = 100.0
"""Durations below this are told with a digit after the point."""

_NOT_YET = (Phase.STARTING, Phase.RESTARTING)

_HINTS = {"Draining": " (Ctrl-C again kills everything at once)"}
"""What a user at the keyboard wants to know beside the event of this reason."""


def step_text(line: Line, total: int, pace: Pace) -> str:
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
    """An event that restarted something, in a few words."""
    return f"{line['reason']} of {line['role'] or 'the job'} ({line['scope']})"


def phase_text(status: RLJobStatus) -> str:
    """The phase, and who is waited for."""
    if status.phase not in _NOT_YET:
        return status.phase
    waiting = [pod.name for role in status.roles for pod in role.pods if not pod.ready]
    return f"{status.phase}, waiting for {', '.join(waiting)}" if waiting else status.phase


def status_text(status: RLJobStatus) -> str:
    """A sign of life."""
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
        first, last = number(summary["rewardFirst"]), number(summary["rewardLast"])
        rows += [
            ("reward", f"{first} -> {last} (means of the first and last ten steps)"),
            ("steps", f"{summary['steps']}, {number(summary['samplesPerSecond'])} samples/s"),
        ]
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


def remaining(steps: int, pace: Pace) -> str:
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
