"""What the job has saved and what failed: checkpoints in work and recorded, notices, failures.

The coordinator calls it in its thread. A failure stays until the supervisor acknowledges it. Touches no file.
"""

from __future__ import annotations

from rljob_api.names import Epoch, Role, WeightVersion
from rljob_api.roles import LEADING_ROLE
from rljob_api.wire.checkpoints import (
    CheckpointAttempt,
    CheckpointBegin,
    CheckpointGiveUp,
    CheckpointPartRequest,
    CheckpointRecord,
    CheckpointRequest,
)
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.failures import Failure, FailureAcknowledgement, FailureKind
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import Notice, NoticeKind
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, not_found
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.measures import Measures
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import (
    ACKNOWLEDGED,
    ATTEMPTS,
    FAILURES,
    GIVEN_UP,
    HEALTH,
    MEASURED,
    RECORD,
    Change,
)

NOTICED = {
    NoticeKind.WRONG_WEIGHTS: EventKind.WRONG_WEIGHTS,
    NoticeKind.STEP_SKIPPED: EventKind.STEP_SKIPPED,
    NoticeKind.GRADIENT_SPIKE: EventKind.GRADIENT_SPIKE,
    NoticeKind.TEMPLATE_NOT_SAVED: EventKind.TEMPLATE_NOT_SAVED,
    NoticeKind.ENGINE_STALLED: EventKind.ENGINE_STALLED,
    NoticeKind.EVALUATION_UNFINISHED: EventKind.EVALUATION_UNFINISHED,
    NoticeKind.REWARD_RETRIED: EventKind.REWARD_RETRIED,
    NoticeKind.TOOL_TEXT_CUT: EventKind.TOOL_TEXT_CUT,
    NoticeKind.FUNCTION_BLOCKS: EventKind.FUNCTION_BLOCKS,
}
"""The event that each kind of notice becomes."""


ONCE_A_JOB = frozenset({NoticeKind.TOOL_TEXT_CUT, NoticeKind.FUNCTION_BLOCKS})
"""Kinds about the function that all ranks run: the first rank's sentence is enough."""


MAX_ACKNOWLEDGED = 1000
"""Acknowledged failures that are remembered, so that a second report of one does not come back as new."""


MOST_GIVEN_UP = 3
"""Attempts in a row: a job that cannot save would lose ever more to its next failure."""


