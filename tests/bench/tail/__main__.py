"""What slow answers cost under each order of groups: samples per second, idle shares, staleness, mean lengths.

    make bench-tail       or       python -m tests.bench.tail --half simulated --staleness 2 --steps 24

Answers have log-normal lengths, mean 64, cut at 1024 tokens. Two halves, each a table:

  simulated   4 engines of 32 slots and a trainer that compute nothing and take the time of GPUs, a step of a minute in
              --seconds-per-step; queue, processes, weights and coordinator are real. `possible` is the share of what
              128 slots without a pause, or the trainer where it is slower, would make.
  engines     the torch engine and trainer as they are, on a tiny model on this machine's cores, beside TRL's
              GRPOTrainer with the same model, prompts, batch and loss.

Steps count once the pipeline is full, and before its end: some more are trained. `first, last` are the mean responses
of the first and the last third of the counted steps: an order that trained short answers sooner would show there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from tests.bench.tail.figures import HEAD, Counted, Figures, figures_of, row_of
from tests.bench.tail.jobs import VARIANTS, Job, engines_job, run_job, run_trl, simulated_job

HALVES = ("simulated", "engines")
TRL = "TRL"
PROGRESS_SECONDS = 5.0
LEAST_PACE = 0.9
"""Below it simulated engines are slower than they pretend to be, and their figures are of this machine."""


def main() -> None:
    arguments = _arguments()
    found: dict[str, list[Figures]] = {}
    for half in arguments.half or HALVES:
        show = _table(half) if arguments.output == "text" else _silent
        if half == "simulated":
            runs = _runs(simulated_job(arguments.seconds_per_step), arguments.steps, arguments)
            found[half] = _shown(runs, show)
        else:
            with engines_job() as job:
                found[half] = _shown(_runs(job, arguments.engine_steps, arguments), show)
                if TRL in (arguments.variant or (*VARIANTS, TRL)):
                    found[half] += _shown(_trl(job, arguments.trl_steps), show)
    if arguments.output == "json":
        sys.stdout.write(json.dumps({half: [asdict(one) for one in figures] for half, figures in found.items()}) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.bench.tail", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES, action="append", help="both by default")
    parser.add_argument("--variant", choices=(*VARIANTS, TRL), action="append", help="all by default")
    parser.add_argument("--staleness", type=int, action="append", help="maxStaleness; 1, 2 and 4 by default")
    parser.add_argument("--steps", type=_positive, default=45, help="counted in the simulated half")
    parser.add_argument("--seconds-per-step", type=float, default=2.0, help="of simulated engines that are never idle")
    parser.add_argument("--engine-steps", type=_positive, default=24, help="counted with engines as they are")
    parser.add_argument("--trl-steps", type=_positive, default=3, help="counted of TRL")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} steps have no rate. Use 1 or more.")
    return number


def _runs(job: Job, steps: int, arguments: argparse.Namespace) -> Iterator[Figures]:
    for max_staleness in arguments.staleness or (1, 2, 4):
        counted = Counted.at(max_staleness, steps)
        for variant in arguments.variant or VARIANTS:
            if variant == TRL:
                continue
            manifest = job.varied(variant, max_staleness, counted.all)
            lines = run_job(manifest, _Progress(f"{variant}, maxStaleness {max_staleness}"))
            figures = figures_of(variant, max_staleness, lines, counted, job.possible)
            if figures.pace is not None and figures.pace < LEAST_PACE:
                _report(
                    f"  {variant}: busy slots made {figures.pace:.0%} of what they would on a machine that keeps up."
                )
                _report(" Use a larger --seconds-per-step.\n")
            yield figures


def _trl(job: Job, steps: int) -> Iterator[Figures]:
    if importlib.util.find_spec("trl") is None:
        _report("TRL is skipped: it is not installed. Run scripts/install bench.\n")
        return
    counted = Counted(before=1, steps=steps, after=0)
    lines = run_trl(job.varied("Bound", 1, counted.all), counted.all, _Progress(TRL))
    yield figures_of(TRL, None, lines, counted, None)


def _shown(runs: Iterator[Figures], show: Callable[[Figures], None]) -> list[Figures]:
    found = []
    for figures in runs:
        show(figures)
        found.append(figures)
    return found


def _table(half: str) -> Callable[[Figures], None]:
    """Prints each run as it ends."""
    bounds: dict[int | None, Figures] = {}
    sys.stdout.write(f"{half}\n{HEAD}\n")

    def show(figures: Figures) -> None:
        if figures.variant == "Bound":
            bounds[figures.max_staleness] = figures
        sys.stdout.write(row_of(figures, bounds.get(figures.max_staleness)) + "\n")
        sys.stdout.flush()

    return show


def _silent(figures: Figures) -> None:
    del figures


class _Progress:
    """Reports on standard error how far a run is, now and then."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._reported_at = float("-inf")

    def __call__(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = now
            _report(f"  {self._run}: {sentence}\n")


def _report(sentence: str) -> None:
    sys.stderr.write(sentence)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
