"""Samples per second of `rljob run` beside TRL's GRPOTrainer and beside a bare loop, on two shapes.

    make bench-quickstart       or       python -m tests.bench.quickstart --rounds 3 --shape quickstart

All three train the same model from the same manifest with the same batch, on the same cores. They take turns within a
round, because a machine is not equally fast at all times; the medians over the rounds count, and their ratios. A run's
figure is its steady state: start-up and the first steps are left out. TRL and the bare loop have one process and all
cores; the roles of `rljob run` share them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

BENCH = Path(__file__).parent
ROOT = BENCH.parents[1]
SIDES = ("rljob run", "TRL", "bare loop")
RUN_SECONDS = 1800
"""Longer than any run here takes; a run beyond it is killed and named."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload."""

    name: str
    manifest: Path
    steps: int
    """Of TRL and the bare loop; `rljob run` trains `numRollouts` of the manifest."""
    warm_up: int
    """First steps that are not counted."""
    aim: float
    """The ratio to TRL that the design wants."""


SHAPES = (
    Shape("quickstart", ROOT / "examples" / "quickstart.yaml", steps=60, warm_up=10, aim=1.5),
    Shape("long tail", BENCH / "long_tail.yaml", steps=8, warm_up=2, aim=2.0),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A trained rollout."""

    time: float
    """Seconds, of any clock that all steps of a run share."""
    samples: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Steady state of one run."""

    samples_per_second: float
    tokens_per_second: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES], action="append")
    parser.add_argument("--side", choices=SIDES, action="append", help="may be given several times; all by default")
    parser.add_argument("--steps", type=_enough, help="of every side, instead of what the shape says")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of TRL and of the bare loop")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        for shape in SHAPES:
            if arguments.shape is None or shape.name in arguments.shape:
                chosen = shape if arguments.steps is None else _shortened(shape, arguments.steps, Path(folder))
                _compare(chosen, arguments.rounds, arguments.threads, arguments.side or SIDES)


def _enough(text: str) -> int:
    number = int(text)
    if number < 3:
        raise argparse.ArgumentTypeError(f"{number} steps are too few: the first is not counted. Use 3 or more.")
    return number


def _shortened(shape: Shape, steps: int, folder: Path) -> Shape:
    """The same work for so many steps, of which the first is not counted."""
    raw = yaml.safe_load(shape.manifest.read_text())
    raw["spec"]["rollout"]["numRollouts"] = steps
    raw["spec"]["data"]["prompts"] = str(shape.manifest.parent / raw["spec"]["data"]["prompts"])
    manifest = folder / shape.manifest.name
    manifest.write_text(yaml.safe_dump(raw))
    return replace(shape, manifest=manifest, steps=steps, warm_up=0)


def _compare(shape: Shape, rounds: int, threads: int, sides: Sequence[str]) -> None:
    _print(f"{shape.name}: {shape.manifest.name}, {rounds} rounds")
    runs: dict[str, Callable[[], list[Step]]] = {
        "rljob run": lambda: _rljob_steps(shape),
        "TRL": lambda: _module_steps("trl_grpo", shape, threads),
        "bare loop": lambda: _module_steps("bare_loop", shape, threads),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in sides}
    for turn in range(1, rounds + 1):
        for name in sides:
            rate = steady_rate(runs[name](), shape.warm_up)
            rates[name].append(rate)
            speeds = f"{rate.samples_per_second:9.1f} samples/s {rate.tokens_per_second:10.0f} tokens/s"
            _print(f"  round {turn}  {name:10} {speeds}")
    medians = {name: statistics.median(rate.samples_per_second for rate in found) for name, found in rates.items()}
    for name, median in medians.items():
        _print(f"  median   {name:10} {median:9.1f} samples/s")
    if "rljob run" in medians:
        for name, aim in (("TRL", f" (aim {shape.aim})"), ("bare loop", "")):
            if name in medians:
                _print(f"  {'rljob run / ' + name:21} {medians['rljob run'] / medians[name]:.2f}{aim}")


def steady_rate(steps: list[Step], warm_up: int) -> Rate:
    """From the end of the last warm-up step to the end of the last step."""
    if len(steps) < warm_up + 2:
        raise ValueError(f"steps: {len(steps)} are too few after {warm_up} of warm-up. Run at least {warm_up + 2}.")
    counted = steps[warm_up + 1 :]
    seconds = steps[-1].time - steps[warm_up].time
    return Rate(sum(step.samples for step in counted) / seconds, sum(step.tokens for step in counted) / seconds)


def _rljob_steps(shape: Shape) -> list[Step]:
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        out = Path(folder) / "out"
        _run([sys.executable, "-m", "rljob_cli", "run", str(shape.manifest), "--out", str(out)])
        return _steps((out / "metrics.jsonl").read_text().splitlines())


def _module_steps(module: str, shape: Shape, threads: int) -> list[Step]:
    """Started as a module: by its path its folder would be looked in first, where `queue` hides the library's."""
    arguments = [str(shape.manifest), "--steps", str(shape.steps), "--threads", str(threads)]
    output = _run([sys.executable, "-m", f"tests.bench.{module}", *arguments])
    return _steps([line for line in output.splitlines() if line.startswith('{"step"')])  # TRL prints lines of its own


def _steps(lines: list[str]) -> list[Step]:
    return [Step(row["time"], row["samples"], row["tokens"]) for row in map(json.loads, lines)]


def _run(command: list[str]) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
