"""Actor: trains on `train_r`, publishes version r + 1, reports the step, saves. In that order, for r after r.

All data-parallel ranks run this loop; global rank 0 alone (the `Leader`) logs, commits, publishes, reports and saves.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rljob_api.names import RolloutId
from rljob_workers.dcs.session import RankSession
from rljob_workers.roles.group import RENDEZVOUS_SECONDS, gather_rows
from rljob_workers.roles.leader import Leader
from rljob_workers.roles.rank import Draining, count_claim, idle_until_told
from rljob_workers.roles.stages.train import RolloutTally, slice_facts, train_rows
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers.base import Trainer
from rljob_workers.trainers.data_parallel import DataParallelGroup
from rljob_workers.trainers.errors import GroupBroken
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, StreamingDataset, TrainingSlice

SUM_SECONDS = RENDEZVOUS_SECONDS + 10.0
"""Sums over ranks block without a beat; a rank that never comes ends them, by name, after the group's timeout."""


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """What the loop must know of the job."""

    num_rollouts: int
    passes: int
    """epochsPerRollout."""
    slicing: Slicing


class ActorLoop:
    """The main loop of one data-parallel rank."""

    def __init__(
        self,
        config: ActorConfig,
        session: RankSession,
        queue: TransferQueueClient,
        trainer: Trainer,
        group: DataParallelGroup,
        leader: Leader | None,
        timeline: Timeline,
    ) -> None:
        """`leader` on global rank 0, None on the others."""
        self._config = config
        self._session = session
        self._queue = queue
        self._trainer = trainer
        self._group = group
        self._leader = leader
        self._timeline = timeline
        self._moved = False
        """Whether the weights have left version r: then there is no way back, and draining waits for the rollout."""

    def run(self) -> None:
        """Trains from the restored version to the last rollout, then idles; saves when the pod shall drain."""
        first = RolloutId(self._session.welcome.restore.version)
        dataset = StreamingDataset(self._queue, self._config.slicing, first, on_wait=self._wait)
        loader = StreamingDataLoader(dataset)
        self._session.ready()
        try:
            for r in range(first, self._config.num_rollouts):
                self._leave_if_draining()
                loader.step(RolloutId(r))
                self._train_rollout(RolloutId(r), loader)
            if self._leader is not None:
                self._leader.finish()
            idle_until_told(self._session)
        except Draining:
            if self._leader is not None:
                self._group.leave()
                self._leader.finish()
        except GroupBroken:
            # The leader has left between two questions of this rank after it.
            if self._leader is not None or not self._session.draining:
                raise

    def _wait(self, waiting_for: str) -> None:
        self._session.pulse(waiting=waiting_for)
        self._leave_if_draining()

    def _leave_if_draining(self) -> None:
        """The leader alone decides when; the others follow it, since without them it could not come to its save."""
        if not self._session.draining:
            return
        leaves = self._group.is_left() if self._leader is None else not self._moved
        if leaves:
            raise Draining

    def _train_rollout(self, rollout_id: RolloutId, loader: StreamingDataLoader) -> None:
        tally = RolloutTally()
        for pass_index in range(self._config.passes):
            asked = time.monotonic()
            for part in loader:
                if pass_index == 0:  # a later pass claims nothing
                    count_claim(self._session, part.batch, time.monotonic() - asked)
                with self._timeline.span("train", r=rollout_id, rows=len(part.batch)):
                    self._trainer.accumulate(train_rows(part.batch), self._session.pulse)
                    if part.ends_step:
                        with self._together(f"the optimizer step on train_{rollout_id}"):
                            tally.add_step(self._trainer.optimizer_step())
                        self._moved = True
                self._account(rollout_id, pass_index, part, tally)
                self._session.pulse()
                asked = time.monotonic()
        if self._leader is not None:
            self._leader.publish(rollout_id, tally.summary())
        self._moved = False

    def _together(self, what: str) -> AbstractContextManager[None]:
        """Around what blocks until every rank of the group has come; alone there is nobody to wait for."""
        if self._group.world == 1:
            return nullcontext()
        return self._session.busy(f"{what} with {self._group.world - 1} other ranks", SUM_SECONDS)

    def _account(self, rollout_id: RolloutId, pass_index: int, part: TrainingSlice, tally: RolloutTally) -> None:
        """Audit first, then the commit: what the queue calls consumed has its lines."""
        with self._together(f"the audit of train_{rollout_id}"):
            facts = gather_rows(self._group, slice_facts(part.batch))
        if pass_index == 0:
            tally.facts.extend(facts)
        if self._leader is None:
            return
        self._leader.log_samples(rollout_id, pass_index, facts)
        if part.ends_step and pass_index == 0:
            self._queue.commit_training(self._config.slicing.task, rollout_id, part.step)
