"""What a run writes down: status, events, metrics, and after its end the merged timeline and the summary.

The status is written before the event that reports it, and both before any action.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rljob_api import evaluations
from rljob_api.evaluations import evaluation_line
from rljob_api.status import Phase, RLJobStatus
from rljob_api.times import timestamp
from rljob_api.wire.observation import CoordinatorEvent, EventKind, QueueObservation
from rljob_api.wire.step_line import step_line
from rljob_operator.core import Decision, Event
from rljob_operator.core.conditions import terminal
from rljob_operator.core.notices import reported
from rljob_operator.core.reasons import TROUBLES
from rljob_operator.local.run_record import append_line, read_lines, replace_file
from rljob_operator.local.view import View


def merge_timeline(run: Path) -> Path:
    """Writes `timeline.json`, an array of trace events in order of time; lines torn by a kill are left out."""
    events = [event for part in sorted((run / "timeline").glob("*.jsonl")) for event in read_lines(part)]
    events.sort(key=lambda event: (event.get("ph") != "M", event.get("ts", 0)))
    target = run / "timeline.json"
    with target.open("w") as out:
        out.write("[\n")
        out.write(",\n".join(json.dumps(event, separators=(",", ":")) for event in events))
        out.write("\n]\n")
    return target


REWARD_WINDOW = 10
"""Steps whose rewards are averaged, of runs that are long enough: a single step's reward is noise."""


def summary(run: Path, status: RLJobStatus, seconds: float, resume: str) -> dict[str, object]:
    """A line for the view. Steps of epochs that were taken back do not count."""
    ended = terminal(status)
    steps = _steps(run)
    rewards = [float(line["reward"]) for line in steps]
    window = max(1, min(REWARD_WINDOW, len(steps) // 2))  # no step is in both
    trained = sum(line["seconds"] for line in steps)
    return {
        "phase": status.phase,
        "reason": ended.reason if ended is not None else "Killed",
        "message": ended.message if ended is not None else "everything was killed on the second request to stop",
        "steps": len(steps),
        "rewardFirst": _mean(rewards[:window]),
        "rewardLast": _mean(rewards[-window:]),
        "rewardSteps": window,
        "samplesPerSecond": sum(line["samples"] for line in steps) / trained if trained else None,
        "seconds": round(seconds, 1),
        "epoch": status.restart.epoch,
        "evaluation": "" if status.evaluation is None else status.evaluation.summary,
        "checkpoint": status.training.checkpoint,
        "globalRestarts": status.restart.global_restarts,
        "troubles": _troubles(run),
        "out": str(run),
        "resume": "" if status.phase is Phase.SUCCEEDED else resume,
    }


def _troubles(run: Path) -> list[dict[str, str]]:
    """Troubles that the steps of the run have shown, before it was resumed as well: reason and message, each once."""
    lines = [(line["reason"], line["message"]) for line in read_lines(run / "events.jsonl")]
    shown = dict.fromkeys(one for one in lines if one[0] in TROUBLES)
    return [{"reason": reason, "message": message} for reason, message in shown]


def _steps(run: Path) -> list[dict[str, Any]]:
    """Those that stand: a line is void once a later one is of its step or of one before it."""
    standing: list[dict[str, Any]] = []
    for line in reversed(list(read_lines(run / "metrics.jsonl"))):
        if not standing or line["step"] < standing[-1]["step"]:
            standing.append(line)
    return standing[::-1]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


PROGRESS_SECONDS = 1.0
"""Progress alone rewrites status.json this often."""


class Journal:
    """Writes status, events and metrics of one start, and passes them to the view."""

    def __init__(self, run: Path, view: View, status: RLJobStatus) -> None:
        """`run` is the folder of the run, `status` the last one that was written there."""
        self._run = run
        self._view = view
        self._steps: dict[int, list[int]] | None = None
        """Epochs by step, of the lines in metrics.jsonl; None until they were read."""
        self._written_at = 0.0
        self._unwritten = False
        self._started_at = time.time()
        self.status = status
        """As last persisted."""
        self.queue: QueueObservation | None = None
        """As last observed."""

    def persist(self, decision: Decision) -> None:
        """Durably where something was decided; progress now and then."""
        decided = bool(decision.events) or decision.status.restart != self.status.restart
        self._unwritten = self._unwritten or decision.status != self.status
        self.status = decision.status
        now = time.monotonic()
        if decided or (self._unwritten and now - self._written_at >= PROGRESS_SECONDS):
            self._write_status(durable=decided)
            self._written_at = now
            self._unwritten = False
        for event in decision.events:
            self.emit(event)
        self._view.status(decision.status)

    def begin(self, status: RLJobStatus, event: Event) -> None:
        """The first status of a start."""
        self.status = status
        self.flush()
        self.emit(event)

    def flush(self) -> None:
        """Writes the status durably."""
        self._write_status(durable=True)

    def emit(self, event: Event) -> None:
        """An event of the core."""
        role = event.role.value if event.role is not None else None
        scope = event.scope.value if event.scope is not None else None
        self.note(event.time, event.reason.value, event.message, role=role, scope=scope)

    def note(self, at: float, reason: str, message: str, *, role: str | None = None, scope: str | None = None) -> None:
        """A line of events.jsonl."""
        line = {"time": timestamp(at), "reason": reason, "role": role, "scope": scope, "message": message}
        append_line(self._run / "events.jsonl", line)
        self._view.event(line)

    def record(self, event: CoordinatorEvent) -> None:
        """An event of the coordinator. A step that is replayed is written once."""
        line = step_line(event, self.queue) if event.kind is EventKind.STEP_TRAINED else None
        if line is not None:
            self._record_step(line)
        found = evaluation_line(event)
        if found is not None:
            self._record_evaluation(found)
        ours = reported(event, self.status)
        if ours is not None and event.at >= self._started_at:
            self.emit(ours)

    def _record_step(self, line: dict[str, object]) -> None:
        """A step that is trained again after a restart is a new line, with the epoch of the line that it replaces."""
        file, epoch, step = self._run / "metrics.jsonl", int(str(line["epoch"])), int(str(line["step"]))
        if self._steps is None:
            self._steps = {}
            for before in read_lines(file):
                self._steps.setdefault(before["step"], []).append(before["epoch"])
        epochs = self._steps.setdefault(step, [])
        if epoch in epochs:
            return
        if epochs:
            line = {**line, "restates": epochs[-1]}
        append_line(file, line)
        epochs.append(epoch)
        self._view.step(line)

    def _record_evaluation(self, line: dict[str, object]) -> None:
        """One that is replayed is written once."""
        file = self._run / evaluations.FILE
        if (line["time"], line["version"]) not in {(before["time"], before["version"]) for before in read_lines(file)}:
            append_line(file, line)

    def _write_status(self, *, durable: bool) -> None:
        data = self.status.model_dump_json(by_alias=True, indent=2).encode()
        replace_file(self._run / "status.json", data, durable=durable)
