"""Cost of the quickstart's coordinator for a step: CPU seconds of /proc, without the first tenth of its steps.

    python -m tests.bench.coordinator.quickstart

To compare two checkouts run it in both at the same time: on a busy machine the same work takes more CPU seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.operator_scale.measured import cpu_seconds

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "examples" / "quickstart.yaml"
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Read:
    """The coordinator at one moment."""

    steps: int
    cpu_seconds: float


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "rljob_cli", "run", str(MANIFEST), "--out", str(out)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as run:
            reads = _reads(run, out)
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}.")
        steps = _steps(out)
    first = next(read for read in reads if read.steps >= steps // 10)
    last = reads[-1]
    each = (last.cpu_seconds - first.cpu_seconds) / (last.steps - first.steps)
    sys.stdout.write(f"{1000 * each:.1f} ms of CPU for a step, over {last.steps - first.steps} steps\n")


def _reads(run: subprocess.Popen[bytes], out: Path) -> list[Read]:
    coordinator = None
    reads = list[Read]()
    while run.poll() is None:
        coordinator = coordinator or _coordinator_of(out)
        spent = cpu_seconds(coordinator) if coordinator is not None else 0.0
        if spent:
            reads.append(Read(_steps(out), spent))
        time.sleep(POLL_SECONDS)
    return reads


def _coordinator_of(out: Path) -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text()
            if "rljob_workers.dcs.coordinator" in command and str(out) in command:
                return int(process.name)
    return None


def _steps(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


if __name__ == "__main__":
    main()
