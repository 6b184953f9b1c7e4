"""Rows that a run has written into its folder. Reads files only, of runs that go on, have ended or were killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rljob_api import evaluations
from rljob_cli.jobs.sample_log import read_generations, surviving, whole_lines

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
"""A line of metrics.jsonl, evaluations.jsonl, events.jsonl or generations.jsonl."""

_INDEX = {"metrics": "step", "evaluations": "version", "samples": None}


class RunFiles:
    """The folder of a run. Every call reads again what is there."""

    def __init__(self, folder: Path) -> None:
        """`folder` may not be there yet."""
        self.folder = folder

    def metrics(self) -> list[Row]:
        """A row for each trained step, in their order: each step once, as it was trained last.

        A restart trains again what it has lost: rows of those steps, and of all after them, then give way to the new
        ones. docs/metrics.md has the names.
        """
        return surviving(_rows(self.folder / "metrics.jsonl"), lambda row: (int(row["epoch"]), int(row["step"])))

    def evaluations(self) -> list[Row]:
        """A row for each evaluated version, in their order: version, epoch, samples, and its figures by name.

        Each version once, as it was evaluated last; like steps, those that a restart has taken back give way once one
        of them or an earlier one is evaluated again. docs/evaluation.md has the names.
        """
        rows = evaluations.of_run(_rows(self.folder / evaluations.FILE))
        return surviving(rows, lambda row: (int(row["epoch"]), int(row["version"])))

    def samples(self) -> list[Row]:
        """A row for each sample that was kept of what was trained (telemetry.generationsPerRollout), oldest first.

        Prompt, response, reward, label and more, as `rljob samples --output json` has them.
        """
        return read_generations(self.folder)

    def events(self) -> list[Row]:
        """A row for each decision: time, reason, role, scope, message."""
        return _rows(self.folder / "events.jsonl")

    def status(self) -> Row:
        """The status of the job as it was written last; empty before that."""
        file = self.folder / "status.json"
        return dict(json.loads(file.read_bytes())) if file.exists() else {}

    def to_pandas(self, of: Literal["metrics", "evaluations", "samples"] = "metrics") -> pd.DataFrame:
        """The rows of one of these as a data frame, with the step or version as index.

        Raises ImportError where pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ImportError(
                f"pandas is not installed in {sys.prefix}. Install it (pip install pandas), or take the rows of {of}()"
                " as they are."
            ) from None
        rows = {"metrics": self.metrics, "evaluations": self.evaluations, "samples": self.samples}[of]()
        return pd.DataFrame.from_records(rows, index=_INDEX[of] if rows else None)


def load_run(folder: str | Path) -> RunFiles:
    """The run in a folder (its --out, by default rljob-out/NAME). Raises FileNotFoundError where no run was."""
    folder = Path(folder)
    if not (folder / "job.json").exists():
        raise FileNotFoundError(
            f"{folder} is not the folder of a run: it has no job.json. Give the --out of a run, by default"
            " rljob-out/NAME."
        )
    return RunFiles(folder)


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in whole_lines(path)] if path.exists() else []
