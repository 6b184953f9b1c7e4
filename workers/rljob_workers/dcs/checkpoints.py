"""Checkpoints: written beside while training goes on, recorded by the coordinator, pruned only after that.

Used by global rank 0 of the actor (writing) and by every rank of it (restoring). The order is the contract: files,
checksums, sync, rename, record, `record.json`, and only then deletion.

    store.write(weight, tensors, state, tickets)     returns at once; waits only for the one that is due before it
    store.wait()                                     until all are recorded
    trainer.restore(store.verified(folder))
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from rljob_api.failpoints import failpoint
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import CheckpointRecord, CheckpointRequest
from rljob_workers.dcs.blob import safetensors_pieces
from rljob_workers.dcs.checkpoint_folders import folder_name, folders_to_delete, parse_folder, partial_name
from rljob_workers.dcs.client import CoordinatorClient
from rljob_workers.dcs.context import RankContext
from rljob_workers.dcs.durable import file_checksum, replace_synced, sync_folder, write_synced
from rljob_workers.dcs.errors import CheckpointDamaged
from rljob_workers.dcs.session import RankSession

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MODEL_FILE, STATE_FILE, VALUES_FILE = "model.safetensors", "state.safetensors", "state.json"
TICKETS_FILE, REFERENCE_FILE, CHECKSUMS_FILE = "tickets.json", "reference.json", "checksums.json"
RECORD_FILE = "record.json"
RECORDED_MARK = "RECORDED"
REFERENCE_FOLDER = "reference"
PULSE_SECONDS = 0.1
RECORD_SECONDS = 120.0
"""How long the coordinator may be away while a checkpoint waits to be recorded."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A checkpoint that is to be written: host copies that nobody changes."""

    weight: WeightId
    model: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    tickets: bytes
    reference: _Reference | None


@dataclass(frozen=True, slots=True)
class _Reference:
    """The reference version that rows are measured against, as a file below `reference`."""

    version: int
    file: str
    checksum: str


def build_checkpoint_store(
    context: RankContext, session: RankSession, describing: Mapping[str, bytes] = MappingProxyType({})
) -> CheckpointStore:
    """The store below the job's checkpoint path; `describing` are small files that go into every folder as they are."""
    return CheckpointStore(context, session, describing)


