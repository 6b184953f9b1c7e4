"""The records of a job's checkpoints, as `rljob checkpoint` asks for them: where they are, whose, and who reads them.

A process of the workers reads and writes the files, since the command line has neither torch nor safetensors. It is
ended with the command, and takes away what it has half written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.wire.checkpoint_report import Answer, CheckpointQuestion, ExportQuestion, Progress
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_record import CHECKPOINTS, MANIFEST, CheckpointOwner

_PROGRAM = "rljob_workers.dcs.checkpoints.command"


_NEEDS = ("xxhash", "safetensors", "torch")
"""Modules of the extra `worker`."""


class CheckpointRefused(Exception):
    """There is no answer: the sentence for the user, and the exit code of the command."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def folder_with_records(given: Path) -> Path:
    """The checkpoints in the folder of a run; any other folder as it is. Raises CheckpointRefused where it is none."""
    if not given.is_dir():
        raise CheckpointRefused(
            f"{given} is not a folder. Give the folder of a run (its --out), its checkpoint.path, or a record in that.",
            EXIT_BAD_MANIFEST,
        )
    spec = _manifest(given).get("spec")
    if spec is None:
        return given
    folder = _checkpoints_of(given, spec)
    if not folder.is_dir():
        raise CheckpointRefused(
            f"{given} is the folder of a run that has no checkpoint yet: {folder} is not there. Ask again later.",
            EXIT_BAD_MANIFEST,
        )
    return folder


def job_of(record: Path) -> str | None:
    """The name of the job whose records a record lies among, by the run folder; None where that is not here."""
    root = record.parent
    places = [root.parent]
    with suppress(RunRefused):  # a run.json that says nothing of checkpoints
        owner = CheckpointOwner.of(root)
        places += [] if owner is None else [Path(owner.out)]
    for place in places:
        manifest = _manifest(place)
        spec, name = manifest.get("spec"), manifest.get("metadata", {}).get("name")
        if spec is not None and isinstance(name, str) and _checkpoints_of(place, spec).resolve() == root.resolve():
            return name
    return None


def _manifest(run: Path) -> dict[str, Any]:
    """The manifest of the run in a folder, of whatever version; empty where no run was."""
    try:
        found = json.loads((run / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("spec"), dict) else {}


def _checkpoints_of(run: Path, spec: dict[str, Any]) -> Path:
    checkpoint = spec.get("checkpoint")
    given = checkpoint.get("path") if isinstance(checkpoint, dict) else None
    return run / (given if isinstance(given, str) else CHECKPOINTS)


def ask_workers(question: CheckpointQuestion | ExportQuestion, on_progress: Callable[[Progress], None]) -> Answer:
    """The answer of a process to `question`. Raises CheckpointRefused."""
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise CheckpointRefused(
            f"Checkpoints are read with {missing[0]}, which is not installed. Install rljob[worker].", EXIT_FAILED
        )
    what = "show" if isinstance(question, CheckpointQuestion) else "export"
    command = [sys.executable, "-m", _PROGRAM, what, question.model_dump_json()]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        try:
            answer = _last_answer(process.stdout, on_progress)
        except BaseException:  # an interrupt, too: the process takes away what is half written
            process.terminate()
            process.wait()  # after an interrupt, `with` itself waits for a quarter of a second only
            raise
        code = process.wait()
        if answer is None:
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise CheckpointRefused(f"The process that reads the checkpoint ended with {code}: {last}", EXIT_FAILED)
    if answer.refusal is not None:
        raise CheckpointRefused(answer.refusal.sentence, answer.refusal.exit_code)
    return answer


def _last_answer(lines: IO[bytes], on_progress: Callable[[Progress], None]) -> Answer | None:
    """The answer that is no progress; None where the process has ended without."""
    found = None
    for line in lines:
        try:
            answer = Answer.model_validate_json(line)
        except ValidationError:
            continue  # a library has printed it
        if answer.progress is not None:
            on_progress(answer.progress)
        else:
            found = answer
    return found
