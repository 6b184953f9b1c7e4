"""Checkpoints in work: which parts were reported, and attempts that were given up.

Called by the coordinator in its thread. Knows no file: the leader renames the folder and has it recorded (`progress`).
"""

from __future__ import annotations

from rljob_api.wire.checkpoints import CheckpointAttempt, CheckpointBegin, CheckpointGiveUp, CheckpointPartRequest
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.rank_lives import RankLives
from rljob_workers.dcs.coordinator.records import ATTEMPTS, GIVEN_UP
from rljob_workers.dcs.coordinator.refusals import not_found
from rljob_workers.dcs.coordinator.table import Change

MOST_GIVEN_UP = 3
"""Attempts in a row: a job that cannot save would lose ever more to its next failure."""


class Checkpoints:
    """Attempts of this epoch."""

    def __init__(self, context: CoordinatorContext, ranks: RankLives, progress: Progress) -> None:
        self._context = context
        self._ranks = ranks
        self._progress = progress

    def begin(self, request: CheckpointBegin) -> None:
        """The leader has begun a checkpoint; what came before it is over. Twice is once."""
        self._ranks.check_life(request.life)
        known = self.attempt(request.folder)
        parts = [] if known is None else known.parts
        attempt = CheckpointAttempt(epoch=request.life.epoch, id=request.id, wanted=request.parts, parts=parts)
        self._commit([*self._outdated(request), ATTEMPTS.put(request.folder, attempt)])

    def take_part(self, request: CheckpointPartRequest) -> CheckpointAttempt:
        """A rank has written its part; the attempt as it is with it. Twice is once."""
        self._ranks.check_life(request.life)
        known = self.attempt(request.folder) or CheckpointAttempt(epoch=request.life.epoch, id=request.id)
        others = [part for part in known.parts if part.writer != request.part.writer]
        attempt = known.model_copy(update={"parts": [*others, request.part]})
        self._commit([ATTEMPTS.put(request.folder, attempt)])
        return attempt

    def attempt(self, folder: str) -> CheckpointAttempt | None:
        """A checkpoint in work; None for one of which nothing was heard."""
        return self._context.store.get(ATTEMPTS, folder)

    def whole(self, folder: str) -> CheckpointAttempt | None:
        """The attempt once every part of it is there."""
        attempt = self.attempt(folder)
        return attempt if attempt is not None and attempt.is_whole else None

    def give_up(self, request: CheckpointGiveUp) -> None:
        """Tells whose part is missing; the third time in a row the job fails by that name. Twice is once."""
        self._ranks.check_life(request.life)
        attempt = self.attempt(request.folder)
        if attempt is None:
            raise not_found(f"checkpoint {request.folder}: it was not begun.")
        if attempt.given_up:
            return
        count = (self._context.store.value(GIVEN_UP) or 0) + 1
        missing = ", ".join(map(str, attempt.missing))
        message = (
            f"Checkpoint {attempt.id} was given up: after {request.waited_seconds:.0f} s the part of {missing} was "
            "missing. The record before stands."
        )
        event = self._context.event(EventKind.CHECKPOINT_GIVEN_UP, request.life.epoch, message)
        over = attempt.model_copy(update={"given_up": True})
        self._context.emit_once(
            "given_up", request.folder, event, ATTEMPTS.put(request.folder, over), GIVEN_UP.put(count)
        )
        if count >= MOST_GIVEN_UP:
            cause, role = f"checkpoints/{request.folder}", request.life.key.role
            self._progress.report_found(
                FailureKind.REPORTED, role, cause, f"{count} checkpoints in a row were given up. {message}"
            )

    def _outdated(self, request: CheckpointBegin) -> list[Change]:
        """What a new attempt leaves behind; parts of later versions may have been reported already."""
        return [
            ATTEMPTS.drop(folder)
            for folder, attempt in self._context.store.rows(ATTEMPTS).items()
            if folder != request.folder
            and (attempt.epoch != request.life.epoch or attempt.id.version <= request.id.version)
        ]

    def _commit(self, changes: list[Change]) -> None:
        self._context.store.commit(changes)
        self._context.notify(Topic.CHECKPOINTS)
