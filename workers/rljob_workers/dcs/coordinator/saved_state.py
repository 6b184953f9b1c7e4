"""What lies below the checkpoint path for a control Redis that knows less, or nothing: the record, and the last epoch.

Called by the coordinator in its thread. The volume may have been trained on by an earlier job of this name, or by one
that was given the same claim: an epoch of this job must be above every one that has left anything there. Reads what the
leader wrote; writes only which epoch was begun.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rljob_api.names import Epoch
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.dcs.checkpoint_layout import RECORD_FILE, TICKETS_FILE
from rljob_workers.dcs.coordinator.refusals import bad_request
from rljob_workers.dcs.durable import replace_synced
from rljob_workers.transfer_queue.control.tickets import is_table_of_draws

_log = logging.getLogger(__name__)

BEGUN_FILE = "begun.json"


class _Begun(BaseModel):
    """The last epoch that was begun: it may have left lines and folders, and recorded nothing."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SavedState:
    """What lies beside the checkpoint folders, for a control Redis that knows less."""

    record: CheckpointRecord
    tickets: bytes | None
    """The queue's ticket table of that checkpoint."""


class SavedFolder:
    """The folder of the checkpoints, as far as the coordinator reads it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def state(self) -> SavedState | None:
        """The record file and its ticket table; None where there was no checkpoint yet."""
        path = self._root / RECORD_FILE
        if not path.exists():
            return None
        try:
            record = CheckpointRecord.model_validate_json(path.read_bytes())
        except ValueError as error:
            raise bad_request(
                f"{path} is not a checkpoint record ({error}). Restore it, or delete it to begin anew."
            ) from error
        tickets = self._root / record.folder / TICKETS_FILE
        table = tickets.read_bytes() if tickets.exists() else None
        if table is None or not is_table_of_draws(table):
            wrong = "is missing" if table is None else "is not the table of draws of a checkpoint"
            raise bad_request(f"{tickets} {wrong}. Restore it, or delete {path} to begin anew.")
        return SavedState(record, table)

    def last_epoch(self) -> Epoch:
        """The highest epoch that has left something here; 0 where none is known of.

        What cannot be read is none here: who needs it to go on from says so.
        """
        epochs = [0]
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
