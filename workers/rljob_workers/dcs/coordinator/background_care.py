"""Care of the queue between requests: lost rows, room in units, tickets of silent replicas, ends of evaluations.

The coordinator calls it in its thread, as background duties. The queue decides what is lost or may go; the supervisor
decides about restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rljob_api.names import WeightVersion, partition_name
from rljob_api.roles import LEADING_ROLE, TICKET_ROLE
from rljob_api.wire.checkpoints import Health
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import CoordinatorEvent, EvaluationReport, EventKind, RoomMade
from rljob_api.wire.ranks import Beat, RankState
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.health import after_evaluation
from rljob_workers.dcs.coordinator.measures import Measures
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations, beat_interval_seconds
from rljob_workers.dcs.coordinator.records import EVALUATION, HEALTH, ROOM
from rljob_workers.evaluation import (
    SampleResult,
    is_of,
    metrics_of,
    sentence_of,
    sentence_of_set_aside,
    set_aside,
)
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.upkeep import Dropped, LostChunks, LostRows, in_one_sentence

STILL_BEATS = 2
"""Beats that a replica may miss before others get its work. What it makes of that work later is refused."""


_LOG = logging.getLogger("rljob.coordinator")


@dataclass(frozen=True, slots=True)
class Replica:
    """A rank of the rollout, as it is now."""

    incarnation: str
    still_seconds: float
    """For which nothing was received of it, or its engine made no token of what it has."""
    is_idle: bool
    """It could generate, and has nothing to."""


def replica_of(beat: Beat, age_seconds: float) -> Replica:
    """By its last beat, received so long ago."""
    announced = 0.0 if beat.busy is None else beat.busy.seconds
    return Replica(
        beat.incarnation.id,
        max(0.0, age_seconds - announced) + beat.still_seconds,
        is_idle=beat.state is RankState.READY and beat.holds is not None and not beat.tickets,
    )


def to_take_back(replicas: Iterable[Replica], limit_seconds: float) -> list[str]:
    """Whose tickets come back: of all that are still for longer, as long as another one has nothing to do."""
    known = list(replicas)
    if not any(one.is_idle and one.still_seconds <= limit_seconds for one in known):
        return []
    return [one.incarnation for one in known if one.still_seconds > limit_seconds]


class HeldWork:
    """Takes tickets back, at most once of each incarnation between two versions of the weights.

    Were two slow replicas to get each other's work again and again, none of it would ever be done.
    """

    def __init__(self, context: CoordinatorContext, ranks: RankIncarnations) -> None:
        self._context = context
        self._ranks = ranks
        self._taken_from: dict[str, WeightVersion | None] = {}
        """Incarnation -> the version that was published when its tickets were taken back."""

    def check(self, published: WeightVersion | None, silence_counts_from: float) -> None:
        """`silence_counts_from`: by the coordinator's clock; no silence before it counts."""
        limit = STILL_BEATS * beat_interval_seconds(self._context.job.spec.restart_policy)
        now = self._context.clock()
        received = [one for one in self._ranks.beats.values() if one.beat.incarnation.key.role is TICKET_ROLE]
        replicas = [replica_of(one.beat, now - max(one.at, silence_counts_from)) for one in received]
        self._forget_all_but(frozenset(one.incarnation for one in replicas))
        for incarnation in to_take_back(replicas, limit):
            if self._taken_from.get(incarnation, -1) != published:
                self._taken_from[incarnation] = published
                num_tickets = self._context.admin.take_back(incarnation)
                if num_tickets:
                    _LOG.info("%d tickets of %s, which does nothing, go to others", num_tickets, incarnation)

    def _forget_all_but(self, living: frozenset[str]) -> None:
        self._taken_from = {name: version for name, version in self._taken_from.items() if name in living}


SHORTAGE_SECONDS = 10.0
"""A shortage of memory that lasts so long does not pass by training going on."""


EMIT_SECONDS = 60.0
"""What goes to make room is reported this often at most, and then all of it in one sentence."""


_STORAGE_LOG = logging.getLogger("rljob.coordinator")


