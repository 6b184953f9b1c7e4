"""The summary of a run: what its user wants to know when it is over."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rljob_api.status import Phase, RLJobStatus
from rljob_operator.core.conditions import terminal
from rljob_operator.local.run_files import read_lines

REWARD_WINDOW = 10
"""Steps whose rewards are averaged: a single step's reward is noise."""


def summary(run: Path, status: RLJobStatus, seconds: float, resume: str) -> dict[str, object]:
    """A line for the view. Steps of epochs that were taken back do not count."""
    ended = terminal(status)
    steps = _steps(run)
    rewards = [float(line["reward"]) for line in steps]
    trained = sum(line["seconds"] for line in steps)
    return {
        "phase": status.phase,
        "reason": ended.reason if ended is not None else "Killed",
        "message": ended.message if ended is not None else "everything was killed on the second request to stop",
        "steps": len(steps),
        "rewardFirst": _mean(rewards[:REWARD_WINDOW]),
        "rewardLast": _mean(rewards[-REWARD_WINDOW:]),
        "samplesPerSecond": sum(line["samples"] for line in steps) / trained if trained else None,
        "seconds": round(seconds, 1),
        "epoch": status.restart.epoch,
        "checkpoint": status.training.checkpoint,
        "globalRestarts": status.restart.global_restarts,
        "out": str(run),
        "resume": "" if status.phase is Phase.SUCCEEDED else resume,
    }


def _steps(run: Path) -> list[dict[str, Any]]:
    """By step: the last line of a step is the one that stands."""
    by_step = {int(line["step"]): line for line in read_lines(run / "metrics.jsonl")}
    return [line for _, line in sorted(by_step.items())]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
