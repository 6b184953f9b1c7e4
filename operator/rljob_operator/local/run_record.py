"""The files of a run folder and its record `run.json`: whose folder it is, and which entries the run made.

Called by `run_folder` and `earlier_run`. Files are replaced atomically; lines torn by a kill are skipped on reading.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rljob_api import generations
from rljob_api.cluster import LATEST
from rljob_api.names import Role
from rljob_api.spec import RLJobSpec, Tracker
from rljob_api.status import RLJobStatus
from rljob_operator.local.errors import RunRefused


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file; a torn last line, left by a kill, is skipped."""
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_line(file: Path, line: Mapping[str, object]) -> None:
    """One write per line: a kill can tear only the last one, which the next line then closes."""
    with file.open("a+b") as out:
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - 1))
        torn = size > 0 and out.read(1) != b"\n"
        out.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def replace_file(file: Path, data: bytes, *, durable: bool) -> None:
    """Atomically; `durable` also waits for the disk."""
    beside = file.with_name(f".{file.name}.new")
    with beside.open("wb") as out:
        out.write(data)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    beside.replace(file)
    if durable:
        sync_folder(file.parent)


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names in this folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_secret(file: Path, data: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    beside = file.with_name(f".{file.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
    beside.replace(file)


FILE = "run.json"


MANIFEST = "job.json"


LOCK = "lock"


CHECKPOINTS = "checkpoints"


_REFERENCE = "reference"


_ABSENT = (FileNotFoundError, NotADirectoryError)


_POD = rf"({'|'.join(Role)})-\d+"


_INFRASTRUCTURE = r"coordinator|parent|control|storage-\d+"


_TRACKER = "|".join(Tracker)


_CHECKPOINT = r"\d+-e\d+-[0-9a-f]{12}"


_JOB = r"job(\.\d+)?\.json"


class RecordedPlace(BaseModel):
    """A folder and the entries that a run makes in it."""

    folder: str
    """Relative to the run folder, or absolute where it lies elsewhere."""
    names: list[str]


class RunRecord(BaseModel):
    """What `run.json` holds."""

    run: str
    """Drawn once: distinguishes runs that had the same folder one after the other."""
    places: list[RecordedPlace]
    leaves: int | None = None
    """A fresh start has begun to clear the folder: to `NAME.{leaves}`, or by deletion where that is 0."""
    moves: dict[str, str] = {}
    """Folders that such a start moves parts of, and where to: decided once, so that a later start finishes it."""

    @classmethod
    def of(cls, path: Path, spec: RLJobSpec, run: str) -> "RunRecord":
        """For a run of `spec` in the folder `path`."""
        return cls(run=run, places=[*_RUN_FOLDER, *_checkpoint_places(checkpoint_folder(path, spec))])

    @classmethod
    def read(cls, path: Path) -> "RunRecord | None":
        """The record of the run in the folder `path`; None where no run wrote one that can be understood.

        Raises RunRefused for one that cannot be read.
        """
        try:
            return cls.model_validate_json((path / FILE).read_bytes())
        except _ABSENT:
            return _before_records(path)
        except ValidationError:
            return None
        except OSError as error:
            raise RunRefused(
                f"--out: {path / FILE} cannot be read ({error.strerror}), so that it is not known which run is there."
                " Mend that, or choose another folder with --out."
            ) from error

    def write(self, path: Path) -> None:
        """Durably, into the run folder `path`."""
        replace_file(path / FILE, self.model_dump_json(indent=1).encode(), durable=True)

    def entries(self, path: Path) -> Iterator[tuple[RecordedPlace, Path]]:
        """What the run in the folder `path` has written, the record itself last."""
        for place in self.places:
            base, below = self.located(path, place)
            if not self._is_lost(path, base):
                for entry in matching(base / below, place.names):
                    yield place, entry
        if (path / FILE).exists():
            yield RecordedPlace(folder=".", names=[]), path / FILE

    def located(self, path: Path, place: RecordedPlace) -> tuple[Path, Path]:
        """Of which folder a place is, and where below it: the run folder `path`, or one of the run's checkpoints."""
        folder = Path(place.folder)
        if not folder.is_absolute():
            return path, folder
        named = folder.parent if any(Path(one.folder) == folder.parent for one in self.places) else folder
        return named.resolve(), folder.relative_to(named)

    def moved(self, path: Path) -> "RunRecord":
        """As it is once its folders lie at their targets in `moves`."""
        places = []
        for place in self.places:
            base, below = self.located(path, place)
            to = self.moves.get(str(base)) if base != path else None
            places.append(place if to is None else place.model_copy(update={"folder": str(Path(to) / below)}))
        return RunRecord(run=self.run, places=places)

    def _is_lost(self, path: Path, base: Path) -> bool:
        """Whether a folder of checkpoints is another run's, or that of which this is a copy."""
        owner = None if base == path else CheckpointOwner.of(base)
        return owner is not None and not owner.is_run(self.run, path)


class CheckpointOwner(BaseModel):
    """What `run.json` holds in a folder of checkpoints outside of the run folder: other runs may name the same one."""

    run: str
    out: str
    """The run folder."""
    digest: str
    """Of what makes its checkpoints what they are (`rljob_api.revision`)."""

    @classmethod
    def of(cls, folder: Path) -> "CheckpointOwner | None":
        """None where no run has recorded it. Raises RunRefused for a file that is there, and is no such one."""
        file = folder / FILE
        try:
            return cls.model_validate_json(file.read_bytes())
        except _ABSENT:
            return None
        except ValidationError as error:
            raise RunRefused(
                f"spec.checkpoint.path: {file} does not say whose checkpoints are there, and a run would write over it."
                " Move it away, or give another folder."
            ) from error
        except OSError as error:
            raise RunRefused(
                f"spec.checkpoint.path: {file} cannot be read ({error.strerror}), so that it is not known whose"
                " checkpoints are there. Mend that, or give another folder."
            ) from error

    def is_run(self, run: str, path: Path) -> bool:
        """Whether it is the run `run` in the folder `path`, and no copy of it."""
        return (self.run, Path(self.out).resolve()) == (run, path.resolve())

    def write(self, folder: Path) -> None:
        """Durably, into the folder of checkpoints."""
        replace_file(folder / FILE, self.model_dump_json(indent=1).encode(), durable=True)


class _Manifest(BaseModel):
    spec: RLJobSpec


_RUN_FOLDER = [
    RecordedPlace(folder="logs", names=[rf"({_POD}(\.\d+|\.engine(\.\d+)?)?|{_INFRASTRUCTURE}|tracker-[a-z]+)\.log"]),
    RecordedPlace(folder="timeline", names=[rf"{_POD}\..*\.jsonl"]),
    RecordedPlace(folder="redis", names=[r"control|storage-\d+"]),
    RecordedPlace(folder="devices", names=[rf"{_POD}\.[^/]*\.json"]),
    RecordedPlace(folder="engines", names=[_POD]),
    RecordedPlace(folder="trackers", names=[rf"({_TRACKER})(\.json)?|\.({_TRACKER})\.json\.new"]),
    RecordedPlace(
        folder=".",
        names=[
            r"(status|timeline|endpoints)\.json",
            r"\.(status|job|endpoints)\.json\.new",
            rf"(metrics|events|samples|evaluations)\.jsonl|{'|'.join(map(re.escape, generations.FILES))}",
            _JOB,
        ],
    ),
]


def checkpoint_folder(path: Path, spec: RLJobSpec) -> str:
    """Relative to the run folder `path`, or absolute where it lies elsewhere. Links are not followed."""
    folder = os.path.normpath(path / (spec.checkpoint.path or CHECKPOINTS))
    return os.path.relpath(folder, path) if Path(folder).is_relative_to(path) else folder


def _checkpoint_places(folder: str) -> list[RecordedPlace]:
    names = [
        rf"(\.partial-|\.deleted-)?{_CHECKPOINT}|{_CHECKPOINT}\.damaged",
        r"(record|begun|best|inputs)\.json|record\.json\.damaged|\.((record|begun|best|inputs)\.json|latest)\.\d+",
        LATEST,
    ]
    if Path(folder).is_absolute():
        names.append(re.escape(FILE))
    reference = RecordedPlace(folder=f"{folder}/{_REFERENCE}", names=[rf"{_CHECKPOINT}\.safetensors"])
    return [reference, RecordedPlace(folder=folder, names=names)]


def matching(folder: Path, names: list[str]) -> list[Path]:
    """The entries of `folder` that have one of these names; none where it is not there."""
    patterns = [re.compile(name) for name in names]
    if not folder.is_dir():
        return []
    found = (entry for entry in folder.iterdir() if any(one.fullmatch(entry.name) for one in patterns))
    return sorted(entry for entry in found if entry.name != LATEST or entry.is_symlink())


def strangers(path: Path) -> list[str]:
    """What lies in `path`, where no run was, under names that a run would write to.

    Checkpoints are left out: a run goes on from those that it finds.
    """
    return [
        str(entry.relative_to(path)) for place in _RUN_FOLDER for entry in matching(path / place.folder, place.names)
    ]


def _before_records(path: Path) -> RunRecord | None:
    """A run of a version that wrote no record: its manifest and a status of an epoch that was begun."""
    try:
        spec = _Manifest.model_validate_json((path / MANIFEST).read_bytes()).spec
        status = RLJobStatus.model_validate_json((path / "status.json").read_bytes())
    except (OSError, ValidationError):
        return None
    return RunRecord.of(path, spec, "") if status.restart.epoch > 0 else None
