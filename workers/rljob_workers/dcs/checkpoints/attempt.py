"""One checkpoint from begin to record: the files of each rank, and what the leader makes of all of them.

Runs in the writer thread of `checkpoints.store`. The order is the contract: every rank writes and syncs its files and
reports them; the leader writes the checksums of all, syncs, renames, records their digest, and only then deletes. Ranks
of several roles write into one folder, so that there is no record of one role without the other.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.failpoints import failpoint
from rljob_api.spec.restart import transfer_seconds
from rljob_api.wire.checkpoints import (
    CheckpointAttempt,
    CheckpointBegin,
    CheckpointGiveUp,
    CheckpointPart,
    CheckpointPartRequest,
    CheckpointRecord,
    CheckpointRequest,
    PartWriter,
)
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.dcs.checkpoints.on_disk import (
    CHECKSUMS_FILE,
    RECORDED_MARK,
    TICKETS_FILE,
    Reference,
    file_of,
    folder_name,
    owner_of,
    partial_name,
    read_record,
    reference_file,
    sync_folder,
    write_record,
    write_synced,
)
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.tensor_bytes import index_of_parts, safetensors_pieces
from rljob_workers.models.blob import INDEX_FILE, is_part_of_several, part_file
from rljob_workers.models.slices import state_files

if TYPE_CHECKING:
    import torch
    from _typeshed import ReadableBuffer

    from rljob_api.names import Role
    from rljob_workers.models.blob import WeightShare
    from rljob_workers.models.slices import StateShare


@dataclass(frozen=True, slots=True)
class Gang:
    """Who saves together: all ranks of all roles that save."""

    leader: str
    """Incarnation of the rank that renames and records."""
    parts: tuple[PartWriter, ...]
    own: PartWriter

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the first of them."""
        return self.own == self.parts[0]

    @property
    def speaks_for_role(self) -> bool:
        """Whether this rank is the first of its role."""
        return self.own.rank == 0

    def file(self, name: str) -> str:
        """Where this role's file lies in the folder."""
        return file_of(self.own.role, name)


@dataclass(frozen=True, slots=True)
class DuePart:
    """One rank's part of a checkpoint that is to be written: host copies that stay as they are."""

    weight: WeightId
    share: WeightShare | None
    model: Mapping[str, torch.Tensor]
    state: StateShare
    tickets: bytes | None
    """The queue's ticket table (JSON), on the leader."""
    reference: Reference | None


POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as whom a rank writes."""

    root: Path
    incarnation: Incarnation
    endpoints: Endpoints
    gang: Gang
    describing: Mapping[str, bytes]
    """Small files that the first rank of the role puts into every folder as they are."""
    parts_seconds: float
    """How long the leader waits for the parts of the others, beside what as many bytes as its own take: once its own is
    written and every role has come to the version."""
    absence_seconds: float
    """How long the coordinator may be away while a checkpoint waits for it."""

    def deadline(self) -> float:
        """Of a call that begins now."""
        return time.monotonic() + self.absence_seconds


class Attempt:
    """One rank's side of one checkpoint."""

    def __init__(self, place: Place, due: DuePart) -> None:
        self._place = place
        self._due = due
        self._name = folder_name(due.weight.version, place.incarnation.epoch, place.gang.leader)
        self._beside = place.root / partial_name(self._name)

    def carry_out(self) -> CheckpointRecord | None:
        """Writes this rank's part; on the leader the record, once there is one.

        None on the others, and where a part did not come in time: the record before stands then.
        """
        with contextlib.closing(CoordinatorClient(self._place.endpoints)) as client:
            # Never emptied first: whatever another rank has written there is of this very checkpoint.
            (self._beside / self._place.gang.file("")).mkdir(parents=True, exist_ok=True)
            if self._place.gang.speaks_for_role:
                self._begin(client)
            files = self._write_part()
            attempt = self._report(client, files)
            if not self._place.gang.is_leader:
                return None
            written = sum((self._beside / file).stat().st_size for file in files)
            whole = self._await_parts(client, attempt, self._place.parts_seconds + transfer_seconds(written))
            if whole is None:
                return None
            record = self._record(client, self._complete(whole))
            self._settle(record)
        return record

    def _begin(self, client: CoordinatorClient) -> None:
        place = self._place
        request = CheckpointBegin(
            incarnation=place.incarnation, id=self._due.weight, folder=self._name, parts=list(place.gang.parts)
        )
        client.call("POST", "/v1/checkpoints/begin", request, deadline=self._place.deadline())
        failpoint("checkpoint.begun")

    def _write_part(self) -> dict[str, str]:
        file_of_role = self._place.gang.file
        named = ((file_of_role(name), pieces) for name, pieces in self._contents())
        files = {file: write_synced(self._beside / file, pieces) for file, pieces in named}
        _sync_folders_of(self._beside, files)
        failpoint("checkpoint.part_written")
        return files

    def _contents(self) -> Iterable[tuple[str, Iterable[ReadableBuffer]]]:
        """The files of this rank's part, by their names within the role."""
        due, gang = self._due, self._place.gang
        if due.share is not None:
            yield part_file(due.share.index, due.share.count), safetensors_pieces(due.model)
        tensors, description = state_files(gang.own.role.value, gang.own.rank)
        yield tensors, safetensors_pieces(due.state.tensors())
        yield description, [due.state.description()]
        if due.tickets is not None:
            yield TICKETS_FILE, [due.tickets]
        if due.reference is not None and due.share is not None:
            yield reference_file(due.share), [json.dumps(asdict(due.reference)).encode()]
        if gang.speaks_for_role:
            yield from ((file, [content]) for file, content in self._place.describing.items())

    def _report(self, client: CoordinatorClient, files: dict[str, str]) -> CheckpointAttempt:
        place = self._place
        part = CheckpointPart(writer=place.gang.own, files=files)
        request = CheckpointPartRequest(
            incarnation=place.incarnation, id=self._due.weight, folder=self._name, part=part
        )
        return client.ask("POST", "/v1/checkpoints/parts", request, CheckpointAttempt, deadline=self._place.deadline())

    def _await_parts(
        self, client: CoordinatorClient, attempt: CheckpointAttempt, seconds: float
    ) -> CheckpointAttempt | None:
        """The attempt once every part is there; None, and the attempt is given up by name, after `seconds`.

        They count from when every role has come to the version: one may train on its rollout for long.
        """
        began, path = time.monotonic(), f"/v1/checkpoints/attempts/{self._name}?wait="
        while not attempt.is_whole:
            now = time.monotonic()
            began = now if attempt.to_begin else began
            left = POLL_SECONDS if attempt.to_begin else began + seconds - now
            if left <= 0:
                request = CheckpointGiveUp(
                    incarnation=self._place.incarnation, folder=self._name, waited_seconds=seconds
                )
                client.call("POST", "/v1/checkpoints/give-up", request, deadline=self._place.deadline())
                return None
            wait = min(POLL_SECONDS, left)
            body = client.call("GET", f"{path}{wait:.3f}", None, deadline=self._place.deadline(), wait=wait)
            attempt = attempt if body == b"null" else CheckpointAttempt.model_validate_json(body)
        return attempt

    def _complete(self, whole: CheckpointAttempt) -> str:
        """Index, checksums of all files, sync, rename; gives the digest of the checksums."""
        checksums = {file: digest for part in whole.parts for file, digest in part.files.items()}
        checksums |= self._write_indexes(checksums)
        digest = write_synced(self._beside / CHECKSUMS_FILE, [json.dumps(checksums).encode()])
        _sync_folders_of(self._beside, checksums)
        failpoint("checkpoint.before_rename")
        self._beside.rename(self._place.root / self._name)
        sync_folder(self._place.root)
        return digest

    def _write_indexes(self, files: Iterable[str]) -> dict[str, str]:
        """What makes a model in several parts a Hugging Face folder, for each role that has one; `files` are of all."""
        parts: dict[Role, list[str]] = {}
        for file in sorted(files):
            if is_part_of_several(Path(file).name):
                parts.setdefault(owner_of(file), []).append(Path(file).name)
        written = {}
        for role, names in parts.items():
            index = file_of(role, INDEX_FILE)
            content = index_of_parts((self._beside / index).parent, names).encode()
            written[index] = write_synced(self._beside / index, [content])
        return written

    def _record(self, client: CoordinatorClient, digest: str) -> CheckpointRecord:
        failpoint("checkpoint.before_record")
        request = CheckpointRequest(
            incarnation=self._place.incarnation,
            id=self._due.weight,
            folder=self._name,
            checksums={CHECKSUMS_FILE: digest},
            call_id=f"{self._place.incarnation.id}/record/{self._due.weight}",
        )
        return client.ask("POST", "/v1/checkpoints", request, CheckpointRecord, deadline=self._place.deadline())

    def _settle(self, record: CheckpointRecord) -> None:
        settle(self._place.root, record)


def _sync_folders_of(folder: Path, files: Iterable[str]) -> None:
    """Makes the names of files below `folder` durable: the inner folders' first, whose own names it has."""
    for inner in sorted({(folder / file).parent for file in files} - {folder}):
        sync_folder(inner)
    sync_folder(folder)


def settle(root: Path, record: CheckpointRecord) -> None:
    """What follows a record, before anything is deleted: its file and the folder's mark."""
    before = read_record(root)
    if before is None or before.epoch <= record.epoch:  # else this incarnation was stopped, and others have gone on
        write_record(root, record)
    (root / record.folder / RECORDED_MARK).touch()
