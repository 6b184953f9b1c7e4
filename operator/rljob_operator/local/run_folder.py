"""The run folder: locked, created or resumed. The journal writes status, events and metrics into it.

A checkpoint folder elsewhere is locked for as long as the run uses it and records its owner: a later run deletes what
its records make superfluous, so two runs never share one.
"""

import fcntl
import itertools
import os
import secrets
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ValidationError

from rljob_api.cluster_rules import is_cluster_only
from rljob_api.problems import first_problem
from rljob_api.revision import changes, refused_changes, run_digest
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import Phase, RLJobStatus
from rljob_api.wire.logs import last_incarnations
from rljob_operator.core import Reason
from rljob_operator.core.conditions import terminal
from rljob_operator.local.earlier_run import Earlier, start_over
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_record import (
    FILE,
    LOCK,
    MANIFEST,
    CheckpointOwner,
    RunRecord,
    checkpoint_folder,
    replace_file,
    strangers,
)


def lock_checkpoints(path: Path, spec: RLJobSpec) -> TextIO | None:
    """Makes the folder of the checkpoints of the run in the folder `path`; its lock where it lies elsewhere.

    Raises RunRefused where it cannot be written or is in use.
    """
    folder = path / checkpoint_folder(path, spec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(0, "no right to write there")
        if folder.is_relative_to(path):
            return None
        in_use = f"spec.checkpoint.path: {folder} is in use by another run. Give each run a folder of its own."
        return _flocked((folder / LOCK).open("a+"), in_use)
    except OSError as error:
        raise _unwritable(folder, error) from error


def refuse_anothers(path: Path, spec: RLJobSpec, before: RunRecord) -> None:
    """Refuses what `own_checkpoints` would refuse once the run `before`, whose folder is `path`, is cleared away."""
    folder = path / checkpoint_folder(path, spec)
    owner = None if folder.is_relative_to(path) else CheckpointOwner.of(folder)
    if owner is not None and not owner.is_run(before.run, path) and owner.digest != run_digest(spec):
        raise _of_another(folder, owner)


def own_checkpoints(path: Path, spec: RLJobSpec, run: str) -> None:
    """Notes in a locked folder whose checkpoints it has. Raises RunRefused where they are another run's."""
    folder = path / checkpoint_folder(path, spec)
    if folder.is_relative_to(path):
        return
    owner, digest = CheckpointOwner.of(folder), run_digest(spec)
    has_begun = (path / "status.json").exists()
    if owner is not None and (
        _is_copy(path, owner, run) or (owner.run != run and (has_begun or owner.digest != digest))
    ):
        raise _of_another(folder, owner)
    try:
        CheckpointOwner(run=run, out=str(path), digest=digest).write(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _flocked(lock: TextIO, in_use: str) -> TextIO:
    """The open file, locked until it is closed. Raises RunRefused with `in_use` where another process has locked it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise RunRefused(in_use) from None
    return lock


def _unwritable(folder: Path, error: OSError) -> RunRefused:
    return RunRefused(f"spec.checkpoint.path: {folder} cannot be written ({error.strerror}). Give one that can be.")


def _of_another(folder: Path, owner: CheckpointOwner) -> RunRefused:
    return RunRefused(
        f"spec.checkpoint.path: {folder} has the checkpoints of another run, whose folder is {owner.out}. Give"
        " another folder; to begin with its weights, set model.path to its last checkpoint."
    )


def _is_copy(path: Path, owner: CheckpointOwner, run: str) -> bool:
    """Whether the run folder `path` was copied from one that is still there: both would write these checkpoints."""
    if owner.run != run or owner.is_run(run, path):
        return False
    original = RunRecord.read(Path(owner.out))
    return original is not None and original.run == run


_SHOWN = 5
"""Names in a sentence."""


_LONGEST_OWNER = 32
"""Characters of a lock: the number of a process."""


class _Before(BaseModel):
    """What a run was started with but for its name: it may go on under another, and has to where its own is refused."""

    spec: RLJobSpec


class RunFolder:
    """One run's folder, locked as long as this object is open."""

    def __init__(self, path: Path, lock: TextIO) -> None:
        self.path = path
        self._lock = lock
        self._checkpoints: TextIO | None = None

    @classmethod
    def open(cls, path: Path, *, fresh: bool) -> "RunFolder":
        """Locks the folder, made if it is missing; nothing of it is changed yet.

        Raises RunRefused while another run holds it, and for a folder that holds what no run wrote: under a run's own
        names, or with `fresh` anything.
        """
        path = path.absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RunRefused(f"--out: {path} is not a folder. Choose another place with --out.") from None
        except OSError as error:
            raise _cannot_be_written(path, error) from error
        _refuse_strangers(path, fresh=fresh)
        return cls(path, _locked(path))

    def start_over(self, job: RLJob, earlier: Earlier) -> str:
        """Clears the folder for `job` of an earlier run. A sentence of what became of that, empty where there was none.

        Raises RunRefused, too, where `job` would go on from checkpoints that stay.
        """
        path = self.path.resolve()
        record = RunRecord.read(path)
        left = self.path / checkpoint_folder(self.path, job.spec) / "record.json"
        ours = () if record is None else [entry.resolve() for _, entry in record.entries(path)]
        if left.exists() and left.resolve() not in ours:
            raise RunRefused(
                f"spec.checkpoint.path: {left.parent} has checkpoints that are not of the earlier run in {path}, so"
                " that --fresh leaves them, and this run would go on from them. Give another folder, or move them away."
            )
        if record is None:
            return ""
        self._checkpoints = lock_checkpoints(self.path, job.spec)  # a start that is refused has cleared nothing
        refuse_anothers(self.path, job.spec, record)
        return start_over(path, record, earlier)

    def begin(self, job: RLJob) -> None:
        """Makes what a run needs, its record first. Raises RunRefused where the folder belongs to another job."""
        self._check(job)
        record = RunRecord.read(self.path)
        if record is not None and record.leaves is not None:
            raise RunRefused(
                f"--out: {self.path}: an earlier start with --fresh was cut off while it cleared the folder. Run again"
                " with --fresh, or choose another folder with --out."
            )
        known = RunRecord.of(self.path, job.spec, (record and record.run) or secrets.token_hex(6))
        try:
            if known != record:
                known.write(self.path)
            for name in ("logs", "timeline", "redis"):
                (self.path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise _cannot_be_written(self.path, error) from error
        if self._checkpoints is None:
            self._checkpoints = lock_checkpoints(self.path, job.spec)
        own_checkpoints(self.path, job.spec, known.run)

    def close(self) -> None:
        """Gives the locks back."""
        self._lock.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    @property
    def manifest(self) -> Path:
        """The resolved manifest."""
        return self.path / MANIFEST

    @property
    def endpoints(self) -> Path:
        """Addresses and secrets of this start, mode 0600."""
        return self.path / "endpoints.json"

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

    def _check(self, job: RLJob) -> None:
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
        """Whether this folder's run has trained all that `job` asks for: its rollouts, or until what stopWhen names."""
        status = self.status()
        if status.phase is not Phase.SUCCEEDED:
            return False
        recorded = status.training.checkpoint
        has_trained_all = recorded is not None and recorded >= job.spec.rollout.num_rollouts
        return has_trained_all or self._is_stopped_as(job, status)

    def _is_stopped_as(self, job: RLJob, status: RLJobStatus) -> bool:
        """Whether it ended by the stopWhen that `job` has, too."""
        ended = terminal(status)
        if ended is None or ended.reason != Reason.STOP_CONDITION_MET or not self.manifest.exists():
            return False
        return job.spec.stop_when is not None and self._spec_before().stop_when == job.spec.stop_when

    def write_manifest(self, job: RLJob) -> str:
        """The resolved manifest, for every process of the run.

        One that differs stays beside it; a sentence of what differs then, else empty.
        """
        found = "" if not self.manifest.exists() else ", ".join(map(str, changes(self._spec_before(), job.spec)))
        if found:
            number = next(n for n in itertools.count(1) if not self._manifest_before(n).exists())
            replace_file(self._manifest_before(number), self.manifest.read_bytes(), durable=True)
            found += f"; the manifest of before is kept as {self._manifest_before(number).name}"
        replace_file(self.manifest, job.model_dump_json(by_alias=True, indent=2).encode(), durable=True)
        return found

    def _manifest_before(self, number: int) -> Path:
        return self.path / f"job.{number}.json"

    def tail(self, name: str, size: int = 4096) -> str:
        """The end of the newest incarnation's output in the log of a process."""
        file = self.log(name)
        if not file.exists():
            return ""
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - size))
            return last_incarnations(log.read().decode(errors="replace"))[0]


def _refuse_strangers(path: Path, *, fresh: bool) -> None:
    if RunRecord.read(path) is not None:
        return
    if (path / FILE).exists():
        raise RunRefused(
            f"--out: {path / FILE} is not the record of a run that this version of rljob knows. Choose another folder"
            " with --out, or move it away."
        )
    others = sorted(entry.name for entry in path.iterdir() if entry.name != LOCK)
    if fresh and others:
        raise RunRefused(
            f"--fresh: {path} has no record of a run ({FILE}), so that nothing in it ({_listed(others)}) is known to be"
            " an earlier run's. Leave --fresh out, or choose another folder with --out."
        )
    found = strangers(path)
    if found:
        raise RunRefused(
            f"--out: {path} has {_listed(found)}, which no run wrote and a run would write over. Choose another folder"
            " with --out, or move what is there away."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _locked(path: Path) -> TextIO:
    """The lock of this run folder, held by this process."""
    try:
        lock = (path / LOCK).open("a+")
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    lock.seek(0)
    owner = lock.read(_LONGEST_OWNER + 1).strip()
    if owner and not owner.isdecimal():
        lock.close()
        raise RunRefused(
            f"--out: {path / LOCK} is no lock of a run. Move it away, or choose another folder with --out."
        )
    _flocked(
        lock,
        f"--out: {path} is in use by `rljob run` (process {owner or 'unknown'}). Wait for it, stop it with Ctrl-C, "
        "or choose another folder with --out.",
    )
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _cannot_be_written(path: Path, error: OSError) -> RunRefused:
    return RunRefused(
        f"--out: {path} cannot be written ({error.strerror or error}). Choose another folder with --out, or mend that."
    )
