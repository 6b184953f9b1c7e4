"""What is learnt where some groups are slow, under each order of groups: reward by samples, and by time.

    make bench-tail-learning       or       python -m tests.bench.tail.learning --seeds 1 --steps 60

The quickstart's task and model. To score a group takes a log-normal time (median 0.03 s, sigma 1.5, at most 1.5 s), by
its prompt: a step waits for the slowest of 32 where groups are bound to their rollout. A line for each order and seed:
the mean reward of eight steps up to each mark, the samples and the seconds until that of eight steps is above 0.8, and
samples per second.
"""

# ruff: noqa: T201 -- a benchmark prints what it found

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.bench.tail.figures import Step
from tests.bench.tail.jobs import ROOT, Manifest, run_job

ORDERS: Mapping[str, Mapping[str, Any]] = {
    "Bound": {},
    "Swap": {"order": "Swap"},
    "Swap, partial": {"order": "Swap", "partial": {}},
}
MARKS = (20_000, 40_000, 80_000)
"""Samples."""
LEARNT = 0.8
WINDOW = 8
"""Steps."""

REWARD = """
import math, random, time

def score(answers):
    chance = random.Random(f"{answers[0].label}")
    time.sleep(min(1.5, 0.03 * math.exp(1.5 * chance.gauss(0.0, 1.0))))
    return [share(one.response, one.label) for one in answers]

def share(response, label):
    return sum(a == b for a, b in zip(response, label)) / max(len(response), len(label))
"""


def main() -> None:
    arguments = _arguments()
    header = "".join(f"{f'at {mark}':>10}" for mark in MARKS)
    print(f"{'order':<16}{'seed':>5}{header}{'samples':>10}{'seconds':>9}{'samples/s':>11}", flush=True)
    for seed in range(arguments.seeds):
        for order in ORDERS:
            print(row_of(order, seed, run_of(order, seed, arguments.staleness, arguments.steps)), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.bench.tail.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160, help="rollouts of each run")
    parser.add_argument("--staleness", type=int, default=2, help="maxStaleness")
    return parser.parse_args()


def run_of(order: str, seed: int, max_staleness: int, steps: int) -> list[Step]:
    """The steps of one run."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        (Path(folder) / "slowly.py").write_text(REWARD)
        return run_job(_manifest(order, seed, max_staleness, steps, folder), lambda _: None)


def _manifest(order: str, seed: int, max_staleness: int, steps: int, folder: str) -> Manifest:
    file = ROOT / "examples" / "quickstart.yaml"
    manifest: Manifest = yaml.safe_load(file.read_text())
    spec = manifest["spec"]
    spec["seed"] = seed
    spec["data"]["prompts"] = str((file.parent / spec["data"]["prompts"]).resolve())
    reward = {"custom": {"function": "slowly:score", "path": folder}}
    spec["rollout"] |= {"numRollouts": steps, "maxStaleness": max_staleness, "reward": reward, **ORDERS[order]}
    return manifest


def row_of(order: str, seed: int, steps: Sequence[Step]) -> str:
    """A line of the table."""
    at = "".join(f"{'' if (reward := reward_at(steps, mark)) is None else f'{reward:.3f}':>10}" for mark in MARKS)
    learnt, began = first_learnt(steps), steps[0]["time"] - steps[0]["seconds"]
    samples = sum(step["samples"] for step in steps)
    found = (
        ("never", "")
        if learnt is None
        else (f"{samples_until(steps, learnt):.0f}", f"{steps[learnt]['time'] - began:.1f}")
    )
    rate = samples / (steps[-1]["time"] - began)
    return f"{order:<16}{seed:>5}{at}{found[0]:>10}{found[1]:>9}{rate:>11.1f}"


def samples_until(steps: Sequence[Step], place: int) -> float:
    """Trained in the steps up to this one."""
    return sum(step["samples"] for step in steps[: place + 1])


def reward_at(steps: Sequence[Step], mark: int) -> float | None:
    """Mean of the window that ends with the step which reaches the mark; None: none does."""
    place = next((place for place in range(len(steps)) if samples_until(steps, place) >= mark), None)
    return None if place is None else _mean_reward(steps, place)


def first_learnt(steps: Sequence[Step]) -> int | None:
    """The first step whose window is above LEARNT."""
    return next((place for place in range(WINDOW - 1, len(steps)) if _mean_reward(steps, place) > LEARNT), None)


def _mean_reward(steps: Sequence[Step], place: int) -> float:
    window = steps[max(0, place - WINDOW + 1) : place + 1]
    return sum(step["reward"] for step in window) / len(window)


if __name__ == "__main__":
    main()
