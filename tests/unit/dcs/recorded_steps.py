"""The steps of whole examples that are committed, and how they are recorded anew, after a run of an example:

    rljob run examples/quickstart.yaml
    python -m tests.unit.dcs.recorded_steps quickstart.yaml=rljob-out/quickstart

Each example that is named gets the steps of its run; the others keep theirs.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).parent / "recorded_steps.json"
COLUMNS = (
    "reward/mean",
    "reward/std",
    "groups/all_right",
    "groups/all_wrong",
    "groups/no_variance",
    "response_length/truncated_share",
    "samples/learnt_share",
    "policy/entropy",
    "optimizer/grad_norm",
    "mismatch/kl",
)
"""All metrics by which a sign is decided."""

Steps = Mapping[str, Sequence[float | None]]
"""Metric -> its values by step, None where a step has none."""


def recorded() -> dict[str, Steps]:
    """Example -> its steps."""
    found: dict[str, Steps] = json.loads(FILE.read_text())
    return found


def steps_of(run: Path) -> Steps:
    """Three digits of each value keep it on its side of a sign's bound: shares are of 32 groups or 512 samples.

    A step that a restart repeated counts as it was last.
    """
    rows = {row["step"]: row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    return {name: [_rounded(rows[step].get(name)) for step in sorted(rows)] for name in COLUMNS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def text(examples: Mapping[str, Steps]) -> str:
    """The file as it is committed: a line for each metric of an example."""
    parts = {example: _lines({name: _short(row) for name, row in steps.items()}) for example, steps in examples.items()}
    return f"{_lines(parts)}\n"


def _lines(texts: Mapping[str, str]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in texts.items()) + "\n}"


def _short(values: Sequence[float | None]) -> str:
    return json.dumps(values, separators=(",", ":"))


if __name__ == "__main__":
    runs = dict(argument.split("=", 1) for argument in sys.argv[1:])
    FILE.write_text(text({**recorded(), **{example: steps_of(Path(run)) for example, run in runs.items()}}))
    sys.stdout.write(f"{FILE}\n")
