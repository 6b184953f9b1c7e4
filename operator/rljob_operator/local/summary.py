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
    """Those that stand: a line is void once a later one is of its step or of one before it."""
    standing: list[dict[str, Any]] = []
    for line in reversed(list(read_lines(run / "metrics.jsonl"))):
        if not standing or line["step"] < standing[-1]["step"]:
            standing.append(line)
    return standing[::-1]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
