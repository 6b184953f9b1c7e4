"""What the loops of all roles that train have in common: slices of a rollout, agreement, turns, optimizer steps.

The actor's loop and the critic's are made of it. Every data-parallel rank of a gang runs it, in step: no rank goes on
or leaves before all have agreed to. Before its first optimizer step on a rollout a gang takes its turn
(`training.turns`): until then it can leave with the weights of version r, and so can the other roles that train.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId
from rljob_api.spec import RLJobSpec
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.dcs.membership.counters import STARVED_SECONDS
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.rank_loop import Draining, LostTime, count_claim
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import Agreement, RankVote, agree
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.training.step_metrics import RolloutTally
from rljob_workers.training.turns import Turn, Turns
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, TrainingSlice

_LOG = logging.getLogger(__name__)


def slicing_of(spec: RLJobSpec, task: str, mesh: Mesh) -> Slicing:
    """How a rollout is cut for a training task, and this rank's share of it."""
    return Slicing(
        task=task,
        rows_per_rollout=spec.rollout.batch_size * spec.rollout.samples_per_prompt,
        global_batch_size=spec.training.global_batch_size,
        iters_per_train_update=spec.training.iters_per_train_update,
        dp_rank=mesh.dp_rank,
        dp_size=mesh.dp_size,
    )


@dataclass(frozen=True, slots=True)
class GangParts:
    """What a rank of any role that trains works with."""

    session: RankSession
    queue: TransferQueueClient
    trainer: Trainer
    turns: Turns
    timeline: Timeline

    @property
    def mesh(self) -> Mesh:
        """How the gang's ranks are laid out."""
        return self.trainer.mesh

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its gang."""
        return self.mesh.gang.rank == 0


class GangLoop(ABC):
    """One rollout after another on one data-parallel rank; a role says what its rows are."""

    def __init__(self, gang: GangParts, slicing: Slicing, passes: int) -> None:
        """`passes`: epochsPerRollout."""
        self.gang = gang
        self.slicing = slicing
        self._passes = passes
        self._rollout_id = RolloutId(gang.session.welcome.restore.version)
        self._moved = False
        """Whether the weights have left version r: then there is no way back, and draining waits for the rollout."""
        self.starved = LostTime(gang.session.counters, STARVED_SECONDS)
        self.tally = RolloutTally()
        """What is known of the rollout in hand."""

    @abstractmethod
    def rows_of(self, part: TrainingSlice) -> TrainRows:
        """The rows of a slice, as this role trains on them."""

    @abstractmethod
    def account(self, pass_index: int, part: TrainingSlice) -> None:
        """Notes that a slice was trained on; called by all ranks, a collective."""

    @property
    def rollout_id(self) -> RolloutId:
        """The rollout in hand."""
        return self._rollout_id

    @property
    def drains(self) -> bool:
        """Whether this rank shall leave as soon as it may."""
        return self.gang.session.draining or self.gang.session.stops

    def begin_rollout(self, rollout_id: RolloutId) -> None:
        """Its weights are those of version r."""
        self._rollout_id, self._moved, self.tally = rollout_id, False, RolloutTally()

    def wait_for_rows(self, waiting_for: str) -> None:
        """Reports to the other ranks that this one has no rows yet, whether they have theirs or not."""
        self.agree(waiting_for, has_rows=False)
        self.starved.count(1.0)
        self.gang.session.pulse(waiting=waiting_for)
        self.while_waiting()

    def while_waiting(self) -> None:  # noqa: B027 -- most roles have nothing to do then
        """Called by all ranks of the gang in step, in every turn in which one of them has no rows yet."""

    def pulse(self) -> None:
        """Between two pieces of work."""
        self.starved.count(0.0)
        self.gang.session.pulse()

    def await_others(self, what: str, rows: TrainRows) -> int:
        """Until every rank has its rows: a slice is begun by all or by none. Gives the most micro-batches of a rank."""
        count = self.gang.trainer.num_micro_batches(rows)
        while True:
            agreed = self.agree(what, has_rows=True, num_micro_batches=count)
            if agreed.all_have_rows:
                self.pulse()
                return agreed.num_micro_batches
            self.starved.count(1.0)
            self.gang.session.pulse(waiting=f"the other ranks' rows of {what}")
            self.while_waiting()

    def agree(self, what: str, *, has_rows: bool, num_micro_batches: int = 0) -> Agreement:
        """Raises Draining, on all ranks alike, where one is ordered to drain and all roles may leave at version r."""
        gang = self.gang
        agreed = agree(gang.mesh.gang, RankVote(has_rows, self.drains, num_micro_batches), what)
        if agreed.draining and not self._moved and gang.turns.take(self._rollout_id, drains=True) is Turn.STOP:
            raise Draining
        return agreed

    def slices(self, loader: StreamingDataLoader, *, counts: bool) -> Iterator[TrainingSlice]:
        """One pass over the rollout in hand; `counts`: its slices are claimed now, and not at hand from before."""
        self.starved.count(0.0)
        asked = time.monotonic()
        for part in loader:
            self.starved.count(1.0)
            if counts and self.gang.mesh.is_source:
                count_claim(self.gang.session, part.batch, time.monotonic() - asked)
            yield part
            self.pulse()
            asked = time.monotonic()

    def train(self, loader: StreamingDataLoader, *, has_claimed: bool = False) -> None:
        """All passes over the rollout in hand; `has_claimed`: its rows are at hand."""
        for pass_index in range(self._passes):
            for part in self.slices(loader, counts=pass_index == 0 and not has_claimed):
                self.train_slice(part)
                self.gang.session.advance(len(part.batch.rows))
                self.account(pass_index, part)

    def train_slice(self, part: TrainingSlice) -> None:
        """One slice, and the optimizer step that it ends."""
        rows, gang = self.rows_of(part), self.gang
        count = self.await_others(f"slice {part.index} of train_{self._rollout_id}", rows)
        if part.ends_step:
            self.leave_version()
        with gang.timeline.span("train", r=self._rollout_id, rows=len(part.batch.rows)):
            gang.trainer.accumulate(rows, self.pulse, num_micro_batches=count)
            if part.ends_step:
                self._take_step()

    def leave_version(self) -> None:
        """Takes the gang's turn, once for each rollout. Raises Draining where the roles leave at version r instead."""
        gang = self.gang
        while not self._moved:
            match gang.turns.take(self._rollout_id, drains=self.drains):
                case Turn.GO:
                    self._moved = True
                    failpoint("train.begun")
                case Turn.STOP:
                    raise Draining
                case Turn.WAIT:
                    self.starved.count(0.0)  # the other roles train: more rollouts would not help

    def _take_step(self) -> None:
        result = self.gang.trainer.optimizer_step()
        self.tally.add_step(result)
        rollout_id = self._rollout_id
        if result.skipped is not None:
            self.gang.session.counters["skipped_steps"] += 1
            self._report(NoticeKind.STEP_SKIPPED, f"train_{rollout_id}: {result.skipped}")
        if result.warning is not None:
            self._report(NoticeKind.GRADIENT_SPIKE, f"train_{rollout_id}: {result.warning}")

    def _report(self, kind: NoticeKind, message: str) -> None:
        _LOG.warning(message)
        if self.gang.leads:
            self.gang.session.notify(kind, message)
