"""Which record a folder is or has, what lies in it, and whether its files are what was written.

For `checkpoints.command`, on any machine that has the files; needs no job and no torch. Reads names, sizes, JSON and
the heads of safetensors files; all bytes only to verify them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rljob_api.model_files.families import architecture_of
from rljob_api.model_files.size import stored_head
from rljob_api.names import Role
from rljob_api.roles import SAVING_ROLES
from rljob_api.wire.checkpoint_report import (
    CheckpointReport,
    RecordedModel,
    RecordedReference,
    RecordedRole,
    RecordedState,
    StateKind,
)
from rljob_api.wire.checkpoints import BestCheckpoint
from rljob_workers.dcs.checkpoints.on_disk import (
    BEST_FILE,
    CHECKSUMS_FILE,
    RECORD_FILE,
    RECORDED_MARK,
    REFERENCE_FOLDER,
    CheckpointFolder,
    expected_checksums,
    file_of,
    named_references,
    parse_damaged,
    parse_folder,
    read_json,
    read_record,
    size_of,
    verify,
)
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable
from rljob_workers.models.blob import WEIGHTS_FILE, is_part_of_several
from rljob_workers.models.slices import STEPS

_CONFIG_FILE = "config.json"


_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Names of safetensors, and torch's."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record on disk, and how it was found."""

    root: Path
    """The folder that it lies in: the job's checkpoints, unless it was copied elsewhere."""
    name: str
    latest_of: Path | None
    """`root`, where that was given and this is its latest record."""

    @property
    def folder(self) -> Path:
        """Its files."""
        return self.root / self.name

    @property
    def written_as(self) -> CheckpointFolder | None:
        """By its name; None where it has another one than it was written under."""
        return parse_folder(self.name, is_recorded=True) or parse_damaged(self.name)


def find_record(folder: Path) -> Record:
    """The record that `folder` is, else the latest one in it. ValueError, with the cure, where there is none."""
    path = folder.resolve()
    if not path.is_dir():
        raise ValueError(f"{folder} is not a folder. Give a record, the folder with a job's records, or one of a run.")
    named = parse_folder(path.name, is_recorded=False)
    if named is not None and named.is_partial:
        raise ValueError(
            f"{folder} is no record: it is still being written, or a death has left it. Give a folder without .partial."
        )
    if (path / CHECKSUMS_FILE).exists() or named is not None or parse_damaged(path.name) is not None:
        return Record(path.parent, path.name, None)
    names = recorded_names(path)
    last = read_record(path)
    if last is not None and (path / last.folder).is_dir():
        return Record(path, last.folder, path)
    if names:
        return Record(path, names[0], path)
    raise ValueError(
        f"{folder} has no record of a checkpoint: nothing was saved there yet, or it is neither the folder of a run nor"
        " its checkpoint.path. Give a folder with records (N-eN-...), or one of them."
    )


def recorded_names(root: Path) -> list[str]:
    """Folders in `root` that bear the mark of a record, newest first."""
    marked = (parse_folder(mark.parent.name, is_recorded=True) for mark in root.glob(f"*/{RECORDED_MARK}"))
    found = [folder for folder in marked if folder is not None and not folder.is_partial]
    return [one.name for one in sorted(found, key=lambda one: (one.version, one.epoch), reverse=True)]


def best_beside(root: Path) -> BestCheckpoint | None:
    """What `best.json` names, if that is there."""
    try:
        best = BestCheckpoint.model_validate(read_json(root / BEST_FILE))
    except (CheckpointDamaged, ValidationError):
        return None
    return best if (root / best.folder).is_dir() else None


def describe(record: Record) -> CheckpointReport:
    """What a record has, by names, sizes and heads; what of these cannot be read is in `damage`."""
    damage: list[str] = []
    named, last = record.written_as, read_record(record.root)
    files = [path for path in record.folder.rglob("*") if path.is_file()]
    is_last = last is not None and last.folder == record.name
    dated = record.folder / CHECKSUMS_FILE
    return CheckpointReport(
        folder=str(record.folder),
        latest_of=None if record.latest_of is None else str(record.latest_of),
        best=best_beside(record.root),
        others=[name for name in recorded_names(record.root) if name != record.name],
        version=None if named is None else named.version,
        epoch=None if named is None else named.epoch,
        lineage=last.id.lineage if last is not None and is_last else None,
        is_recorded=is_last or (record.folder / RECORDED_MARK).exists(),
        written_at=datetime.fromtimestamp((dated if dated.exists() else record.folder).stat().st_mtime, UTC),
        files=len(files),
        bytes=sum(map(size_of, files)),
        is_intact=None,
        damage=damage,
        roles=[found for role in SAVING_ROLES if (found := _role(record.folder, role, damage)) is not None],
        reference=_reference(record, damage),
    )


