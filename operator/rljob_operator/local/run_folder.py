"""The run folder: lock, manifest, status, metrics, events, and where everything else of a run lies.

Used by the supervisor alone. `status.json` is replaced atomically; the other files only grow, a line at a time.
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ValidationError

from rljob_api import generations
from rljob_api.cluster_fields import is_cluster_only
from rljob_api.problems import first_problem
from rljob_api.revision import refused_changes
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import Phase, RLJobStatus
from rljob_operator.local.errors import RunRefused

_PRODUCTS = (
    "status.json",
    "metrics.jsonl",
    "events.jsonl",
    "samples.jsonl",
    *generations.FILES,
    "timeline.json",
    "timeline",
    "logs",
    "checkpoints",
    "redis",
    "job.json",
    "endpoints.json",
)
"""What a run writes and what `--fresh` removes. Anything else in the folder is the user's."""


class _Before(BaseModel):
    """What a run was started with but for its name: it may go on under another, and has to where its own is refused."""

    spec: RLJobSpec


class RunFolder:
    """One run's folder, locked as long as this object is open."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        self.path = path
        self._lock = lock
        self._steps: set[tuple[int, int]] | None = None

    @classmethod
    def open(cls, path: Path, *, fresh: bool) -> "RunFolder":
        """Locks the folder, made if it is missing. Raises RunRefused while another run holds it."""
        path = path.absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RunRefused(f"--out: {path} is not a folder. Choose another place with --out.") from None
        lock = (path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise RunRefused(
                f"--out: {path} is in use by `rljob run` (process {owner}). Wait for it, stop it with Ctrl-C, "
                "or choose another folder with --out."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        folder = cls(path, lock)
        if fresh:
            folder._clear()
        for name in ("logs", "timeline", "checkpoints", "redis"):
            (path / name).mkdir(exist_ok=True)
        return folder

    def close(self) -> None:
        """Gives the lock back."""
        self._lock.close()

    @property
    def manifest(self) -> Path:
        """The resolved manifest."""
        return self.path / "job.json"

    @property
    def endpoints(self) -> Path:
        """Addresses and secrets of this start, mode 0600."""
        return self.path / "endpoints.json"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie unless the spec says otherwise."""
        return self.path / "checkpoints"

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.path / "logs" / f"{name}.log"

    def status(self) -> RLJobStatus:
        """The last persisted status, or an empty one. Raises RunRefused for one that cannot be understood."""
        file = self.path / "status.json"
        try:
            return RLJobStatus.model_validate_json(file.read_bytes()) if file.exists() else RLJobStatus()
        except ValidationError as error:
            raise RunRefused(
                f"--out: {file} is not a status that this version of rljob knows ({first_problem(error)}), so the run"
                f" in {self.path} cannot be gone on with. Use the version that wrote it, choose another folder with"
                " --out, or start over with --fresh."
            ) from error

    def check(self, job: RLJob) -> None:
        """Raises RunRefused where the folder belongs to a job that differs in what cannot change."""
        if not self.manifest.exists():
            return
        for change in refused_changes(self._spec_before(), job.spec):
            if is_cluster_only(change.field):
                continue
            raise RunRefused(
                f"spec.{change.field}: {change.new!r} differs from {change.old!r}, with which the run in {self.path}"
                f" was started, and {change.row.refusal()} Set it back, choose another folder with --out, or start over"
                " with --fresh."
            )

    def _spec_before(self) -> RLJobSpec:
        try:
            return _Before.model_validate_json(self.manifest.read_bytes()).spec
        except ValidationError as error:
            raise RunRefused(
                f"--out: {self.manifest} is not a manifest that this version of rljob knows, so the run in {self.path}"
                " cannot be gone on with. Choose another folder with --out, or start over with --fresh."
            ) from error

    def is_finished(self, job: RLJob) -> bool:
        """Whether this folder's run has trained all that `job` asks for."""
        status = self.status()
        recorded = status.training.checkpoint
        done = recorded is not None and recorded >= job.spec.rollout.num_rollouts
        return status.phase is Phase.SUCCEEDED and done

    def write_manifest(self, job: RLJob) -> None:
        """The resolved manifest, for every process of the run."""
        _replace(self.manifest, job.model_dump_json(by_alias=True, indent=2).encode(), durable=True)

    def write_status(self, status: RLJobStatus, *, durable: bool) -> None:
        """Atomically; `durable` also waits for the disk."""
        _replace(self.path / "status.json", status.model_dump_json(by_alias=True, indent=2).encode(), durable=durable)

    def append_event(self, line: Mapping[str, object]) -> None:
        """One decision."""
        _append(self.path / "events.jsonl", line)

    def append_step(self, line: Mapping[str, object]) -> bool:
        """One trained step; False for one that is already there. After a restart a step trained again is a new line."""
        key = (int(str(line["epoch"])), int(str(line["step"])))
        if self._steps is None:
            self._steps = {(line["epoch"], line["step"]) for line in read_lines(self.path / "metrics.jsonl")}
        if key in self._steps:
            return False
        self._steps.add(key)
        _append(self.path / "metrics.jsonl", line)
        return True

    def tail(self, name: str, size: int = 4096) -> str:
        """The last words in the log of a process."""
        file = self.log(name)
        if not file.exists():
            return ""
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - size))
            return log.read().decode(errors="replace")

    def _clear(self) -> None:
        for name in _PRODUCTS:
            entry = self.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file; a torn last line, left by a kill, is skipped."""
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def memory_path(run: Path) -> Path:
    """Where `memory_folder` of this run folder is: derived from its path, so that the next start finds it."""
    base = Path("/dev/shm")  # noqa: S108 - memory; the folder is made with mode 0700 and its owner is checked
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    return base / f"rljob-{os.getuid()}-{hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:12]}"


def memory_folder(run: Path) -> Path:
    """An empty folder in memory of this user and this run: sockets (whose paths must be short) and staged weights.

    What a killed start has left in it is swept.
    """
    folder = memory_path(run)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RunRefused(f"{folder} belongs to somebody else. Remove it, or choose another folder with --out.")
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return folder


def write_secret(file: Path, data: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    beside = file.with_name(f".{file.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
    beside.replace(file)


def _append(file: Path, line: Mapping[str, object]) -> None:
    """One write per line: a kill can tear only the last one, which the next line then closes."""
    with file.open("a+b") as out:
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - 1))
        torn = size > 0 and out.read(1) != b"\n"
        out.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def _replace(file: Path, data: bytes, *, durable: bool) -> None:
    beside = file.with_name(f".{file.name}.new")
    with beside.open("wb") as out:
        out.write(data)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    beside.replace(file)
    if durable:
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
