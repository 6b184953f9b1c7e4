"""The earlier run in a folder that is started over: kept beside it as `NAME.1`, or deleted where its user says so.

Called by `run_folder` with the folder locked. Takes what the earlier run's record names and nothing else: a link or a
mount on the way to it is neither followed nor moved. Everything is looked at before anything is moved; a start that
was cut off in between is finished by the next one.
"""

import os
import re
import shutil
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_files import sync_folder
from rljob_operator.local.run_record import FILE, Place, RunRecord, base_of

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Earlier(StrEnum):
    """What becomes of an earlier run in the folder of a start."""

    GOES_ON = "GoesOn"
    KEPT = "Kept"
    DELETED = "Deleted"


def start_over(path: Path, record: RunRecord, earlier: Earlier) -> str:
    """Clears the run folder `path` of the run that `record` describes; a sentence of where it is. Raises RunRefused."""
    _refuse_what_is_elsewhere(path, record)
    if earlier is Earlier.KEPT:
        _refuse_what_has_no_room_beside_it(path, record)
    try:
        return _delete(path, record) if earlier is Earlier.DELETED else _keep(path, record)
    except OSError as error:
        raise RunRefused(
            f"--fresh: {error.filename or path} cannot be moved or deleted ({error.strerror}). Mend that and run again"
            " with --fresh, or choose another folder with --out."
        ) from error


def _keep(path: Path, record: RunRecord) -> str:
    number = record.leaves or _free_number(path, record)
    if number != record.leaves:
        record = record.model_copy(update={"leaves": number})
        record.write(path)
    bases = _bases(path, record)
    for place, entry in list(record.entries(path)):
        base = _base(path, place)
        target = _beside(base, number) / entry.relative_to(base)
        _beside(base, number).mkdir(mode=base.stat().st_mode & 0o777, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.name == FILE and entry.parent == path:
            record.model_copy(update={"leaves": None}).write(target.parent)
            entry.unlink()
        else:
            entry.rename(target)
    for base in bases:
        sync_folder(base)
    _remove_empty(path, record)
    return f"the earlier run is kept in {' and '.join(str(_beside(base, number)) for base in bases)}"


def _delete(path: Path, record: RunRecord) -> str:
    record.model_copy(update={"leaves": 0}).write(path)
    for _, entry in list(record.entries(path)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _remove_empty(path, record)
    return "what the earlier run wrote was deleted"


def _base(path: Path, place: Place) -> Path:
    """The folder that gets a number: the run's, or one of its own for checkpoints that lie elsewhere."""
    return base_of(place) if Path(place.folder).is_absolute() else path


def _bases(path: Path, record: RunRecord) -> list[Path]:
    """Those that hold something of the run."""
    return list(dict.fromkeys((path, *(_base(path, place) for place, _ in record.entries(path)))))


def _beside(base: Path, number: int) -> Path:
    return base.with_name(f"{base.name}.{number}")


def _free_number(path: Path, record: RunRecord) -> int:
    number = 1
    while any(os.path.lexists(_beside(base, number)) for base in _bases(path, record)):
        number += 1
    return number


def _remove_empty(path: Path, record: RunRecord) -> None:
    """Folders of the run that hold nothing of anybody else's."""
    for place in record.places:
        folder = path / place.folder
        if folder != path and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _refuse_what_is_elsewhere(path: Path, record: RunRecord) -> None:
    for what, cause in _elsewhere(path, record):
        raise RunRefused(
            f"--fresh: {what} {cause}, so that what the earlier run wrote there is neither moved nor deleted. Move it"
            " away yourself, or choose another folder with --out."
        )


def _refuse_what_has_no_room_beside_it(path: Path, record: RunRecord) -> None:
    mounts = _mounts()
    for base in _bases(path, record):
        if base in mounts or not os.access(base.parent, os.W_OK):
            cause = "is a mount of its own" if base in mounts else f"lies in {base.parent}, which cannot be written"
            raise RunRefused(
                f"--fresh: {base} {cause}, so that the earlier run cannot be kept beside it. Choose another folder with"
                " --out, or add --delete-earlier to delete what that run wrote."
            )


def _elsewhere(path: Path, record: RunRecord) -> Iterator[tuple[Path, str]]:
    """Folders of the run that are links, and mounts in what the run wrote."""
    mounts = _mounts()
    for place in record.places:
        folder = path / place.folder
        if place.folder != "." and not Path(place.folder).is_absolute() and folder.is_symlink():
            yield folder, f"is a link to {folder.readlink()}"
        if folder in mounts and folder != path:
            yield folder, "is a mount of its own"
    for _, entry in record.entries(path):
        inside = next((mount for mount in mounts if mount == entry or entry in mount.parents), None)
        if inside is not None:
            yield inside, "is a mount of its own"


def _mounts() -> set[Path]:
    """Mount points, as the kernel names them; bind mounts of the same device, too."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return set()
    return {Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), line.split()[4])) for line in lines}