def expected_files(record: Record, roles: Iterable[Role] = SAVING_ROLES) -> dict[Path, str]:
    """The checksum of every file of some roles in a record. Raises CheckpointDamaged where none are known.

    The reference version is left out where the record was copied without its surroundings.
    """
    expected = {
        path: checksum
        for role in roles
        for path, checksum in expected_checksums(record.root, record.name, role).items()
    }
    if not _is_alone(record):
        return expected
    return {path: checksum for path, checksum in expected.items() if path.is_relative_to(record.folder)}


def damage_in(expected: Mapping[Path, str], on_read: Callable[[int], None]) -> Iterator[str]:
    """Each file that is not what was written, and how. Raises CheckpointUnreadable where the storage gives an error."""
    for path, checksum in expected.items():
        try:
            verify(path, checksum, on_read)
        except CheckpointDamaged as damage:
            yield f"{path} {damage.what}"


def weight_files(folder: Path) -> list[Path]:
    """The files of a role's published weights, in the order of the parts; none where it has none."""
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    return sorted(path for path in folder.glob("model-*.safetensors") if is_part_of_several(path.name))


def described_model(folder: Path) -> dict[str, Any]:
    """The config.json of a role's folder. Raises CheckpointDamaged, CheckpointUnreadable."""
    return read_json(folder / _CONFIG_FILE)


def model_type_of(described: Mapping[str, Any]) -> str | None:
    """The family that a config.json names."""
    kind = described.get("model_type")
    return kind if isinstance(kind, str) else None


def _is_alone(record: Record) -> bool:
    """Whether it lies outside of a folder with a job's records."""
    return not (record.root / RECORD_FILE).exists() and not (record.root / REFERENCE_FOLDER).is_dir()


def _role(folder: Path, role: Role, damage: list[str]) -> RecordedRole | None:
    place = folder / file_of(role, "")
    files, states = weight_files(place), _state_files(place, role)
    if not files and not states:
        return None
    return RecordedRole(role=role, model=_model(place, files, damage), state=_state(states, damage))


def _state_files(place: Path, role: Role) -> list[Path]:
    """The descriptions of all ranks."""
    return sorted(place.glob(f"{role.value}-[0-9]*.json"))


def _model(place: Path, files: list[Path], damage: list[str]) -> RecordedModel | None:
    tensors = [tensor for file in files for _, tensor in _stored(file, damage)]
    if not tensors:
        return None
    described: Mapping[str, Any] = {}
    try:
        described = described_model(place)
    except (CheckpointDamaged, CheckpointUnreadable) as error:
        damage.append(_what(error))
    dtypes: Counter[str] = Counter()
    for tensor in tensors:
        dtypes[tensor.dtype] += tensor.bytes
    return RecordedModel(
        model_type=model_type_of(described),
        architecture=architecture_of(described),
        parameters=sum(tensor.elements for tensor in tensors),
        dtypes=dtypes,
        bytes=dtypes.total(),
        parts=len(files),
    )


def _state(descriptions: list[Path], damage: list[str]) -> RecordedState | None:
    if not descriptions:
        return None
    slices: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    steps = []
    for path in descriptions:
        for key, tensor in _stored(path.with_suffix(".safetensors"), damage):
            kind = key.partition("/")[0]
            slices[kind] += 1
            sizes[kind] += tensor.bytes
        try:
            values = read_json(path).get("values")
            steps.append(values.get(STEPS) if isinstance(values, dict) else None)
        except (CheckpointDamaged, CheckpointUnreadable) as error:
            damage.append(_what(error))
    return RecordedState(
        ranks=len(descriptions),
        optimizer_steps=next((number for number in steps if type(number) is int), None),
        kinds=[StateKind(kind=kind, slices=slices[kind], bytes=sizes[kind]) for kind in sorted(slices)],
        bytes=sizes.total(),
    )


def _reference(record: Record, damage: list[str]) -> RecordedReference | None:
    try:
        parts = list(named_references(record.folder).values())
    except (CheckpointDamaged, CheckpointUnreadable) as error:
        damage.append(_what(error))
        return None
    if not parts:
        return None
    files = [record.root / REFERENCE_FOLDER / part.file for part in parts]
    return RecordedReference(
        version=parts[0].version,
        files=[part.file for part in parts],
        bytes=sum(map(size_of, files)),
        is_here=all(file.is_file() for file in files),
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    dtype: str
    elements: int
    bytes: int


def _stored(file: Path, damage: list[str]) -> list[tuple[str, _Stored]]:
    """The tensors in a safetensors file, by its head; none, and a line of `damage`, where that is none."""
    try:
        return [(name, _of_head(tensor)) for name, tensor in stored_head(file).items()]
    except FileNotFoundError:
        damage.append(f"{file} is not there")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damage.append(f"{file} is not a whole safetensors file ({error!r})")
    return []


def _of_head(tensor: Mapping[str, Any]) -> _Stored:
    begin, end = tensor["data_offsets"]
    dtype = tensor["dtype"]
    return _Stored(_DTYPES.get(dtype, dtype), math.prod(tensor["shape"]), end - begin)


def _what(error: Exception) -> str:
    return str(error).removeprefix("checkpoint: ")
