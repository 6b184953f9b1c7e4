"""What short jobs ask of Redis and leave in their folders: recorded from several runs, compared with those of one.

Processes race, so that no two runs are the same. A fact that every recorded run had is required; one that some had may
be there; any other is new. What differs is looked for in a second run: a race is not lost twice.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.run.job import RunningJob, preloaded
from tests.recorded.jobs.calls import counts, shapes
from tests.recorded.jobs.files import facts
from tests.recorded.jobs.kinds import KINDS
from tests.recorded.jobs.monitor import PATIENCE_SECONDS, monitors
from tests.recorded.renames import RENAMES, Recording, renamed_within

FOLDER = Path(__file__).parents[1] / "data/jobs"

RUNS = 5
"""Runs of each kind that a recording is made from."""

Facts = dict[str, set[str]]
"""Section -> lines."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The facts of a section."""

    always: frozenset[str]
    sometimes: frozenset[str]


class _ShortJob(RunningJob):
    begin = staticmethod(preloaded)


def facts_of_run(kind: str, folder: Path) -> Facts:
    """Runs a short job to its end."""
    with _ShortJob(folder, KINDS[kind](folder)) as job:
        watched = monitors(job.out / "endpoints.json")
        code = job.process.wait(PATIENCE_SECONDS)
        assert code == 0, f"exit code {code}\n{job.stated()}"
        job.wait_gone()
        assert job.epoch() == 1, f"{kind} was restarted: another machine, or another job\n{job.stated()}"
        calls = {one.name: one.lines() for one in watched}
        storage = [shapes(lines) for name, lines in calls.items() if name != "control"]
        control = calls["control"]
        return {
            "control": shapes(control),
            "counts": counts(control),
            "storage": set().union(*storage),
            "files": facts(job.out),
        }


def record() -> None:
    """Runs every kind several times, and writes what it always and what it sometimes has."""
    FOLDER.mkdir(exist_ok=True)
    for kind in KINDS:
        runs = []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(facts_of_run(kind, Path(folder)))
        _file(kind).write_text(json.dumps(merged(runs), indent=1, ensure_ascii=False) + "\n")


def merged(runs: Sequence[Facts]) -> dict[str, dict[str, list[str]]]:
    """The form of the file."""
    found = {}
    for section in runs[0]:
        of_runs = [run[section] for run in runs]
        always = set.intersection(*of_runs)
        found[section] = {"always": sorted(always), "sometimes": sorted(set.union(*of_runs) - always)}
    return found


def recorded(kind: str) -> dict[str, Recorded]:
    """Section -> its facts, by today's names."""
    found = renamed_within(json.loads(_file(kind).read_text()), RENAMES[Recording.JOBS])
    return {name: Recorded(frozenset(of["always"]), frozenset(of["sometimes"])) for name, of in found.items()}  # type: ignore[union-attr, call-overload, index, arg-type]


def differences_of(kind: str, folder: Path) -> list[str]:
    """Runs a short job, a second time if anything differs, and gives what differs from the recording each time."""
    found = _differences_of_run(kind, folder / "first")
    again = set(_differences_of_run(kind, folder / "second")) if found else set()
    return [each for each in found if each in again]


def _differences_of_run(kind: str, folder: Path) -> list[str]:
    folder.mkdir()
    run, of = facts_of_run(kind, folder), recorded(kind)
    assert run.keys() == of.keys()
    return [f"{section}: {line}" for section, lines in run.items() for line in differences(of[section], lines)]


def differences(recorded_facts: Recorded, run: set[str]) -> list[str]:
    """A line for each fact that is new, or that is missing."""
    missing = sorted(recorded_facts.always - run)
    new = sorted(run - recorded_facts.always - recorded_facts.sometimes)
    return [*(f"was always, and is not: {fact}" for fact in missing), *(f"never was, and is: {fact}" for fact in new)]


def _file(kind: str) -> Path:
    return FOLDER / f"{kind}.json"
