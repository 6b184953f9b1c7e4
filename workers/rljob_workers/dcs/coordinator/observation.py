"""What the supervisor reads: the whole state as one value.

Called by the coordinator in its thread. Works from memory, so that it answers also while the control Redis is away.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import CoordinatorStatus, PodObservation, QueueObservation, RankObservation, ServerState
from rljob_api.wire.ranks import RankState
from rljob_workers.dcs.coordinator.beats import beat_interval_seconds
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.launchers import Launchers
from rljob_workers.dcs.coordinator.progress import Progress
from rljob_workers.dcs.coordinator.rank_lives import RankLives
from rljob_workers.dcs.coordinator.records import RankEntry
from rljob_workers.dcs.coordinator.weights import Weights


class Observer:
    """Puts the rooms' state together."""

    def __init__(
        self,
        context: CoordinatorContext,
        epochs: Epochs,
        launchers: Launchers,
        ranks: RankLives,
        weights: Weights,
        progress: Progress,
    ) -> None:
        self._context = context
        self._epochs = epochs
        self._launchers = launchers
        self._ranks = ranks
        self._weights = weights
        self._progress = progress

    def status(self, server: ServerState, silent_since: float, queue: QueueObservation) -> CoordinatorStatus:
        """Everything at once. Nobody's silence is counted from before `silent_since`."""
        current = self._epochs.current
        restore, last = current.restore, self._epochs.last_step
        published = self._weights.published()
        return CoordinatorStatus(
            server=server,
            epoch=restore.epoch,
            lineage=restore.lineage,
            decision_id=current.decision_id,
            published=None if published is None else published.version,
            recorded=self._progress.recorded(restore),
            recorded_folder=self._progress.recorded_folder(restore),
            step=last.step if last is not None else _restored_step(restore),
            last_step=last,
            pods=self._pods_observed(silent_since),
            failures=self._progress.failures(),
            queue=queue,
            last_event=self._context.store.last_event,
            desired=self._epochs.ordered,
            progress_age_seconds=self._ranks.advance.age_seconds(),
            demand=self._ranks.demand.at_step,
            beat_interval_seconds=beat_interval_seconds(self._context.job.spec.restart_policy),
        )

    def _pods_observed(self, silent_since: float) -> list[PodObservation]:
        pods = sorted(self._launchers.by_pod().items())
        return [self._pod(hello, self._ranks.of_pod(hello.pod), silent_since) for _, hello in pods]

    def _pod(self, hello: LauncherHello, ranks: Sequence[RankEntry], silent_since: float) -> PodObservation:
        heard = self._launchers.polls.get(hello.launcher)
        return PodObservation(
            pod=hello.pod,
            pod_uid=hello.pod_uid,
            launcher=hello.launcher,
            launcher_pid=hello.pid,
            container_restart_count=hello.container_restart_count,
            poll_age_seconds=self._age(self._launchers.heard_at(hello.launcher), silent_since),
            is_heard=heard is not None,
            carried=None if heard is None else heard.poll.carried,
            processes=[] if heard is None else heard.poll.ranks,
            engines=[] if heard is None else heard.poll.engines,
            ranks=[
                self._rank(entry, silent_since) for entry in sorted(ranks, key=lambda entry: entry.hello.life.key.rank)
            ],
        )

    def _rank(self, entry: RankEntry, silent_since: float) -> RankObservation:
        life = entry.hello.life
        heard = self._ranks.beats.get(life.incarnation)
        beat = None if heard is None else heard.beat
        heard_at = self._ranks.heard_at(life.incarnation)
        busy = None if beat is None else beat.busy
        return RankObservation(
            rank=life.key.rank,
            incarnation=life.incarnation,
            epoch=life.epoch,
            generation=life.generation,
            pid=entry.hello.pid,
            state=RankState.READY if entry.ready else RankState.STARTING,
            beat_age_seconds=self._age(heard_at, silent_since),
            busy=busy,
            busy_left_seconds=None if busy is None else busy.seconds - self._age(heard_at, silent_since),
            waiting=None if beat is None else beat.waiting,
            holds=None if beat is None else beat.holds,
        )

    def _age(self, heard_at: float | None, silent_since: float) -> float:
        return self._context.clock() - (silent_since if heard_at is None else max(silent_since, heard_at))


def _restored_step(restore: RestorePoint) -> int | None:
    """The last step that a restored checkpoint contains."""
    return restore.version - 1 if restore.version > 0 else None