class StorageCare:
    """Losses, and room."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, progress: Progress) -> None:
        self._context = context
        self._epochs = epochs
        self._progress = progress
        self._short_since: float | None = None
        self._emitted_at = float("-inf")

    def check(self) -> None:
        """Finds units that came back empty or lost chunks, and has their rows made again; makes room."""
        upkeep = self._context.admin.upkeep
        for unit in upkeep.probe():
            with suppress(StorageUnreachable):  # it went away again: a later check finds it
                upkeep.declare_lost(unit, partial(self._emit_loss, unit))
        upkeep.declare_missing(self._emit_missing)
        self._make_room()
        self._emit_room()

    def room(self) -> RoomMade | None:
        """What was reported last."""
        return self._context.store.value(ROOM)

    # --- losses ----------------------------------------------------------------------------------------------------

    def _emit_loss(self, unit: int, loss: LostRows) -> None:
        message = f"Storage unit {unit} came back without its rows: {loss}."
        self._context.store.commit([], [self._event(EventKind.UNIT_LOST, message)])
        self._context.notify(Topic.EVENTS)
        if loss.needs_global_restart:
            self._report(f"unit/{unit}/{self._context.store.last_event}", message)

    def _emit_missing(self, lost: LostChunks) -> None:
        """Once, though readers ask again for rows that only a restart brings back."""
        where = f"{lost.unit}/{lost.rollout_id}/{lost.num_chunks}"
        fields = f" ({', '.join(lost.fields)})" if lost.fields else ""
        message = (
            f"Storage unit {lost.unit} no longer has chunks{fields} of {partition_name(lost.rollout_id)}, though it was"
            f" not restarted ({lost.num_chunks} so far): {lost.loss}."
            " Let nothing but this job delete or evict its keys; where a reader's log says that they were damaged,"
            " check the memory of that server."
        )
        event = self._event(EventKind.ROWS_LOST, message)
        self._context.emit_once(f"lost:{lost.unit}/{lost.rollout_id}", where, event)
        if lost.loss.needs_global_restart:
            self._report(f"chunks/{where}", message)

    def _report(self, cause: str, message: str) -> None:
        self._progress.report_found(FailureKind.ROWS_LOST, LEADING_ROLE, cause, message)

    # --- room ------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """After a long shortage of memory rows go, in the order of the contract; a short one passes by itself."""
        now, admin = self._context.clock(), self._context.admin
        upkeep = admin.upkeep
        if not upkeep.short_of_memory:
            self._short_since = None
            return
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since < SHORTAGE_SECONDS:
            return
        if admin.sweeper.sweep().has_more:
            return  # room comes by itself
        # Generated groups go only where a put may not fit. For the sake of tickets they would go again and again.
        if upkeep.nearly_full:
            upkeep.relieve()
        else:
            upkeep.drop_retained()
        self._short_since = now

    def _emit_room(self) -> None:
        """The first time at once, then what has gone since; also where a coordinator died before it emitted that."""
        upkeep, now = self._context.admin.upkeep, self._context.clock()
        if now - self._emitted_at < EMIT_SECONDS:
            return
        listed = upkeep.dropped()
        if not listed:
            return
        if news := _not_emitted(listed, self.room()):
            room = RoomMade(rows=news[-1].total_rows, message=self._sentence(news))
            change = ROOM.put(room)
            self._context.store.commit([change], [self._event(EventKind.ROWS_DROPPED, room.message)])
            self._context.notify(Topic.EVENTS)
        upkeep.forget_dropped(len(listed))
        self._emitted_at = now

    def _sentence(self, dropped: list[Dropped]) -> str:
        queue = self._context.job.spec.transfer_queue
        return (
            f"Storage was full: {in_one_sentence(dropped)}. Raise transferQueue.storageBytes ({queue.storage_bytes} for"
            f" each unit) or transferQueue.storageUnits ({queue.storage_units})."
        )

    def _event(self, kind: EventKind, message: str) -> CoordinatorEvent:
        _STORAGE_LOG.warning("%s: %s", kind.value, message)
        return self._context.event(kind, self._epochs.current.restore.epoch, message)


def _not_emitted(listed: list[Dropped], emitted: RoomMade | None) -> list[Dropped]:
    """A coordinator that died between emitting and forgetting has emitted the first of them.

    Numbers begin again with an empty control Redis.
    """
    if emitted is None or listed[-1].total_rows < emitted.rows:
        return listed
    return [one for one in listed if one.total_rows > emitted.rows]


class Evaluations:
    """The ends of a job's evaluations. Ranks begin them, and the queue has their samples."""

    def __init__(
        self, context: CoordinatorContext, epochs: Epochs, measures: Measures, note_best: Callable[[], None]
    ) -> None:
        """`note_best` writes down which checkpoint is the best one, where another one has become that."""
        self._context = context
        self._epochs = epochs
        self._measures = measures
        self._note_best = note_best

    def is_over(self, version: int) -> bool:
        """Whether the evaluation of a version is."""
        return self._context.admin.evaluation().is_over_of(WeightVersion(version))

    def check(self) -> None:
        """Ends the one whose samples are all scored. Reported once, also by a coordinator that died in between.

        One of other sets, those that the job had before it was resumed, is left alone: the rollouts begin it anew.
        """
        job, spec = self._context.job.spec, self._context.job.spec.evaluation
        if spec is None:
            return
        state = self._context.admin.evaluation()
        if state.version < 0 or state.is_over or state.num_results < state.num_samples:
            return
        if not is_of(state.digest, spec, job.seed):
            return
        texts = self._context.admin.evaluation_results()
        results = [SampleResult.parse(text) for text in texts.values() if text]
        aside = set_aside((number for number, text in texts.items() if not text), state.digest, spec.sets)
        metrics = metrics_of(results, spec.sets, aside)
        message = (
            f"Version {state.version} was evaluated: {sentence_of(metrics, spec.sets)}.{sentence_of_set_aside(aside)}"
        )
        epoch = self._epochs.current.restore.epoch
        event = self._context.event(EventKind.EVALUATED, epoch, message)
        report = EvaluationReport(version=state.version, samples=len(results), metrics=metrics)
        changes = self._measures.after_evaluation(state.version, metrics)
        examined = after_evaluation(job, self._context.store.value(HEALTH) or Health(), report)
        self._context.emit_once(
            "evaluation",
            f"{state.lineage}/{state.version}/{state.digest}",
            event.model_copy(update={"evaluation": report}),
            EVALUATION.put(report),
            HEALTH.put(examined.health),
            *changes,
            beside=[self._context.event(one.kind, epoch, one.message) for one in examined.troubles],
        )
        self._note_best()
        self._context.admin.end_evaluation(state.version)
