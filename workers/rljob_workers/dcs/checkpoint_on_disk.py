"""What lies below the checkpoint path, as it is read and checked: the record, checksums, single files.

For the ranks, which verify their share of a folder before they read it, and for the coordinator, which chooses the
folder that an epoch begins with. Tells damage (bytes that are not what was written, a file that is not there) from
storage that does not answer: the first leaves a folder, the second is asked again. Deletes nothing; imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_api.cluster import LATEST
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.dcs.checkpoint_folders import DAMAGED_SUFFIX, parse_folder
from rljob_workers.dcs.checkpoint_layout import (
    CHECKSUMS_FILE,
    RECORD_FILE,
    RECORDED_MARK,
    REFERENCE_FOLDER,
    REFERENCE_PATTERN,
    Reference,
)
from rljob_workers.dcs.durable import file_checksum, replace_synced
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def read_record(root: Path) -> CheckpointRecord | None:
    """The record file; None before the first record, and where the file is not one: the control Redis has it, too."""
    try:
        record = CheckpointRecord.model_validate_json(read_file(root / RECORD_FILE))
    except (CheckpointDamaged, ValidationError):
        return None
    named = parse_folder(record.folder, is_recorded=True)
    fits = named is not None and (named.version, named.epoch) == (record.id.version, record.epoch)
    return record if fits else None


def write_record(root: Path, record: CheckpointRecord) -> None:
    """Makes `record` the one of the record file, and of the link that clones follow. A file that is none is kept."""
    if read_record(root) is None:
        with contextlib.suppress(FileNotFoundError):
            (root / RECORD_FILE).rename(root / f"{RECORD_FILE}{DAMAGED_SUFFIX}")
    replace_synced(root / RECORD_FILE, record.model_dump_json(indent=1).encode())
    if (root / LATEST).exists() and not (root / LATEST).is_symlink():
        return  # a file or folder of that name is not ours, and stays
    # Not every kind of shared storage has links; without one nothing of the job is lost.
    beside = root / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(record.folder, target_is_directory=True)
        beside.replace(root / LATEST)


def expected_checksums(root: Path, folder: str) -> dict[Path, str]:
    """Every file of a recorded folder, and of the reference version that it names, with its checksum.

    A file of checksums that leaves no file out is proved by the others: any damage of it would be theirs as well. So it
    is the record that is damaged where that has another digest of it.
    """
    path = root / folder
    checksums: dict[str, str] = read_json(path / CHECKSUMS_FILE)
    expected = {path / name: checksum for name, checksum in checksums.items()}
    record = read_record(root)
    if record is not None and record.folder == folder and not _leaves_none_out(path, checksums):
        expected |= {path / name: checksum for name, checksum in record.checksums.items()}
    references = named_references(path).values()
    return expected | {root / REFERENCE_FOLDER / part.file: part.checksum for part in references}


def named_references(folder: Path) -> dict[str, Reference]:
    """What the files of a folder say of the reference version that its rows are measured against."""
    named = {}
    for path in sorted(folder.glob(REFERENCE_PATTERN)):
        try:
            named[path.name] = Reference(**read_json(path))
        except TypeError as error:
            raise CheckpointDamaged(path, "names no reference version") from error
        if not isinstance(named[path.name].file, str):
            raise CheckpointDamaged(path, "names no file of a reference version")
    return named


def _leaves_none_out(folder: Path, checksums: Mapping[str, str]) -> bool:
    try:
        files = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise CheckpointUnreadable(folder, error) from error
    return files - {CHECKSUMS_FILE, RECORDED_MARK} <= checksums.keys()


def files_named(folder: Path, *, is_whole: bool) -> set[str]:
    """The files of reference versions that a folder names; of a whole one its notes are what was written.

    For who deletes what is not named: a note with a flipped byte may still be a note, of another file.
    """
    if is_whole:
        for name, checksum in read_json(folder / CHECKSUMS_FILE).items():
            if Path(name).match(REFERENCE_PATTERN):
                verify(folder / name, checksum)
    return {part.file for part in named_references(folder).values()}


def share_of_files(sizes: Mapping[Path, int], rank: int, world: int) -> list[Path]:
    """The files that one of `world` ranks reads whole: dealt by size, so that each has about as many bytes."""
    return sorted(sizes, key=lambda path: (-sizes[path], path))[rank::world]


def size_of(path: Path) -> int:
    """In bytes; 0 of a file that is not there, which the rank that it falls to says."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def verify(path: Path, expected: str) -> None:
    """Raises CheckpointDamaged for a file that two readings find to be another one than was written."""
    for _ in range(2):
        try:
            found = file_checksum(path)
        except _ABSENT as error:
            raise CheckpointDamaged(path, _absence(error)) from error
        except OSError as error:
            raise CheckpointUnreadable(path, error) from error
        if found == expected:
            return
    raise CheckpointDamaged(path, f"has checksum {found}, not {expected}")


def read_file(path: Path) -> bytes:
    """The content of a small file."""
    try:
        return path.read_bytes()
    except _ABSENT as error:
        raise CheckpointDamaged(path, _absence(error)) from error
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """A small file that is a JSON object."""
    try:
        content = json.loads(read_file(path))
    except ValueError as error:
        raise CheckpointDamaged(path, f"is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointDamaged(path, "is no JSON object")
    return content


def _absence(error: OSError) -> str:
    return "is not there" if isinstance(error, FileNotFoundError) else f"is no file ({error.strerror})"
