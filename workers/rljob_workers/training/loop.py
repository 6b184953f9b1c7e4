"""The actor's loop: trains on `train_r`, publishes version r + 1, reports the step, saves; in that order for each r.

Run by the assembly on every data-parallel rank, in step: no rank goes on or leaves before all have agreed to. Rank 0
(the `Leader`) also logs, commits and reports.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import torch

from rljob_api.names import RolloutId
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import ProximalPolicy, Truncated
from rljob_api.wire.ranks import NoticeKind
from rljob_workers import pipeline
from rljob_workers.algorithms.advantages.estimator import broadcast_to_tokens
from rljob_workers.algorithms.losses import masks_of_rows
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import build_checkpoint_store
from rljob_workers.dcs.membership.counters import STARVED_SECONDS
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights import build_publisher
from rljob_workers.gangs.rendezvous import form_group, incarnation_of_leader
from rljob_workers.gangs.shared_claims import SharedClaims
from rljob_workers.models.building import policy_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rank_loop import Draining, LostTime, RankParts, count_claim, idle_until_ordered
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_mesh, build_trainer, load_version_0, tensors_of_version_0
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import Agreement, RankVote, agree
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.training.publishing import ExportConfig, Exports, TrainerProbe
from rljob_workers.training.reporting import Leader
from rljob_workers.training.row_metrics import of_all_ranks
from rljob_workers.training.step_metrics import RolloutTally, is_truncated, slice_facts
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, StreamingDataset, TrainingSlice
from rljob_workers.transfer_queue.types import Batch


class Proximal(Enum):
    """Who computes them."""

    QUEUE = "queue"
    """actor_fwd does, while the rollout is still being generated: they come with the rows."""
    STEP = "step"
    """The forward pass that trains: before the only optimizer step on a rollout the weights are those of its version,
    so that the new log-probs, without their gradient, are the proximal ones. A ratio is 1 then, and nothing clips."""
    ROLLOUT = "rollout"
    """The actor does, of all rows, before its first optimizer step on them. So the rollout must be complete first: no
    slice of it is trained on while others are still being generated."""
    ENGINE = "engine"
    """The engine has, when it generated: no policy is computed again."""


def proximal_of(spec: RLJobSpec) -> Proximal:
    """What a job does: as given, else actor_fwd where it has one, else what its optimizer steps allow."""
    if spec.algorithm.proximal is ProximalPolicy.ROLLOUT:
        return Proximal.ENGINE
    if Column.LOG_PROBS in pipeline.columns_of(spec):
        return Proximal.QUEUE
    return Proximal.STEP if spec.has_one_optimizer_step else Proximal.ROLLOUT


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """What the loop must know of the job."""

    num_rollouts: int
    passes: int
    """epochsPerRollout."""
    slicing: Slicing
    proximal: Proximal
    temperature: float
    """That of sampling, for the log-probs that the actor computes itself."""
    truncated: Truncated
    """Whether anything is learnt from samples that were cut off."""

    @classmethod
    def of(cls, spec: RLJobSpec, *, dp_rank: int, dp_size: int) -> ActorConfig:
        """Of a job, for one of its data-parallel ranks."""
        slicing = Slicing(
            task=pipeline.ACTOR_TRAIN,
            rows_per_rollout=spec.rollout.batch_size * spec.rollout.samples_per_prompt,
            global_batch_size=spec.training.global_batch_size,
            iters_per_train_update=spec.training.iters_per_train_update,
            dp_rank=dp_rank,
            dp_size=dp_size,
        )
        return cls(
            num_rollouts=spec.rollout.num_rollouts,
            passes=spec.training.epochs_per_rollout,
            slicing=slicing,
            proximal=proximal_of(spec),
            temperature=spec.rollout.sampling.temperature,
            truncated=spec.algorithm.truncated,
        )


class ActorLoop:
    """The main loop of one data-parallel rank."""

    def __init__(
        self,
        config: ActorConfig,
        session: RankSession,
        queue: TransferQueueClient,
        trainer: Trainer,
        mesh: Mesh,
        exports: Exports,
        leader: Leader | None,
        timeline: Timeline,
    ) -> None:
        """`leader` on global rank 0, None on the others."""
        self._config = config
        self._session = session
        self._queue = queue
        self._trainer = trainer
        self._mesh = mesh
        self._exports = exports
        self._leader = leader
        self._timeline = timeline
        self._moved = False
        """Whether the weights have left version r: then there is no way back, and draining waits for the rollout."""
        self._starved = LostTime(session.counters, STARVED_SECONDS)

    def run(self) -> None:
        """Trains from the restored version to the last rollout, then idles; saves when a pod of it is ordered to drain.

        A rank that has left with the others without an order to drain waits for its order like one that is done.
        """
        first = RolloutId(self._session.welcome.restore.version)
        self._exports.begin()
        claims = SharedClaims(self._queue, self._mesh)
        dataset = StreamingDataset(claims, self._config.slicing, first, on_wait=self._wait)
        loader = StreamingDataLoader(dataset)
        self._session.ready()
        if self._leader is not None:
            self._leader.begin()
        try:
            for r in range(first, self._config.num_rollouts):
                loader.step(RolloutId(r))
                self._train_rollout(RolloutId(r), loader)
        except Draining:
            pass  # all ranks alike, at the same agreement
        self._exports.finish()
        idle_until_ordered(self._session)

    def _wait(self, waiting_for: str) -> None:
        """Reports to the other ranks that this one has no rows yet, whether they have theirs or not."""
        self._agree(waiting_for, has_rows=False)
        self._starved.count(1.0)
        self._session.pulse(waiting=waiting_for)

    def _pulse(self) -> None:
        """Between two pieces of work."""
        self._starved.count(0.0)
        self._session.pulse()

    def _await_others(self, what: str, rows: TrainRows) -> int:
        """Until every rank has its rows: a slice is begun by all or by none. Gives the most micro-batches of a rank."""
        count = self._trainer.num_micro_batches(rows)
        while True:
            agreed = self._agree(what, has_rows=True, num_micro_batches=count)
            if agreed.all_have_rows:
                self._pulse()
                return agreed.num_micro_batches
            self._starved.count(1.0)
            self._session.pulse(waiting=f"the other ranks' rows of {what}")

    def _agree(self, what: str, *, has_rows: bool, num_micro_batches: int = 0) -> Agreement:
        """Raises Draining, on all ranks alike, where one is ordered to drain and the weights are those of a version."""
        agreed = agree(self._mesh.gang, RankVote(has_rows, self._session.draining, num_micro_batches), what)
        if agreed.draining and not self._moved:
            raise Draining
        return agreed

    def _train_rollout(self, rollout_id: RolloutId, loader: StreamingDataLoader) -> None:
        tally = RolloutTally()
        log_probs = self._log_probs(rollout_id, loader) if self._config.proximal is Proximal.ROLLOUT else {}
        for pass_index in range(self._config.passes):
            self._starved.count(0.0)
            asked = time.monotonic()
            for part in loader:
                self._starved.count(1.0)
                if pass_index == 0 and not log_probs:  # what was claimed before is at hand
                    count_claim(self._session, part.batch, time.monotonic() - asked)
                self._train_slice(rollout_id, part, self._rows(part, log_probs.get(part.index)), tally)
                self._session.advance(len(part.batch.rows))
                self._account(rollout_id, pass_index, part, tally)
                self._pulse()
                asked = time.monotonic()
        if self._leader is not None:
            self._leader.sync_samples()
        self._exports.publish(rollout_id)
        # Nothing is reported, or recorded, of a version that is not visible: a rank may still be announcing its part.
        agree(self._mesh.gang, RankVote(False, False, 0), f"the parts of version {rollout_id + 1}")
        self._starved.count(0.0)
        tally.carried = of_all_ranks(self._mesh, tally.carried)
        if self._leader is not None:
            self._leader.report(rollout_id, tally)
        self._exports.save_if_due()
        self._moved = False

    def _log_probs(self, rollout_id: RolloutId, loader: StreamingDataLoader) -> dict[int, Jagged]:
        """The proximal log-probs of each slice, by its index, under version r; all of the rollout is waited for."""
        found: dict[int, Jagged] = {}
        self._starved.count(0.0)
        asked = time.monotonic()
        for part in loader:
            self._starved.count(1.0)
            count_claim(self._session, part.batch, time.monotonic() - asked)
            rows = self._rows(part)
            count = self._await_others(f"slice {part.index} of train_{rollout_id}, for its log-probs", rows)
            with self._timeline.span("log_probs", r=rollout_id, rows=len(part.batch.rows)):
                found[part.index] = self._trainer.score(
                    rows.tokens,
                    rows.response_lengths,
                    Output.LOG_PROBS,
                    self._config.temperature,
                    self._pulse,
                    num_micro_batches=count,
                )
            self._pulse()
            asked = time.monotonic()
        return found

    def _rows(self, part: TrainingSlice, log_probs: Jagged | None = None) -> TrainRows:
        if self._config.proximal is Proximal.ENGINE:
            log_probs = part.batch.columns[Column.ROLLOUT_LOG_PROBS]
        return train_rows(part.batch, self._config.truncated, log_probs)

    def _train_slice(self, rollout_id: RolloutId, part: TrainingSlice, rows: TrainRows, tally: RolloutTally) -> None:
        count = self._await_others(f"slice {part.index} of train_{rollout_id}", rows)
        with self._timeline.span("train", r=rollout_id, rows=len(part.batch.rows)):
            self._trainer.accumulate(rows, self._pulse, num_micro_batches=count)
            if part.ends_step:
                self._take_step(rollout_id, tally)

    def _take_step(self, rollout_id: RolloutId, tally: RolloutTally) -> None:
        result = self._trainer.optimizer_step()
        self._moved = True
        tally.add_step(result)
        if result.skipped is not None:
            self._session.counters["skipped_steps"] += 1
            _LOG.warning("train_%s: %s", rollout_id, result.skipped)
            if self._leader is not None:
                self._session.notify(NoticeKind.STEP_SKIPPED, f"train_{rollout_id}: {result.skipped}")
        if result.warning is not None:
            _LOG.warning("train_%s: %s", rollout_id, result.warning)
            if self._leader is not None:
                self._session.notify(NoticeKind.GRADIENT_SPIKE, f"train_{rollout_id}: {result.warning}")

    def _account(self, rollout_id: RolloutId, pass_index: int, part: TrainingSlice, tally: RolloutTally) -> None:
        """Audit first, then the commit: what the queue calls consumed has its lines."""
        facts = self._mesh.gather(slice_facts(part.batch), "what the ranks trained on")
        if pass_index == 0:
            tally.facts.extend(facts)
            tally.carried.add_batch(part.batch)
        if self._leader is None:
            return
        self._leader.log_slice(rollout_id, pass_index, part, facts)
        if part.ends_step and pass_index == 0:
            self._queue.commit_training(self._config.slicing.task, rollout_id, part.step)


def train_rows(batch: Batch, truncated: Truncated, log_probs: Jagged | None = None) -> TrainRows:
    """The batch as a trainer takes it; `log_probs` are the proximal ones where they are no column of it.

    Rows that nothing may be learnt from stay in it, masked: what ranks are dealt is fixed. Of what has one advantage a
    row each token gets it: an objective knows those of tokens alone.
    """
    columns = {column: batch.columns[column] for column in Column if column in batch.columns}
    if (of_rows := columns.pop(Column.ROW_ADVANTAGES, None)) is not None:
        lengths = columns[Column.RESPONSE_LENGTHS].values
        columns[Column.ADVANTAGES] = Jagged.from_lengths(broadcast_to_tokens(of_rows.values, lengths), lengths)
    if log_probs is not None:
        columns.setdefault(Column.LOG_PROBS, log_probs)
    columns[Column.LOSS_MASKS] = loss_masks(batch, truncated)
    columns[Column.IS_CURRENT] = is_current(batch)
    return TrainRows(columns, torch.from_numpy(batch.rows.astype(np.int64)))


def is_current(batch: Batch) -> Jagged:
    """Which response tokens version r made, of rows of `train_r`: [tokens] uint8."""
    spans, lengths = batch.columns[Column.VERSION_SPANS], batch.columns[Column.RESPONSE_LENGTHS].values
    first_of_row = (lengths.cumsum(0) - lengths).repeat_interleave(spans.lengths)
    _, versions, starts, ends = spans.values.long().unbind(1)
    chosen = versions == batch.rollout_id
    borders = torch.zeros(int(lengths.sum()) + 1, dtype=torch.int64)
    borders.index_add_(0, (first_of_row + starts)[chosen], torch.ones(int(chosen.sum()), dtype=torch.int64))
    borders.index_add_(0, (first_of_row + ends)[chosen], -torch.ones(int(chosen.sum()), dtype=torch.int64))
    return Jagged.from_lengths(borders.cumsum(0)[:-1].to(torch.uint8), lengths)


def loss_masks(batch: Batch, truncated: Truncated) -> Jagged:
    """The masks of the batch, with 0 throughout the rows that nothing may be learnt from."""
    masks = batch.columns[Column.LOSS_MASKS]
    learnt = batch.columns[Column.VALID].values.bool()
    if truncated is Truncated.MASK:
        learnt = learnt & ~is_truncated(batch)
    if Column.HAS_VARIANCE in batch.columns:  # only in jobs that leave groups without it out
        learnt = learnt & batch.columns[Column.HAS_VARIANCE].values.bool()
    return Jagged(masks_of_rows(masks.values, masks.offsets.diff(), learnt), masks.offsets)


def run_actor(rank: RankParts) -> None:
    """Builds the parts of a rank that trains, restores them, and runs the loop until the pod drains."""
    spec, context, session = rank.spec, rank.context, rank.session
    restore = session.welcome.restore
    restored = None if restore.folder is None else context.checkpoint_dir / restore.folder
    # A restore reads its folder twice: to verify it, and to load it.
    with rank.loading("building the model", spec.model.path, restored, restored):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, session)
        mesh = build_mesh(spec, group)
        trainer = build_trainer(spec, tokenizer, group)
        store = build_checkpoint_store(
            context,
            session,
            policy_files(spec.model, tokenizer),
            leader=incarnation_of_leader(group, context.incarnation),
            share=trainer.weight_share,
        )
        if restore.folder is None:
            load_version_0(trainer, spec, tokenizer, Path(context.endpoints.weights_dir))
        else:
            folder = store.verified(restore.folder, group.rank, group.world)
            # Each rank has verified its share of the files.
            agree(group, RankVote(False, False, 0), f"the files of {restore.folder}")
            trainer.restore(folder)
    config = ActorConfig.of(spec, dp_rank=mesh.dp_rank, dp_size=mesh.dp_size)
    leader = Leader.of(rank, tokenizer, config.slicing.num_slices) if group.rank == 0 else None
    exports = Exports(
        ExportConfig.of(spec),
        session,
        trainer,
        build_publisher(context, session),
        store,
        None if leader is None else rank.queue.ticket_table,
        rank.timeline,
        lambda names: tensors_of_version_0(spec, tokenizer, names),
        TrainerProbe.of(spec, tokenizer, trainer),
    )
    ActorLoop(config, session, rank.queue, trainer, mesh, exports, leader, rank.timeline).run()
