"""Which checkpoint an epoch begins with: the newest that is known and not known to be damaged.

The coordinator calls it in its thread, before it raises an epoch and when a rank reports damage. Reads the record file
and the folders where the control Redis knows less. A damage report is durable and ends the epoch; the next one begins
with the newest older folder that was recorded on the way to here, and with its ticket table. Damaged folders are
renamed and retained; nothing is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash
from pydantic import BaseModel, ValidationError

from rljob_api.failpoints import failpoint
from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.roles import LEADING_ROLE
from rljob_api.wire.checkpoints import BestCheckpoint, CheckpointRecord, DamageRequest
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.identity import WeightId
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.checkpoints.on_disk import (
    BEST_FILE,
    CHECKSUMS_FILE,
    DAMAGED_SUFFIX,
    RECORD_FILE,
    RECORDED_MARK,
    TICKETS_FILE,
    CheckpointFolder,
    parse_folder,
    read_file,
    read_json,
    read_record,
    replace_synced,
    sync_folder,
    write_record,
)
from rljob_workers.dcs.coordinator.context import CoordinatorContext, bad_request, not_open
from rljob_workers.dcs.coordinator.epochs import Choice, Epochs, SavedState
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import DAMAGED, RECORD
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable
from rljob_workers.transfer_queue.types import is_table_of_draws

_log = logging.getLogger(__name__)


BEGUN_FILE = "begun.json"


class _Begun(BaseModel):
    """The last epoch that was begun: it may have left lines and folders, and recorded nothing."""

    epoch: Epoch


NO_DRAWS = b'{"cursor": 0, "front": [], "draws": [], "kills": {}}'
"""Stands in for the table of a checkpoint that nothing can be trained from."""


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
        """What a record holds of a folder: the checksum of its file of checksums. Raises CheckpointDamaged."""
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
        """Renames a damaged folder, so that it is not taken for a checkpoint; the new name, None where that fails."""
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
        """Record file and link to the newest folder name `record` from here on; a damaged file is retained."""
        try:
            with _refusing():
                write_record(self._root, record)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._root / RECORD_FILE, error)

    def note_best(self, best: BestCheckpoint | None) -> None:
        """The file `best.json` names this checkpoint from here on; None: there is no such file."""
        path = self._root / BEST_FILE
        try:
            if best is None:
                path.unlink(missing_ok=True)
                return
            content = best.model_dump_json(indent=1).encode()
            if not path.exists() or path.read_bytes() != content:
                replace_synced(path, content)
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error)

    def last_epoch(self) -> Epoch:
        """The highest epoch that has left something here; 0 where none is known of.

        What cannot be read is none here: the restore that needs it reports it.
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
        """Before the epoch is opened. Where nothing was recorded yet there is no folder, and no epochs to distinguish.

        A folder that only the actor may write to does not keep the epoch from being opened: the record has all but
        the last epochs then.
        """
        if not self._root.is_dir():
            return
        try:
            replace_synced(self._root / BEGUN_FILE, _Begun(epoch=epoch).model_dump_json().encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._root / BEGUN_FILE, error)

    def _checksums(self, folder: str) -> Mapping[str, str]:
        """Empty for a folder whose file of them is damaged: the ranks find and report that."""
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
    """Storage that gives an error is read again once the coordinator is asked again."""
    try:
        yield
    except CheckpointUnreadable as error:
        raise not_open(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Candidate:
    version: int
    folder: str
    source: CheckpointRecord | CheckpointFolder | None
    """None: it is what the control Redis has recorded, so that nothing need be read of it."""


class Restoring:
    """Chooses; remembers what is damaged."""

    def __init__(
        self,
        context: CoordinatorContext,
        epochs: Epochs,
        ranks: RankIncarnations,
        progress: Progress,
        saved: SavedFolder,
    ) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._progress = progress
        self._saved = saved

    def take_report(self, request: DamageRequest) -> None:
        """A rank has found damage in the folder that its epoch began with: the epoch ends. Twice is once."""
        self._ranks.check_incarnation(request.incarnation)
        begun_with = self._epochs.current.restore
        if request.folder != begun_with.folder:
            raise bad_request(f"folder: {request.folder} is not {begun_with.folder}, which this epoch began with.")
        self._note(request.folder, request.message)
        choice = self.choose(control_state_is_whole=True)
        if not choice.is_intact:
            self._fail(begun_with)
            return
        message = f"{request.message}; the job goes on from checkpoint {choice.version}"
        cause = f"damaged/{request.folder}"
        self._progress.report_found(FailureKind.CHECKPOINT_DAMAGED, LEADING_ROLE, cause, message)

    def choose(self, *, control_state_is_whole: bool) -> Choice:
        """The newest of what the control Redis, the record file and the folders know of.

        What is found to be damaged on the way is noted.
        """
        record = self._saved.record()
        candidates = self._candidates(record, control_state_is_whole=control_state_is_whole)
        if not candidates:
            return Choice()
        ancestry = self._ancestry(record, control_state_is_whole=control_state_is_whole)
        for candidate in candidates:
            if candidate.folder in self._damaged:
                continue
            try:
                state = self._state(candidate, ancestry)
            except CheckpointDamaged as damage:
                self._note(candidate.folder, str(damage))
                continue
            return Choice(state, candidate.version, tuple(self._damaged))
        newest = candidates[0]
        return Choice(self._untrainable(newest, ancestry), newest.version, is_intact=False)

    def settle(self, choice: Choice, restore: RestorePoint) -> None:
        """The epoch is open: record file and names of folders follow, and damage is reported. Twice is once."""
        failpoint("coordinator.before_settling")
        if not choice.is_intact:
            self._fail(restore)
            return
        self._renew_record_file(choice, restore)
        for folder, what in dict(self._damaged).items():
            if folder != restore.folder:
                self._put_aside(folder, what, restore)

    @property
    def _damaged(self) -> Mapping[str, str]:
        return self._context.store.rows(DAMAGED)

    def _candidates(self, record: CheckpointRecord | None, *, control_state_is_whole: bool) -> list[_Candidate]:
        """Newest first; none where nothing was recorded."""
        found: list[_Candidate] = []
        if record is not None:
            found.append(_Candidate(record.id.version, record.folder, record))
        current = self._epochs.current.restore
        if control_state_is_whole and current.epoch > 0:
            recorded = self._progress.recorded(current)
            if recorded is not None:
                version, folder = recorded
                # A newer record file shows a tail of the control state that no living process has seen.
                found = [one for one in found if one.version > version and one.folder not in self._damaged]
                found.append(_Candidate(version, folder, None))
            if not found:
                return []
        ancestry = self._ancestry(record, control_state_is_whole=control_state_is_whole)
        known = {one.folder for one in found}
        newest = found[0].version if found else None
        found += [
            _Candidate(folder.version, folder.name, folder)
            for folder in self._saved.recorded_folders()
            if folder.name not in known
            and _is_alive(folder, ancestry)
            and (newest is None or folder.version <= found[-1].version)
        ]
        return found

    def _ancestry(self, record: CheckpointRecord | None, *, control_state_is_whole: bool) -> dict[int, int]:
        """Lineages that led to here, with their last versions (-1: no bound); empty: not known."""
        current = self._epochs.current
        if control_state_is_whole and current.restore.epoch > 0:
            return {**current.alive, int(current.restore.lineage): -1}
        return {} if record is None else {int(lineage): bound for lineage, bound in record.ancestry.items()}

    def _state(self, candidate: _Candidate, ancestry: Mapping[int, int]) -> SavedState | None:
        match candidate.source:
            case None:
                return None
            case CheckpointRecord() as record:
                return SavedState(record, self._saved.tickets(record.folder))
            case CheckpointFolder() as folder:
                record = record_of(folder, ancestry, self._saved.checksums_of(folder.name))
                return SavedState(record, self._saved.tickets(folder.name))

    def _untrainable(self, newest: _Candidate, ancestry: Mapping[int, int]) -> SavedState | None:
        """The epoch begins with what is damaged, and not with version 0, whose record would make all else old."""
        match newest.source:
            case None:
                return None
            case CheckpointRecord() as record:
                return SavedState(record, NO_DRAWS)
            case CheckpointFolder() as folder:
                return SavedState(record_of(folder, ancestry, {}), NO_DRAWS)

    def _note(self, folder: str, what: str) -> None:
        if folder not in self._damaged:
            self._context.store.commit([DAMAGED.put(folder, what)])

    def _renew_record_file(self, choice: Choice, restore: RestorePoint) -> None:
        """Where it names another folder than the epoch has begun with, or is none."""
        record = self._context.store.value(RECORD) if choice.state is None else choice.state.record
        if record is None or record.folder != restore.folder:
            return
        before, was_damaged = self._saved.record(), self._saved.has_damaged_record()
        if before != record:
            self._saved.write_record(record)
        if was_damaged:
            self._emit_damage(restore, "record.json", f"record.json was damaged: it names {record.folder} again.")

    def _put_aside(self, folder: str, what: str, restore: RestorePoint) -> None:
        aside = self._saved.keep_aside(folder)
        place = f"It is kept as {aside}" if aside is not None else f"{folder} stays, and is not begun with again"
        self._emit_damage(
            restore, folder, f"{what}. {place}; epoch {restore.epoch} begins with version {restore.version} instead."
        )
        if aside is not None:
            self._context.store.commit([DAMAGED.drop(folder)])

    def _emit_damage(self, restore: RestorePoint, what: str, message: str) -> None:
        event = self._context.event(EventKind.CHECKPOINT_DAMAGED, restore.epoch, message)
        self._context.emit_once(f"damaged:{what}", message, event)

    def _fail(self, restore: RestorePoint) -> None:
        """A resumed job reads them again: what was damaged may have been cured."""
        found = "; ".join(self._damaged.values())
        message = (
            f"no checkpoint of this job is intact: {found}. Restore {restore.folder} from a copy, then resume the job; "
            "nothing was deleted."
        )
        self._progress.report_found(FailureKind.REPORTED, LEADING_ROLE, "damaged/all", message)
        self._context.store.commit([DAMAGED.drop(folder) for folder in self._damaged])


def _is_alive(folder: CheckpointFolder, ancestry: Mapping[int, int]) -> bool:
    """Whether it was recorded on the way to here, and not in a past that a restore left."""
    bound = ancestry.get(folder.epoch)
    return not ancestry or (bound is not None and (bound < 0 or folder.version <= bound))
