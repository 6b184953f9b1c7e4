"""What the loops of all roles that train have in common: slices of a rollout, agreement, turns, optimizer steps.

The actor's loop and the critic's are made of it. Every data-parallel rank of a gang runs it, in step: no rank goes on
or leaves before all have agreed to. Before its first optimizer step on a rollout a gang takes its turn
(`training.turns`): until then it can leave with the weights of version r, and so can the other roles that train.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId
from rljob_api.spec import RLJobSpec
from rljob_api.wire.ranks import NoticeKind
from rljob_api.wire.turns import Turn
from rljob_workers.dcs.membership.counters import STARVED_SECONDS
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.gangs.shared_claims import SharedClaims
from rljob_workers.rank_loop import Draining, LostTime, count_claim, idle_until_ordered
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import Agreement, RankVote, agree
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.training.learnt_tokens import LearntTokens
from rljob_workers.training.saving import Saves
from rljob_workers.training.step_metrics import RolloutTally, slice_facts
from rljob_workers.training.turns import Turns
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, StreamingDataset, TrainingSlice

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


class Reports(Protocol):
    """What rank 0 of a gang reports (`training.reporting`)."""

    def begin(self) -> None:
        """The first step begins now."""

    def log_slice(
        self, rollout_id: RolloutId, pass_index: int, part: TrainingSlice, facts: Sequence[torch.Tensor]
    ) -> None:
        """Audit lines of a slice; `facts` as in FACTS, by rank."""

    def sync_samples(self) -> None:
        """Makes the audit lines durable that were logged so far."""

    def report(self, rollout_id: RolloutId, tally: RolloutTally) -> None:
        """Reports that this role has trained on the rollout."""


class GangLoop(ABC):
    """One rollout after another on one data-parallel rank; a role says what its rows are."""

    def __init__(
        self,
        gang: GangParts,
        slicing: Slicing,
        saves: Saves,
        reports: Reports | None,
        learnt: LearntTokens,
        *,
        rollouts: int,
        passes: int,
    ) -> None:
        """`reports` on global rank 0, None on the others. `rollouts` of the whole job; `passes`: epochsPerRollout."""
        self.gang = gang
        self.slicing = slicing
        self.saves = saves
        self.reports = reports
        self.learnt = learnt
        self._rollouts = rollouts
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
    def _train_rollout(self, loader: StreamingDataLoader) -> None:
        """All of the role's work on the rollout in hand, until its part of version r + 1 is saved where that is due."""

    def begin(self) -> None:
        """Makes the restored version durable, before this rank is ready."""
        self.saves.begin()

    def run(self) -> None:
        """Trains from the restored version to the last rollout, then idles; saves when a pod of it is ordered to drain.

        A rank that has left with the others without an order to drain waits for its order like one that is done.
        """
        session, first = self.gang.session, self._rollout_id
        self.begin()
        claims = SharedClaims(self.gang.queue, self.gang.mesh)
        loader = StreamingDataLoader(StreamingDataset(claims, self.slicing, first, on_wait=self.wait_for_rows))
        session.ready()
        if self.reports is not None:
            self.reports.begin()
        try:
            for r in range(first, self._rollouts):
                loader.step(RolloutId(r))
                self._rollout_id, self._moved, self.tally = RolloutId(r), False, RolloutTally()
                self._train_rollout(loader)
        except Draining:
            pass  # all ranks alike, at the same agreement
        self.saves.finish()
        idle_until_ordered(session)
        self.end()

    def end(self) -> None:  # noqa: B027 -- most roles have nothing to report
        """This rank leaves, with the version reached recorded."""

    def await_leave(self) -> None:  # noqa: B027 -- most roles wait for nothing but their turn
        """Until the weights may leave version r; called by all ranks of the gang in step, before their turn.

        Raises Draining where the roles leave at version r instead.
        """

    def account(self, pass_index: int, part: TrainingSlice) -> None:
        """A slice was trained on; a collective. Audit first, then the commit: what is consumed has its lines."""
        batch, learnt = part.batch, self.learnt
        of_rows = slice_facts(batch, learnt.rows(batch), self.left_out(part), learnt.max_age)
        facts = self.gang.mesh.gather(of_rows, "what the ranks trained on")
        if pass_index == 0:
            self.tally.facts.extend(facts)
        if self.reports is None:
            return
        self.reports.log_slice(self._rollout_id, pass_index, part, facts)
        if part.ends_step and pass_index == 0:
            self.gang.queue.commit_training(self.slicing.task, self._rollout_id, part.step)

    def left_out(self, part: TrainingSlice) -> torch.Tensor | None:  # noqa: ARG002 -- most roles have no filter
        """Which rows of a slice that was trained on a filter has left out, [rows] bool; None: there is no filter."""
        return None

    @property
    def computes(self) -> bool:
        """Whether the rollout in hand is trained on; else its rows are consumed, and the version goes on."""
        return True

    @property
    def rollout_id(self) -> RolloutId:
        """The rollout in hand."""
        return self._rollout_id

    @property
    def drains(self) -> bool:
        """Whether this rank shall leave as soon as it may."""
        return self.gang.session.draining or self.gang.session.stops

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
        """One slice, and the optimizer step that it ends.

        Gradients change no weights: what the first step of a rollout has to wait for goes on beside them.
        """
        rows, gang = self.rows_of(part), self.gang
        count = self.await_others(f"slice {part.index} of train_{self._rollout_id}", rows)
        if self.computes:
            with gang.timeline.span("train", r=self._rollout_id, rows=len(part.batch.rows)):
                gang.trainer.accumulate(rows, self.pulse, num_micro_batches=count, ends_step=part.ends_step)
        if not part.ends_step:
            return
        self.leave_version()
        if self.computes:
            with gang.timeline.span("train", r=self._rollout_id, rows=0):
                self._take_step()

    def leave_version(self) -> None:
        """Takes the gang's turn, once for each rollout. Raises Draining where the roles leave at version r instead."""
        if not self._moved:
            self.await_leave()
        while not self._moved:
            match self.gang.turns.take(self._rollout_id, drains=False):
                case Turn.GO:
                    self._moved = True
                    failpoint("train.begun")
                case Turn.STOP:
                    raise Draining
                case Turn.WAIT:
                    self.starved.count(0.0)  # the other roles train: more rollouts would not help
                    self.agree(f"the turn at train_{self._rollout_id}", has_rows=True)

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
