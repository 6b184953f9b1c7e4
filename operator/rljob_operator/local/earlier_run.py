"""The earlier run in a folder that is started over: it stays beside it as `NAME.1`, or is deleted on request.

Called by `run_folder` with the folder locked. Takes what the earlier run's record names and nothing else: a link or a
mount below the run's folders is neither followed nor moved. Everything is checked before anything is moved; a start
that was cut off in between is finished by the next one.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_record import FILE, MANIFEST, CheckpointOwner, RunRecord, replace_file, sync_folder

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Earlier(StrEnum):
    """What becomes of an earlier run in the folder of a start."""

    GOES_ON = "GoesOn"
    RETAINED = "Retained"
    DELETED = "Deleted"


def start_over(path: Path, record: RunRecord, earlier: Earlier) -> str:
    """Clears the run folder `path` of the run that `record` describes; a sentence of where it is. Raises RunRefused."""
    _refuse_what_is_elsewhere(path, record)
    if earlier is Earlier.RETAINED:
        _refuse_what_has_no_room_beside_it(path, record)
    try:
        return _delete(path, record) if earlier is Earlier.DELETED else _keep(path, record)
    except OSError as error:
        raise RunRefused(
            f"--fresh: {error.filename or path} cannot be moved or deleted ({error.strerror}). Mend that and run again"
            " with --fresh, or choose another folder with --out."
        ) from error


def _keep(path: Path, record: RunRecord) -> str:
    if str(path) not in record.moves:
        number = record.leaves or _free_number(path, record)
        moves = {str(base): str(_beside(base, number)) for base in _bases(path, record)}
        record = record.model_copy(update={"leaves": number, "moves": moves})
        record.write(path)
    targets = {Path(base): Path(target) for base, target in record.moves.items()}
    for base, target in targets.items():
        if not target.is_dir():
            target.mkdir(mode=base.stat().st_mode & 0o777)
    _sync(_move(path, record, targets) | {target.parent for target in targets.values()})
    for base, target in targets.items():
        if base != path:
            _rename_checkpoints(targets[path], target)
    record.moved(path).write(targets[path])
    (path / FILE).unlink(missing_ok=True)
    _remove_empty(path, record)
    _sync(base for base in targets if base.is_dir())
    return f"the earlier run is kept in {' and '.join(record.moves.values())}"


def _move(path: Path, record: RunRecord, targets: Mapping[Path, Path]) -> set[Path]:
    """All but the record itself; the folders whose names have changed."""
    changed: set[Path] = set()
    for place, entry in list(record.entries(path)):
        base, _ = record.located(path, place)
        if base not in targets or entry == path / FILE:
            continue
        below = entry.relative_to(base)
        target = targets[base] / below
        target.parent.mkdir(parents=True, exist_ok=True)
        entry.rename(target)
        changed |= {entry.parent, *target.parents[: len(below.parts)]}
    return changed


def _rename_checkpoints(run: Path, checkpoints: Path) -> None:
    """The retained run goes on from where its checkpoints are now: its manifest and their record name each other."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # what is no manifest stays as it is
        manifest = json.loads((run / MANIFEST).read_bytes())
        manifest["spec"]["checkpoint"]["path"] = str(checkpoints)
        replace_file(run / MANIFEST, json.dumps(manifest, indent=2).encode(), durable=True)
    owner = CheckpointOwner.of(checkpoints)
    if owner is not None:
        owner.model_copy(update={"out": str(run)}).write(checkpoints)


def _sync(folders: Iterable[Path]) -> None:
    for folder in folders:
        sync_folder(folder)


def _delete(path: Path, record: RunRecord) -> str:
    record.model_copy(update={"leaves": 0}).write(path)
    for _, entry in list(record.entries(path)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _remove_empty(path, record)
    return "what the earlier run wrote was deleted"


def _bases(path: Path, record: RunRecord) -> list[Path]:
    """The folders that get a number: the run's, and one of its own for checkpoints that lie elsewhere."""
    return list(dict.fromkeys((path, *(record.located(path, place)[0] for place, _ in record.entries(path)))))


def _beside(base: Path, number: int) -> Path:
    return base.with_name(f"{base.name}.{number}")


def _free_number(path: Path, record: RunRecord) -> int:
    number = 1
    while any(os.path.lexists(_beside(base, number)) for base in _bases(path, record)):
        number += 1
    return number


def _remove_empty(path: Path, record: RunRecord) -> None:
    """Removes folders of the run that are empty."""
    for place in record.places:
        base, below = record.located(path, place)
        folder = base / below
        if folder != path and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _refuse_what_is_elsewhere(path: Path, record: RunRecord) -> None:
    for what, cause in _elsewhere(path, record):
        raise RunRefused(
            f"--fresh: {what} {cause}, so that what the earlier run wrote there is neither moved nor deleted. Move it"
            " away yourself, or choose another folder with --out."
        )


def _refuse_what_has_no_room_beside_it(path: Path, record: RunRecord) -> None:
    for what, cause in _immovable(path, record):
        raise RunRefused(
            f"--fresh: {what} {cause}, so that the earlier run cannot be kept beside it. Choose another folder with"
            " --out, or add --delete-earlier to delete what that run wrote."
        )


def _immovable(path: Path, record: RunRecord) -> Iterator[tuple[Path, str]]:
    """What cannot be renamed to the folder beside its own."""
    mounts = _mounts()
    for base in _bases(path, record):
        if base in mounts:
            yield base, "is a mount of its own"
        if not os.access(base.parent, os.W_OK):
            yield base, f"lies in {base.parent}, which cannot be written"
    for place, entry in record.entries(path):
        base, _ = record.located(path, place)
        if _device(entry) != _device(base.parent):  # a volume of its own, that is no mount
            yield entry, f"is on another disk than {base.parent}"


def _elsewhere(path: Path, record: RunRecord) -> Iterator[tuple[Path, str]]:
    """Links on the way to what the run wrote below its folders, and mounts there or in what it wrote."""
    mounts = _mounts()
    for place in record.places:
        base, below = record.located(path, place)
        on_the_way = [base / Path(*below.parts[:number]) for number in range(1, len(below.parts) + 1)]
        for folder in on_the_way:
            if folder.is_symlink():
                yield folder, f"is a link to {folder.readlink()}"
        for folder in (base, *on_the_way):
            if folder in mounts and folder != path:
                yield folder, "is a mount of its own"
    for _, entry in record.entries(path):
        inside = next((mount for mount in mounts if mount == entry or entry in mount.parents), None)
        if inside is not None:
            yield inside, "is a mount of its own"


def _device(entry: Path) -> int:
    return entry.lstat().st_dev


def _mounts() -> set[Path]:
    """Mount points, as the kernel names them; bind mounts of the same device, too."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return set()
    return {Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), line.split()[4])) for line in lines}
