"""Files that a run reads, over all of its starts: an input with other content is an event, or a refusal.

Knows what ranks report and the file beside the record of checkpoints, which a later start, or a later job on the same
volume, reads again. An input that no start has noted before is noted, and makes no event.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from rljob_api.wire.inputs import FILE, FileContent, InputAnswer, InputNote, InputReport, KnownInputs
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.checkpoints.on_disk import replace_synced
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations

_log = logging.getLogger(__name__)


MOST_NAMED = 3
"""Files in a sentence."""


def change_of(known: InputNote, found: InputNote) -> str | None:
    """The difference in content, as part of a sentence; None: there is none, or it is not known."""
    if known.path != found.path or known.files is None or found.files is None:
        return None
    both = [(name, before, found.files[name]) for name, before in sorted(known.files.items()) if name in found.files]
    changed = [f"{name}: {text}" for name, before, now in both if (text := _difference(before, now))]
    changed += [f"{name} is gone" for name in sorted(known.files.keys() - found.files.keys())]
    changed += [f"{name} is new" for name in sorted(found.files.keys() - known.files.keys())]
    if not changed:
        return None
    more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return f"{'; '.join(changed[:MOST_NAMED])}{more}"


def _difference(before: FileContent, now: FileContent) -> str:
    """Empty where there is none."""
    parts = []
    if before.num_bytes != now.num_bytes:
        parts.append(f"{before.num_bytes} -> {now.num_bytes} bytes")
    if before.rows != now.rows and None not in (before.rows, now.rows):
        parts.append(f"{before.rows} -> {now.rows} rows")
    if not before.has_bytes_of(now):
        parts.append("other content")
    return ", ".join(parts)


class RunInputs:
    """The inputs that one coordinator knows. Every call may block on the volume."""

    def __init__(self, context: CoordinatorContext, ranks: RankIncarnations, checkpoints: Path) -> None:
        self._context = context
        self._ranks = ranks
        self._file = checkpoints / FILE
        self._known: dict[str, InputNote] | None = None
        """None: not read yet."""

    def take(self, report: InputReport) -> InputAnswer:
        """Notes what a rank reads, and reports what has changed. Twice is once."""
        self._ranks.check_incarnation(report.incarnation)
        known = self._read()
        wanted, refusals = [], []
        noted = dict(known)
        for note in report.inputs:
            # Roles import different modules of one folder.
            key = f"{report.incarnation.key.role}/{note.field}"
            before = known.get(key)
            if note.files is None:
                if before is None or (before.path, before.stamp) != (note.path, note.stamp):
                    wanted.append(note.field)
                continue
            change = None if before is None else change_of(before, note)
            if change is not None and not note.may_change:
                refusals.append(_refusal(note, change))
                continue
            if change is not None:
                self._emit(report, note, change)
            noted[key] = note
        if noted != known:
            self._write(noted)
        return InputAnswer(wanted=wanted, refusal=refusals[0] if refusals else None)

    def _emit(self, report: InputReport, note: InputNote, change: str) -> None:
        message = (
            f"{note.field}: {note.path} is not what this run has read before ({change}). It goes on with what is there"
            " now, from where it was. Where that is not meant, set it back, or start anew."
        )
        incarnation = report.incarnation
        event = self._context.event(EventKind.INPUT_CHANGED, incarnation.epoch, message)
        event = event.model_copy(update={"pod": incarnation.key.pod})
        self._context.emit_once(f"input:{note.field}", f"{incarnation.epoch}: {change}", event)

    def _read(self) -> dict[str, InputNote]:
        if self._known is None:
            try:
                self._known = KnownInputs.model_validate_json(self._file.read_bytes()).inputs
            except FileNotFoundError:
                self._known = {}
            except (OSError, ValidationError) as error:  # no reason not to train: what is read now is noted
                _log.warning("%s says nothing of what was read before: %s", self._file, error)
                self._known = {}
        return self._known

    def _write(self, noted: dict[str, InputNote]) -> None:
        self._known = noted
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_synced(self._file, KnownInputs(inputs=noted).model_dump_json(indent=1).encode())
        except OSError as error:  # the checkpoints on the same volume report it
            _log.warning("%s cannot be written: %s", self._file, error)


def _refusal(note: InputNote, change: str) -> str:
    return (
        f"{note.field}: {note.path} has other weights than those that this run began with ({change}), by which its rows"
        " are measured. Set them back, give them a folder of their own, set"
        " spec.roles.reference.changedWeights to Accept, or start anew."
    )
