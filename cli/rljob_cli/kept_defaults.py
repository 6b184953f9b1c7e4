"""Which run a start of a manifest goes on with, and what its defaults were resolved to when that began.

For `rljob run`: `job.json` of its folder has the job as it was started, with every default filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from rljob_api.open_defaults import RetainedDefaults
from rljob_api.spec import RLJobSpec

_MANIFEST = "job.json"


def run_folder(out: Path | None, name: str) -> Path:
    """Where a job of this name runs."""
    return out or Path("rljob-out") / name


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run in the folder of this one, which may be none."""

    out: Path | None
    """As `--out` says it; None: the folder of the job's name."""

    def kept(self, name: str) -> RetainedDefaults | None:
        """What it began with. None, too, where its manifest cannot be read: the start itself refuses such a folder."""
        try:
            stored = orjson.loads((run_folder(self.out, name) / _MANIFEST).read_bytes())
            return RetainedDefaults.of(RLJobSpec.model_validate(stored["spec"]))
        except (OSError, ValueError, TypeError, KeyError, ValidationError):
            return None
