"""Which checkpoint an epoch begins with: the newest that is known and not known to be damaged.

Called by the coordinator in its thread, before it raises an epoch and when a rank reports damage. The ranks of the
actor verify every file of the folder that their epoch began with, each its share, before any of them reads; what they
find is noted here, durably, and ends the epoch. The next one begins with the newest older folder that was recorded on
the way to here. So one alone chooses, once an epoch, and nothing is trained in between. What was drawn since that
folder is drawn again by its own ticket table: rows of its partitions may be gone. Damaged folders are renamed, and
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.failpoints import failpoint
from rljob_api.role_traits import SAVING_ROLE
from rljob_api.wire.checkpoints import DamageRequest
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import EventKind
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.dcs.checkpoint_folders import CheckpointFolder
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.rank_lives import RankLives
from rljob_workers.dcs.coordinator.records import DAMAGED, RECORD
from rljob_workers.dcs.coordinator.refusals import bad_request
from rljob_workers.dcs.coordinator.saved_state import NO_DRAWS, Choice, SavedFolder, SavedState, record_of
from rljob_workers.dcs.errors import CheckpointDamaged


@dataclass(frozen=True, slots=True)
class _Candidate:
    version: int
    folder: str
    source: CheckpointRecord | CheckpointFolder | None
    """None: it is what the control Redis has recorded, so that nothing need be read of it."""


class Restoring:
    """Chooses; remembers what is damaged."""

    def __init__(
        self, context: CoordinatorContext, epochs: Epochs, ranks: RankLives, progress: Progress, saved: SavedFolder
    ) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._progress = progress
        self._saved = saved

    def take_report(self, request: DamageRequest) -> None:
        """A rank has found damage in the folder that its epoch began with: the epoch ends. Twice is once."""
        self._ranks.check_life(request.life)
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
        self._progress.report_found(FailureKind.CHECKPOINT_DAMAGED, SAVING_ROLE, cause, message)

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
        """The epoch is open: record file and names of folders follow, and what is damaged is told. Twice is once."""
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
            version, folder = self._progress.recorded(current), self._progress.recorded_folder(current)
            if version is not None and folder is not None:
                # A record file that is newer tells of a tail of the control state that nobody is left to have seen.
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
            self._tell(restore, "record.json", f"record.json was damaged: it names {record.folder} again.")

    def _put_aside(self, folder: str, what: str, restore: RestorePoint) -> None:
        aside = self._saved.keep_aside(folder)
        kept = f"It is kept as {aside}" if aside is not None else f"{folder} stays, and is not begun with again"
        self._tell(
            restore, folder, f"{what}. {kept}; epoch {restore.epoch} begins with version {restore.version} instead."
        )
        if aside is not None:
            self._context.store.commit([DAMAGED.drop(folder)])

    def _tell(self, restore: RestorePoint, what: str, message: str) -> None:
        event = self._context.event(EventKind.CHECKPOINT_DAMAGED, restore.epoch, message)
        self._context.emit_once(f"damaged:{what}", message, event)

    def _fail(self, restore: RestorePoint) -> None:
        """A resumed job looks anew: somebody may have cured what was damaged."""
        found = "; ".join(self._damaged.values())
        message = (
            f"no checkpoint of this job is intact: {found}. Restore {restore.folder} from a copy, then resume the job; "
            "nothing was deleted."
        )
        self._progress.report_found(FailureKind.REPORTED, SAVING_ROLE, "damaged/all", message)
        self._context.store.commit([DAMAGED.drop(folder) for folder in self._damaged])


def _is_alive(folder: CheckpointFolder, ancestry: Mapping[int, int]) -> bool:
    """Whether it was recorded on the way to here, and not in a past that a restore left."""
    bound = ancestry.get(folder.epoch)
    return not ancestry or (bound is not None and (bound < 0 or folder.version <= bound))