class CheckpointStore:
    """One writer thread; at most one checkpoint in flight and one due."""

    def __init__(self, context: RankContext, session: RankSession, describing: Mapping[str, bytes]) -> None:
        self._describing = describing
        self._life = session.life
        self._session = session
        self._root = context.checkpoint_dir
        self._keep = context.job.spec.checkpoint.keep
        self._endpoints = context.endpoints
        self._turn = threading.Condition()
        self._due: _Due | None = None
        self._in_flight = False
        self._failure: BaseException | None = None
        self._writer: threading.Thread | None = None
        self._reference: _Reference | None = None
        (self._root / REFERENCE_FOLDER).mkdir(parents=True, exist_ok=True)
        self._adopt(session.welcome.restore.folder)

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(
        self, weight: WeightId, model: Mapping[str, torch.Tensor], state: Mapping[str, Any], tickets: bytes
    ) -> None:
        """Has a checkpoint written; waits while another one is due already. Raises what an earlier one failed of.

        `model` and `state` are host copies that the caller does not change any more; `state` holds tensors and JSON
        values; `tickets` is the queue's ticket table (JSON).
        """
        due = _Due(weight, model, state, tickets, self._reference)
        self._await(lambda: self._due is None, f"checkpoint {weight} waits for the one before it")
        with self._turn:
            self._due = due
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
                self._writer.start()
            self._turn.notify_all()

    def wait(self) -> None:
        """Until every checkpoint is recorded. Raises what one failed of."""
        self._await(lambda: self._due is None and not self._in_flight, "the checkpoint in flight")

    @property
    def reference_version(self) -> int | None:
        """The reference version that is kept now; after a restore that of the checkpoint."""
        return None if self._reference is None else self._reference.version

    def keep_reference(self, version: int, tensors: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
        """Makes a reference version durable and gives its tensors; None: the one of the restored checkpoint."""
        if tensors is not None:
            file = f"{version}-e{self._life.epoch}-{self._life.incarnation}.safetensors"
            digest = write_synced(self._root / REFERENCE_FOLDER / file, safetensors_pieces(tensors))
            sync_folder(self._root / REFERENCE_FOLDER)
            with self._turn:
                self._reference = _Reference(version, file, digest)
            return tensors
        kept = self._reference
        if kept is None or kept.version != version:
            raise CheckpointDamaged(
                f"{self._root}: the restored checkpoint names no reference version {version} "
                f"(it has {'none' if kept is None else kept.version}). Restore the folder from a copy."
            )
        path = self._root / REFERENCE_FOLDER / kept.file
        _verify(path, kept.checksum)
        with safe_open(path, framework="pt", device="cpu") as blob:
            return {name: blob.get_tensor(name) for name in blob.keys()}  # noqa: SIM118 - not a mapping

    # --- restoring -------------------------------------------------------------------------------------------------

    def verified(self, folder: str) -> Path:
        """The path of a recorded folder whose files are what was written. Raises CheckpointDamaged."""
        path = self._root / folder
        checksums = _read_json(path / CHECKSUMS_FILE)
        record = self._record()
        if record is not None and record.folder == folder:
            checksums |= record.checksums
        for name, digest in checksums.items():
            _verify(path / name, digest)
        return path

    def _adopt(self, folder: str | None) -> None:
        """The restored folder is recorded, whatever its mark says, and knows the reference version."""
        if folder is None or not (self._root / folder).is_dir():
            return
        (self._root / folder / RECORDED_MARK).touch()
        reference = self._root / folder / REFERENCE_FILE
        if reference.exists():
            self._reference = _Reference(**_read_json(reference))

    def _record(self) -> CheckpointRecord | None:
        path = self._root / RECORD_FILE
        return CheckpointRecord.model_validate_json(path.read_bytes()) if path.exists() else None

    # --- the writer's thread ---------------------------------------------------------------------------------------

    def _await(self, done: Callable[[], bool], waiting: str) -> None:
        """Waits in the caller's thread, which goes on beating."""
        with self._turn:
            while not done() and self._failure is None:
                self._turn.wait(PULSE_SECONDS)
                self._session.pulse(waiting=waiting)
            if self._failure is not None:
                raise self._failure

    def _write_all(self) -> None:
        while True:
            with self._turn:
                self._in_flight = False
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._due is not None)
                due, self._due, self._in_flight = self._due, None, True
                self._turn.notify_all()
            try:
                assert due is not None
                self._write(due)
            except BaseException as error:  # carried to the caller, who raises it
                with self._turn:
                    self._failure = error
                    self._turn.notify_all()
                return

    def _write(self, due: _Due) -> None:
        name = folder_name(due.weight.version, self._life.epoch, self._life.incarnation)
        checksums = self._write_folder(name, due)
        failpoint("checkpoint.before_record")
        request = CheckpointRequest(
            life=self._life,
            id=due.weight,
            folder=name,
            checksums=checksums,
            call_id=f"{self._life.incarnation}/record/{due.weight}",
        )
        deadline = time.monotonic() + RECORD_SECONDS
        with contextlib.closing(CoordinatorClient(self._endpoints)) as client:
            record = client.ask("POST", "/v1/checkpoints", request, CheckpointRecord, deadline=deadline)
        self._settle(name, record)

    def _settle(self, name: str, record: CheckpointRecord) -> None:
        """What follows a record: its file, the folder's mark, deletions."""
        before = self._record()
        if before is None or before.epoch <= record.epoch:  # else this life was stopped, and others have gone on
            replace_synced(self._root / RECORD_FILE, record.model_dump_json(indent=1).encode())
        (self._root / name / RECORDED_MARK).touch()
        failpoint("checkpoint.after_record")
        self._prune(name)

    def _write_folder(self, name: str, due: _Due) -> dict[str, str]:
        """Files, checksums, sync, rename; gives the checksums."""
        beside = self._root / partial_name(name)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        contents = (*_contents(due), *((file, [content]) for file, content in self._describing.items()))
        checksums = {file: write_synced(beside / file, pieces) for file, pieces in contents}
        write_synced(beside / CHECKSUMS_FILE, [json.dumps(checksums).encode()])
        sync_folder(beside)
        failpoint("checkpoint.before_rename")
        beside.rename(self._root / name)
        sync_folder(self._root)
        return checksums

    def _prune(self, recorded: str) -> None:
        """Deletes what the record makes superfluous: folders, then reference versions that no folder names."""
        found = (
            parse_folder(path.name, is_recorded=(path / RECORDED_MARK).exists())
            for path in self._root.iterdir()
            if path.is_dir()
        )
        folders = [folder for folder in found if folder is not None]
        for name in folders_to_delete(folders, recorded, self._life.epoch, self._keep):
            # Gone from its name first: a deletion that is cut off leaves nothing that looks like a checkpoint.
            doomed = self._root / f".deleted-{name.removeprefix('.partial-')}"
            with contextlib.suppress(FileNotFoundError):
                (self._root / name).rename(doomed)
        for doomed in self._root.glob(".deleted-*"):
            shutil.rmtree(doomed, ignore_errors=True)
        self._prune_references()

    def _prune_references(self) -> None:
        """Deletes the files that no folder names; those of this life only below the version in use."""
        named = {_read_json(path)["file"] for path in self._root.glob(f"*/{REFERENCE_FILE}")}
        with self._turn:
            current, due = self._reference, self._due
        used = [one for one in (current, None if due is None else due.reference) if one is not None]
        named |= {one.file for one in used}
        for path in (self._root / REFERENCE_FOLDER).glob("[0-9]*-e*.safetensors"):
            version, epoch, _ = path.name.split("-")
            is_later = int(epoch.removeprefix("e")) > self._life.epoch
            is_own = path.stem.endswith(self._life.incarnation)
            if path.name in named or is_later or (is_own and all(int(version) >= one.version for one in used)):
                continue
            path.unlink(missing_ok=True)


def _contents(due: _Due) -> Iterable[tuple[str, Iterable[ReadableBuffer]]]:
    """The files of a checkpoint."""
    tensors = {name: value for name, value in due.state.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in due.state.items() if not isinstance(value, torch.Tensor)}
    yield MODEL_FILE, safetensors_pieces(due.model)
    yield STATE_FILE, safetensors_pieces(tensors)
    yield VALUES_FILE, [json.dumps(values).encode()]
    yield TICKETS_FILE, [due.tickets]
    if due.reference is not None:
        yield REFERENCE_FILE, [json.dumps(asdict(due.reference)).encode()]


def _verify(path: Path, expected: str) -> None:
    try:
        found = file_checksum(path)
    except OSError as error:
        raise CheckpointDamaged(f"checkpoint: {path} cannot be read ({error}). Restore it from a copy.") from error
    if found != expected:
        raise CheckpointDamaged(f"checkpoint: {path} has checksum {found}, not {expected}. Restore it from a copy.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"checkpoint: {path} cannot be read ({error}). Restore it from a copy.") from error
    return content