class Progress:
    """Checkpoints in work and recorded, failures."""

    def __init__(
        self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations, measures: Measures
    ) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._measures = measures

    # --- notices and records ---------------------------------------------------------------------------------------

    def take_notice(self, notice: Notice) -> None:
        """Emits it. Twice is once where it was sent again: nothing else of its kind was emitted meanwhile.

        With a subject it is emitted once in an epoch, for all ranks; some kinds once in a job.
        """
        self._ranks.check_incarnation(notice.incarnation)
        key = notice.incarnation.key
        event = self._context.event(NOTICED[notice.kind], notice.incarnation.epoch, f"{key}: {notice.message}")
        mark, value = f"notice:{notice.kind}", f"{notice.incarnation.id}: {notice.message}"
        if notice.kind in ONCE_A_JOB:
            value = "once"
        elif notice.subject is not None:
            mark, value = f"{mark}:{notice.subject}", str(notice.incarnation.epoch)
        self._context.emit_once(mark, value, event.model_copy(update={"pod": key.pod}))

    def record(self, request: CheckpointRequest) -> CheckpointRecord:
        """Records a checkpoint whose folder is durable; from here on it is what a restart begins with."""
        self._ranks.check_incarnation(request.incarnation)
        record = self._context.admin.record(
            request.incarnation, request.id, request.folder, request.checksums, request.call_id
        )
        record = self._measures.with_record(record)
        record = record.model_copy(update={"health": self._context.store.value(HEALTH)})
        epoch = request.incarnation.epoch
        event = self._context.event(
            EventKind.RECORDED, epoch, f"Checkpoint {request.id} is recorded: {request.folder}."
        )
        measured = () if record.measured is None else (MEASURED.put(record.measured),)
        done = (RECORD.put(record), *measured, ATTEMPTS.drop(request.folder), GIVEN_UP.drop())
        self._context.emit_once("recorded", str(request.id), event, *done)
        return record

    def recorded(self, restore: RestorePoint) -> tuple[WeightVersion, str] | None:
        """Version and folder of the last record, as far as this epoch knows; None before checkpoint 0."""
        record = self._context.store.value(RECORD)
        if record is not None and record.epoch == restore.epoch:
            return record.id.version, record.folder
        return None if restore.folder is None else (restore.version, restore.folder)

    # --- checkpoints in work ---------------------------------------------------------------------------------------

    def begin_attempt(self, request: CheckpointBegin) -> None:
        """A role has come to a checkpoint. Where the leading one has, what came before it is over. Twice is once."""
        self._ranks.check_incarnation(request.incarnation)
        role = request.incarnation.key.role
        known = self.attempt(request.folder) or CheckpointAttempt(epoch=request.incarnation.epoch, id=request.id)
        attempt = known.model_copy(update={"begun": [*(one for one in known.begun if one is not role), role]})
        if role is not LEADING_ROLE:
            self._commit([ATTEMPTS.put(request.folder, attempt)])
            return
        attempt = attempt.model_copy(update={"wanted": request.parts})
        self._commit([*self._outdated(request), ATTEMPTS.put(request.folder, attempt)])

    def take_part(self, request: CheckpointPartRequest) -> CheckpointAttempt:
        """A rank has written its part; the attempt as it is with it. Twice is once."""
        self._ranks.check_incarnation(request.incarnation)
        known = self.attempt(request.folder) or CheckpointAttempt(epoch=request.incarnation.epoch, id=request.id)
        others = [part for part in known.parts if part.writer != request.part.writer]
        attempt = known.model_copy(update={"parts": [*others, request.part]})
        self._commit([ATTEMPTS.put(request.folder, attempt)])
        return attempt

    def attempt(self, folder: str) -> CheckpointAttempt | None:
        """A checkpoint in work; None for one of which nothing was reported."""
        return self._context.store.get(ATTEMPTS, folder)

    def whole_attempt(self, folder: str) -> CheckpointAttempt | None:
        """The attempt once every part of it is there."""
        attempt = self.attempt(folder)
        return attempt if attempt is not None and attempt.is_whole else None

    def give_up(self, request: CheckpointGiveUp) -> None:
        """Reports whose part is missing; the third time in a row the job fails by that name. Twice is once."""
        self._ranks.check_incarnation(request.incarnation)
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
        event = self._context.event(EventKind.CHECKPOINT_GIVEN_UP, request.incarnation.epoch, message)
        over = attempt.model_copy(update={"given_up": True})
        self._context.emit_once(
            "given_up", request.folder, event, ATTEMPTS.put(request.folder, over), GIVEN_UP.put(count)
        )
        if count >= MOST_GIVEN_UP:
            cause, role = f"checkpoints/{request.folder}", request.incarnation.key.role
            self.report_found(
                FailureKind.REPORTED, role, cause, f"{count} checkpoints in a row were given up. {message}"
            )

    def _outdated(self, request: CheckpointBegin) -> list[Change]:
        """What a new attempt leaves behind; parts of later versions may have been reported already."""
        return [
            ATTEMPTS.drop(folder)
            for folder, attempt in self._context.store.rows(ATTEMPTS).items()
            if folder != request.folder
            and (attempt.epoch != request.incarnation.epoch or attempt.id.version <= request.id.version)
        ]

    def _commit(self, changes: list[Change]) -> None:
        self._context.store.commit(changes)
        self._context.notify(Topic.CHECKPOINTS)

    # --- failures --------------------------------------------------------------------------------------------------

    def failures(self) -> list[Failure]:
        """Not acknowledged, oldest first."""
        unacknowledged = self._context.store.rows(FAILURES).values()
        return sorted(unacknowledged, key=lambda failure: (failure.at, failure.id))

    def report_failure(self, failure: Failure, *, server_is_open: bool) -> None:
        """Keeps a failure until it is acknowledged; the dead hold nothing from here on. The same id twice is one."""
        store = self._context.store
        known = failure.id in store.rows(FAILURES) or failure.id in store.rows(ACKNOWLEDGED)
        buried = self._ranks.bury(failure) if server_is_open else []
        event = self._context.event(EventKind.FAILURE_REPORTED, failure.epoch, failure.message)
        event = event.model_copy(update={"failure": failure, "pod": failure.pod})
        if not known:
            store.commit([*buried, FAILURES.put(failure.id, failure)], [event])
            self._context.notify(Topic.EVENTS)
        elif buried:
            store.commit(buried)

    def acknowledge(self, acknowledgement: FailureAcknowledgement) -> None:
        """The supervisor has persisted what it decided about these failures. Twice is once."""
        ids, store, now = acknowledgement.ids, self._context.store, self._context.wall()
        done = sorted(store.rows(ACKNOWLEDGED).items(), key=lambda row: row[1])
        surplus = done[: max(0, len(done) + len(ids) - MAX_ACKNOWLEDGED)]
        changes = [ACKNOWLEDGED.drop(old) for old, _ in surplus]
        changes += [ACKNOWLEDGED.put(failure_id, now) for failure_id in ids]
        changes += [FAILURES.drop(failure_id) for failure_id in ids]
        store.commit(changes)

    def report_found(self, kind: FailureKind, role: Role, cause: str, message: str) -> None:
        """A failure that the coordinator found itself: only the supervisor restarts, or ends the job."""
        epoch: Epoch = self._epochs.current.restore.epoch
        failure = Failure(
            id=f"{cause}/{epoch}",
            kind=kind,
            pod=PodKey(role=role, replica=0),
            epoch=epoch,
            message=message,
            at=self._context.wall(),
        )
        self.report_failure(failure, server_is_open=False)
