"""The process behind `rljob checkpoint`: `python -m rljob_workers.dcs.checkpoints.command show|export QUESTION`.

Started by the command line, which imports nothing of the workers. The question is JSON, the answer one line of JSON on
stdout, after lines of progress where it takes longer than two seconds (`rljob_api.wire.checkpoint_report`). What cannot
be answered is a refusal, with its sentence and exit code. To show a record no torch is imported.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from rljob_api.model_files.families import architecture_of
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from rljob_api.roles import SAVING_ROLES
from rljob_api.wire.checkpoint_report import (
    Answer,
    CheckpointQuestion,
    CheckpointReport,
    ExportQuestion,
    ExportReport,
    Progress,
    Refusal,
)
from rljob_workers.dcs.checkpoints.description import (
    Record,
    damage_in,
    describe,
    expected_files,
    find_record,
    model_type_of,
)
from rljob_workers.dcs.checkpoints.on_disk import CHECKSUMS_FILE, size_of
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable

SECONDS = 2.0
"""Between two lines of progress, and before the first one."""


LEAST_SHARE = 0.05
"""Of all bytes between two lines, so that there are never more than 20."""


class Meter:
    """Counts bytes, and prints how far it is."""

    def __init__(self, what: str, total_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._clock = what, total_bytes, clock
        self._done = self._printed = 0
        self._next = clock() + SECONDS

    def add(self, num_bytes: int) -> None:
        """So many more are done."""
        self._done += num_bytes
        if self._clock() >= self._next and self._done - self._printed >= LEAST_SHARE * self._total:
            _print(Answer(progress=Progress(what=self._what, done_bytes=self._done, total_bytes=self._total)))
            self._printed, self._next = self._done, self._clock() + SECONDS


def show(question: CheckpointQuestion) -> CheckpointReport:
    """What a record has, and of its files which are not what was written. ValueError where there is none."""
    record = find_record(Path(question.folder))
    with _standing(record):
        report = describe(record)
        damage = _damage_of(record) if question.is_verified else report.damage
    is_intact = not damage if question.is_verified or damage else None
    return report.model_copy(update={"is_intact": is_intact, "damage": damage})


def _damage_of(record: Record) -> list[str]:
    try:
        expected = expected_files(record)
    except CheckpointDamaged as damage:
        return [f"{damage.path} {damage.what}"]
    return list(damage_in(expected, Meter("verified", sum(map(size_of, expected))).add))


@contextlib.contextmanager
def _standing(record: Record) -> Iterator[None]:
    """ValueError where the record was deleted while it was read, which makes it look damaged."""
    try:
        yield
    except (CheckpointDamaged, FileNotFoundError):
        _require(record)
        raise
    _require(record)


def _require(record: Record) -> None:
    if not record.folder.is_dir():
        raise ValueError(
            f"{record.folder} was deleted meanwhile, as a job does that runs and has newer records (checkpoint.keep)."
            " Ask again for the latest one."
        )


def export(question: ExportQuestion) -> ExportReport:
    """Makes a Hugging Face folder. ValueError for what the user can change, CheckpointDamaged for a broken record."""
    record, to = find_record(Path(question.folder)), Path(question.to)
    check_target(to, record.folder)
    # Imported once it is known that there is something to do: torch takes seconds.
    from rljob_workers.dcs.checkpoints.export import (
        Origin,
        RecordedWeights,
        num_bytes_of,
        write_folder,
    )

    with _standing(record):
        weights = RecordedWeights(record.folder, question.role, question.dtype)
        meta = weights.meta()
        total = sum(map(num_bytes_of, meta.values()))
        check_room(to, total)
        if question.is_verified:
            _verify(record, weights.folder, {file.name for file in weights.files}, reads_state=weights.reads_state)
        described = weights.describing_files()
    # From here on a deletion of the record takes nothing away: its weights are mapped.
    parts = write_folder(weights, described, to, Meter("written", total).add)
    dtypes: dict[str, int] = {}
    for tensor in meta.values():
        name = str(tensor.dtype).removeprefix("torch.")
        dtypes[name] = dtypes.get(name, 0) + num_bytes_of(tensor)
    origins = list(weights.origins.values())
    named = record.written_as
    return ExportReport(
        record=str(record.folder),
        latest_of=None if record.latest_of is None else str(record.latest_of),
        to=str(to.absolute()),
        role=question.role,
        version=None if named is None else named.version,
        model_type=model_type_of(weights.described),
        architecture=architecture_of(weights.described),
        dtypes=dtypes,
        parameters=sum(tensor.numel() for tensor in meta.values()),
        bytes=total,
        parts=parts,
        tensors=len(origins),
        tensors_published=origins.count(Origin.PUBLISHED),
        tensors_exact=origins.count(Origin.EXACT),
        tensors_converted=origins.count(Origin.CONVERTED),
        is_verified=question.is_verified,
    )


def check_target(to: Path, record: Path) -> None:
    """ValueError, with the cure, where an export to `to` would write over something, or into the record itself."""
    if to.exists() and not to.is_dir():
        raise ValueError(f"--to: {to} is a file. Give a folder that does not exist yet, or an empty one.")
    if to.is_dir() and any(to.iterdir()):
        raise ValueError(f"--to: {to} is not empty. Give a folder that does not exist yet, or an empty one.")
    if to.resolve().is_relative_to(record.resolve()):
        raise ValueError(
            f"--to: {to} is in the record itself, whose files must stay as they are. Give a folder elsewhere."
        )


def check_room(to: Path, num_bytes: int) -> None:
    """ValueError where the file system of `to` has less room than the export takes."""
    there = next(path for path in (to.absolute(), *to.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < num_bytes:
        raise ValueError(
            f"--to: {to} would take {num_bytes / 1e9:.1f} GB, and its file system has {free / 1e9:.1f} GB left. Give a"
            " folder elsewhere, or free some space."
        )


def _verify(record: Record, folder: Path, weights: Collection[str], *, reads_state: bool) -> None:
    """Raises CheckpointDamaged, for the first file that is read for an export and is not what was written."""
    found = {path: checksum for path, checksum in expected_files(record, SAVING_ROLES).items() if path.parent == folder}
    if not found:
        raise CheckpointDamaged(record.folder / CHECKSUMS_FILE, "names no file of this model")
    tensors = {path for path in found if path.suffix == ".safetensors"}
    left_out = set() if reads_state else {path for path in tensors if path.name not in weights}
    expected = {path: checksum for path, checksum in found.items() if path not in left_out}
    meter = Meter("verified", sum(map(size_of, expected)))
    for damage in damage_in(expected, meter.add):
        raise CheckpointDamaged(record.folder, f"is damaged: {damage} (--no-verify exports it all the same)")


def _print(answer: Answer) -> None:
    sys.stdout.write(answer.model_dump_json(exclude_defaults=True) + "\n")
    sys.stdout.flush()


def _answer(what: str, question: str) -> Answer:
    if what == "show":
        return Answer(checkpoint=show(CheckpointQuestion.model_validate_json(question)))
    return Answer(exported=export(ExportQuestion.model_validate_json(question)))


def main(arguments: Sequence[str]) -> int:
    """Prints the answer; gives the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # what is half written is taken away
    what, question = arguments
    try:
        _print(_answer(what, question))
    except ValueError as error:
        return _refuse(str(error), EXIT_BAD_MANIFEST)
    except CheckpointDamaged as error:
        cure = "Take an older record, or restore this one from a copy."
        return _refuse(f"{error.path} {error.what}. {cure}", EXIT_FAILED)
    except CheckpointUnreadable as error:
        return _refuse(f"The record cannot be read: {error.__cause__}. Mend the storage.", EXIT_FAILED)
    except OSError as error:
        return _refuse(f"{error}. Nothing was left where it shall be written.", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _refuse(sentence: str, exit_code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        _print(Answer(refusal=Refusal(sentence=sentence, exit_code=exit_code)))
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
