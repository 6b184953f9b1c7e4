"""Files below the checkpoint path: their names, synced writes, the record, reading and verifying them.

The ranks verify their share of a folder with it before they read it; the coordinator chooses the folder of an epoch
with it. Distinguishes damage (missing or other bytes: the folder is abandoned) from storage errors (the read is
repeated). Deletes nothing; imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import ValidationError

from rljob_api.cluster import LATEST
from rljob_api.names import Role
from rljob_api.roles import LEADING_ROLE, SAVING_ROLES
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rljob_workers.models.blob import WeightShare


_READ_BYTES = 1 << 22


def write_synced(path: Path, pieces: Iterable[ReadableBuffer]) -> str:
    """Writes a file, syncs it, gives its xxh3-64 (hex). Its name is durable after `sync_folder`."""
    digest = xxhash.xxh3_64()
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def replace_synced(path: Path, content: bytes) -> None:
    """Replaces a file: afterwards the old or the new content is there, never a part, also after a power cut."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    write_synced(beside, [content])
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _uncounted(_: int) -> None:
    """Of a reading that reports no progress."""


def file_checksum(path: Path, on_read: Callable[[int], None] = _uncounted) -> str:
    """xxh3-64 (hex) of a file; `on_read` gets how many bytes were read, piece by piece."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            on_read(len(data))
    return digest.hexdigest()


_NAME = re.compile(r"^(?P<partial>\.partial-)?(?P<version>\d+)-e(?P<epoch>\d+)-(?P<incarnation>[0-9a-f]{12})$")


_REFERENCE = re.compile(r"^(?P<version>\d+)-e(?P<epoch>\d+)-[0-9a-f]{12}\.safetensors$")


_DELETED = ".deleted-"


DAMAGED_SUFFIX = ".damaged"
"""Of a folder or record file that is retained and never read again."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder below the checkpoint path, by its name and its mark."""

    name: str
    version: int
    epoch: int
    is_partial: bool
    """Still being written, or left so by a death."""
    is_recorded: bool


def folder_name(version: int, epoch: int, incarnation: str) -> str:
    """Bound to epoch and incarnation: no later incarnation can write into it."""
    return f"{version}-e{epoch}-{incarnation}"


def partial_name(name: str) -> str:
    """Where a folder is written before it is renamed."""
    return f".partial-{name}"


def parse_folder(name: str, *, is_recorded: bool) -> CheckpointFolder | None:
    """None for a name that is not ours."""
    match = _NAME.match(name)
    if match is None:
        return None
    return CheckpointFolder(name, int(match["version"]), int(match["epoch"]), match["partial"] is not None, is_recorded)


def deleted_name(name: str) -> str:
    """What a folder is called while it is deleted."""
    return f"{_DELETED}{name.removeprefix('.partial-')}"


def is_deleted(name: str) -> bool:
    """Whether a deletion has left it."""
    return name.startswith(_DELETED) and _NAME.match(name.removeprefix(_DELETED)) is not None


def parse_damaged(name: str) -> CheckpointFolder | None:
    """A folder that was put aside, by what it was called; None for a name that is not ours."""
    is_aside = name.endswith(DAMAGED_SUFFIX)
    return parse_folder(name.removesuffix(DAMAGED_SUFFIX), is_recorded=True) if is_aside else None


def parse_reference(name: str) -> tuple[int, int] | None:
    """Version and epoch of a retained reference version; None for a name that is not ours."""
    match = _REFERENCE.match(name)
    return None if match is None else (int(match["version"]), int(match["epoch"]))


TICKETS_FILE, CHECKSUMS_FILE, RECORD_FILE = "tickets.json", "checksums.json", "record.json"
BEST_FILE = "best.json"


RECORDED_MARK = "RECORDED"


REFERENCE_FOLDER = "reference"


REFERENCE_PATTERN = "reference*.json"


def file_of(role: Role, name: str) -> str:
    """Where a role's file `name` is in a checkpoint's folder: one of the leading role is at its top.

    Those of another role are in a folder of its own, `critic/`, a folder of Hugging Face's as the whole is one.
    """
    return name if role is LEADING_ROLE else f"{role.value}/{name}"


def owner_of(file: str) -> Role:
    """The role whose file it is, by its place in a checkpoint's folder."""
    return next((role for role in SAVING_ROLES if file.startswith(f"{role.value}/")), LEADING_ROLE)


def reference_file(share: WeightShare) -> str:
    """Which file of a folder names the place of part `share` of the reference version."""
    return "reference.json" if share.count == 1 else f"reference-{share.index + 1:05}-of-{share.count:05}.json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A rank's part of the reference version that rows are measured against, as a file below `reference`."""

    version: int
    file: str
    checksum: str


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
    """Writes `record` to the record file, and to the link that clones follow; a file that is none is retained."""
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


def expected_checksums(root: Path, folder: str, role: Role = LEADING_ROLE) -> dict[Path, str]:
    """Every file of a role in a recorded folder, with its checksum; none where the record is of a job without the role.

    The reference version that the folder names, and the file of checksums itself, are the leading role's to verify.
    A file of checksums that leaves no file out is proved by the others: any damage of it would be theirs as well. So it
    is the record that is damaged where that has another digest of it.
    """
    path = root / folder
    checksums: dict[str, str] = read_json(path / CHECKSUMS_FILE)
    expected = {path / name: checksum for name, checksum in checksums.items() if owner_of(name) is role}
    if role is not LEADING_ROLE:
        return expected
    record = read_record(root)
    if record is not None and record.folder == folder and not _leaves_none_out(path, checksums):
        expected |= {path / name: checksum for name, checksum in record.checksums.items()}
    references = named_references(path).values()
    return expected | {root / REFERENCE_FOLDER / part.file: part.checksum for part in references}


def named_references(folder: Path) -> dict[str, Reference]:
    """What the files of a folder record of the reference version that its rows are measured against."""
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
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
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
    """In bytes; 0 of a file that is not there, which the rank that reads it reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def verify(path: Path, expected: str, on_read: Callable[[int], None] = _uncounted) -> None:
    """Raises CheckpointDamaged for a file that two readings find to be another one than was written.

    `on_read` gets how many bytes were read, those of a second reading as well.
    """
    for _ in range(2):
        try:
            found = file_checksum(path, on_read)
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
