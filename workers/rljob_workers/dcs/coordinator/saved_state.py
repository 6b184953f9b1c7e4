"""What lies below the checkpoint path for a control Redis that knows less, or nothing: records, and the last epoch.

Called by the coordinator in its thread. The volume may have been trained on by an earlier job of this name, or by one
that was given the same claim: an epoch of this job must be above every one that has left anything there. Reads what the
leader wrote; writes which epoch was begun, and the record where it chose an older one (`restoring`). Deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash
from pydantic import BaseModel, ValidationError

from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.dcs.checkpoint_folders import DAMAGED_SUFFIX, CheckpointFolder, parse_folder
from rljob_workers.dcs.checkpoint_layout import CHECKSUMS_FILE, RECORD_FILE, RECORDED_MARK, TICKETS_FILE
from rljob_workers.dcs.checkpoint_on_disk import read_file, read_json, read_record, write_record
from rljob_workers.dcs.coordinator.refusals import not_open
from rljob_workers.dcs.durable import replace_synced, sync_folder
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable
from rljob_workers.transfer_queue.types import is_table_of_draws

_log = logging.getLogger(__name__)

BEGUN_FILE = "begun.json"


class _Begun(BaseModel):
    """The last epoch that was begun: it may have left lines and folders, and recorded nothing."""

    epoch: Epoch


NO_DRAWS = b'{"cursor": 0, "front": [], "draws": [], "kills": {}}'
"""Stands in for the table of a checkpoint that nothing can be trained from."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """What lies beside the checkpoint folders, for a control Redis that knows less, or must go back."""

    record: CheckpointRecord
    tickets: bytes
    """The queue's ticket table of that checkpoint."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What an epoch is to begin with."""

    state: SavedState | None = None
    """None: what the control Redis has recorded, if anything."""
    version: int | None = None
    """None: nothing was recorded yet."""
    left: tuple[str, ...] = ()
    """Folders that the epoch must not begin with, though the control Redis has recorded them."""
    is_intact: bool = True
    """Whether any checkpoint can be trained from. If none can, the epoch is opened for the job to fail in."""


class SavedFolder:
    """The folder of the checkpoints, as far as the coordinator reads it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def record(self) -> CheckpointRecord | None:
        """The record file; None where there was no checkpoint yet, and where it is not one.

        Refuses for storage that gives an error, as all that reads here does.
        """
        with _refusing():
            return read_record(self._root)

    def has_damaged_record(self) -> bool:
        """Whether the record file is there, and is none."""
        return self.record() is None and (self._root / RECORD_FILE).exists()

    def recorded_folders(self) -> list[CheckpointFolder]:
        """Those that bear the mark of a record, newest first; of a version of two epochs the later one."""
        with _refusing():
            try:
                names = [path.name for path in self._root.iterdir() if (path / RECORDED_MARK).exists()]
            except FileNotFoundError:
                return []
            except OSError as error:
                raise CheckpointUnreadable(self._root, error) from error
        found = [folder for name in names if (folder := parse_folder(name, is_recorded=True)) is not None]
        whole = [folder for folder in found if not folder.is_partial]
        return sorted(whole, key=lambda folder: (folder.version, folder.epoch), reverse=True)

    def checksums_of(self, folder: str) -> dict[str, str]:
        """What a record says of a folder: the checksum of its file of checksums. Raises CheckpointDamaged."""
        with _refusing():
            content = read_file(self._root / folder / CHECKSUMS_FILE)
        return {CHECKSUMS_FILE: xxhash.xxh3_64(content).hexdigest()}

    def tickets(self, folder: str) -> bytes:
        """The ticket table of a checkpoint. Raises CheckpointDamaged for one that is none, or another one."""
        path = self._root / folder / TICKETS_FILE
        with _refusing():
            table = read_file(path)
            checksums = self._checksums(folder)
        expected = checksums.get(TICKETS_FILE)
        if expected is not None and xxhash.xxh3_64(table).hexdigest() != expected:
            raise CheckpointDamaged(path, f"does not have checksum {expected}")
        if not is_table_of_draws(table):
            raise CheckpointDamaged(path, "is not the table of draws of a checkpoint")
        return table

    def keep_aside(self, folder: str) -> str | None:
        """Renames a damaged folder, so that nobody takes it for a checkpoint; the new name, None where that fails."""
        path = self._root / folder
        aside = self._root / f"{folder}{DAMAGED_SUFFIX}"
        if not path.is_dir():
            return aside.name if aside.is_dir() else folder
        try:
            path.rename(aside)
            sync_folder(self._root)
        except OSError as error:
            _log.warning("%s cannot be renamed: %s", path, error)
            return None
        return aside.name

    def write_record(self, record: CheckpointRecord) -> None:
        """The record file, and the link to the newest folder, name `record` from here on; a damaged file is kept."""
        try:
            with _refusing():
                write_record(self._root, record)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._root / RECORD_FILE, error)

    def last_epoch(self) -> Epoch:
        """The highest epoch that has left something here; 0 where none is known of.

        What cannot be read is none here: who needs it to go on from says so.
        """
        epochs = [0]
        with suppress(OSError):
            found = (parse_folder(path.name, is_recorded=False) for path in self._root.iterdir())
            epochs += [folder.epoch for folder in found if folder is not None]
        with suppress(OSError, ValidationError):
            epochs.append(CheckpointRecord.model_validate_json((self._root / RECORD_FILE).read_bytes()).epoch)
        with suppress(OSError, ValidationError):
            epochs.append(_Begun.model_validate_json((self._root / BEGUN_FILE).read_bytes()).epoch)
        return Epoch(max(epochs))

    def note_epoch(self, epoch: Epoch) -> None:
        """Before the epoch is opened. Where nothing was recorded yet there is no folder, and nothing to be told apart.

        A folder that only the actor may write to does not keep the epoch from being opened: the record tells of all but
        the last epochs then.
        """
        if not self._root.is_dir():
            return
        try:
            replace_synced(self._root / BEGUN_FILE, _Begun(epoch=epoch).model_dump_json().encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._root / BEGUN_FILE, error)

    def _checksums(self, folder: str) -> Mapping[str, str]:
        """Empty for a folder whose file of them is damaged: the ranks find that, and say it."""
        try:
            return read_json(self._root / folder / CHECKSUMS_FILE)
        except CheckpointDamaged:
            return {}


def record_of(folder: CheckpointFolder, ancestry: Mapping[int, int], checksums: dict[str, str]) -> CheckpointRecord:
    """The record of an older folder, as it was when that was recorded: an epoch's number is that of its lineage."""
    lineage = Lineage(folder.epoch)
    before = {str(earlier): bound for earlier, bound in ancestry.items() if earlier < lineage}
    return CheckpointRecord(
        id=WeightId(lineage=lineage, version=WeightVersion(folder.version)),
        epoch=folder.epoch,
        folder=folder.name,
        checksums=checksums,
        ancestry=before | {str(lineage): -1},
    )


@contextmanager
def _refusing() -> Iterator[None]:
    """Storage that gives an error is asked again by whoever asks the coordinator again."""
    try:
        yield
    except CheckpointUnreadable as error:
        raise not_open(str(error)) from error
