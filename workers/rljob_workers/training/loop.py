"""The actor's loop: trains on `train_r`, publishes version r + 1, reports the step, saves; in that order for each r.

Run by the assembly on every data-parallel rank, in step: no rank goes on or leaves before all have agreed to. Rank 0
(the `Leader`) also logs, commits and reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import torch

from rljob_api.names import WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import ProximalPolicy, Truncated
from rljob_api.spec.evaluation import EvaluationSpec
from rljob_workers import pipeline
from rljob_workers.algorithms.advantages.estimator import broadcast_to_tokens
from rljob_workers.algorithms.losses import masks_of_rows
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import build_checkpoint_store
from rljob_workers.dcs.weights import build_publisher
from rljob_workers.gangs.leading import leader_of_checkpoints
from rljob_workers.gangs.rendezvous import form_group
from rljob_workers.models.building import policy_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rank_loop import TURN_SECONDS, RankParts
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer, load_version_0, tensors_of_version_0
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import RankVote, agree
from rljob_workers.training.gang_loop import GangLoop, GangParts, slicing_of
from rljob_workers.training.publishing import ExportConfig, Exports, TrainerProbe
from rljob_workers.training.reporting import Leader
from rljob_workers.training.row_metrics import of_all_ranks
from rljob_workers.training.sample_filter import SampleFilter
from rljob_workers.training.saving import SaveConfig, Saves
from rljob_workers.training.step_metrics import is_truncated
from rljob_workers.training.turns import Turns
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, TrainingSlice
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


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """What the loop must know of the job."""

    num_rollouts: int
    passes: int
    """epochsPerRollout."""
    critic_only_steps: int
    """On so many rollouts, the first ones, nothing is computed, and the version goes on."""
    proximal: Proximal
    temperature: float
    """That of sampling, for the log-probs that the actor computes itself."""
    truncated: Truncated
    """Whether anything is learnt from samples that were cut off."""
    evaluation: EvaluationSpec | None
    """Which versions are evaluated, if any."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> ActorConfig:
        """Of a job."""
        return cls(
            num_rollouts=spec.rollout.num_rollouts,
            passes=spec.training.epochs_per_rollout,
            critic_only_steps=spec.training.critic_only_steps or 0,
            proximal=proximal_of(spec),
            temperature=spec.rollout.sampling.temperature,
            truncated=spec.algorithm.truncated,
            evaluation=spec.evaluation,
        )


class ActorLoop(GangLoop):
    """The actor's main loop on one data-parallel rank."""

    def __init__(
        self,
        config: ActorConfig,
        gang: GangParts,
        slicing: Slicing,
        saves: Saves,
        exports: Exports,
        leader: Leader | None,
        sample_filter: SampleFilter | None = None,
    ) -> None:
        """`leader` on global rank 0, None on the others. `sample_filter` None: the job has none."""
        super().__init__(gang, slicing, saves, leader, rollouts=config.num_rollouts, passes=config.passes)
        self._config = config
        self._exports = exports
        self._log_probs: dict[int, Jagged] = {}
        """The proximal log-probs of each slice of the rollout in hand, by its index, where the actor makes them."""
        self._sample_filter = sample_filter
        self._passed: dict[int, torch.Tensor] = {}
        """By its index, which rows of each slice of the rollout in hand its filter has passed, [rows] bool."""

    @property
    def computes(self) -> bool:
        """Not on the first rollouts of a job with criticOnlySteps."""
        return self.rollout_id >= self._config.critic_only_steps

    def begin(self) -> None:
        """Durable, and visible."""
        super().begin()
        self._exports.begin()

    def _train_rollout(self, loader: StreamingDataLoader) -> None:
        rollout_id, mesh, reports = self.rollout_id, self.gang.mesh, self.reports
        if self.computes and self._config.proximal is Proximal.ROLLOUT:
            self._log_probs = self._proximal_log_probs(loader)
        self.train(loader, has_claimed=bool(self._log_probs))
        self._log_probs, self._passed = {}, {}
        if reports is not None:
            reports.sync_samples()
        self.saves.reach(WeightVersion(rollout_id + 1))
        if self.computes:
            self.saves.stage()
        self._await_evaluation(WeightVersion(rollout_id))
        self._exports.publish()
        if rollout_id + 1 == self._config.num_rollouts:
            self._await_evaluation(WeightVersion(rollout_id + 1))
        # Nothing is reported, or recorded, of a version that is not visible: a rank may still be announcing its part.
        agree(mesh.gang, RankVote(False, False, 0), f"the parts of version {rollout_id + 1}")
        self.starved.count(0.0)
        self.tally.carried = of_all_ranks(mesh, self.tally.carried)
        if reports is not None:
            reports.report(rollout_id, self.tally)
        self.saves.save_if_due()

    def _await_evaluation(self, version: WeightVersion) -> None:
        """Until a version that is evaluated is: it is the newest for so long, and what is found is of it alone.

        Each rank asks by itself. An order to drain does not end the wait: the version that follows would be published,
        and the evaluation never end.
        """
        evaluation, gang = self._config.evaluation, self.gang
        if evaluation is None or not evaluation.is_due(version, self._config.num_rollouts):
            return
        with gang.timeline.span("await_evaluation", version=version):
            while not gang.queue.is_evaluated(version, timeout=TURN_SECONDS):
                self.starved.count(0.0)  # more rollouts would not help
                gang.session.pulse(waiting=f"the evaluation of version {version}")

    def _proximal_log_probs(self, loader: StreamingDataLoader) -> dict[int, Jagged]:
        """Of each slice, under version r; all of the rollout is waited for."""
        found: dict[int, Jagged] = {}
        gang, rollout_id = self.gang, self.rollout_id
        for part in self.slices(loader, counts=True):
            rows = self.rows_of(part)
            count = self.await_others(f"slice {part.index} of train_{rollout_id}, for its log-probs", rows)
            with gang.timeline.span("log_probs", r=rollout_id, rows=len(part.batch.rows)):
                found[part.index] = gang.trainer.score(
                    rows.tokens,
                    rows.response_lengths,
                    Output.LOG_PROBS,
                    self._config.temperature,
                    self.pulse,
                    num_micro_batches=count,
                )
        return found

    def rows_of(self, part: TrainingSlice) -> TrainRows:
        """With the proximal log-probs that the job has."""
        log_probs = self._log_probs.get(part.index)
        if self._config.proximal is Proximal.ENGINE:
            log_probs = part.batch.columns[Column.ROLLOUT_LOG_PROBS]
        return train_rows(part.batch, self._config.truncated, log_probs, self._passed_by_filter(part))

    def left_out(self, part: TrainingSlice) -> torch.Tensor | None:
        """See the base: those that the job's filter leaves out."""
        passed = self._passed.get(part.index)
        return None if passed is None else learnt_rows(part.batch, self._config.truncated) & ~passed

    def _passed_by_filter(self, part: TrainingSlice) -> torch.Tensor | None:
        """Asked for once, whichever passes there are; a collective of the ranks that have the same rows."""
        if self._sample_filter is None or not self.computes:
            return None
        if part.index not in self._passed:
            asked = learnt_rows(part.batch, self._config.truncated)
            self._passed[part.index] = self._sample_filter.passed_by_source(self.gang.mesh, part.batch, asked)
        return self._passed[part.index]

    def account(self, pass_index: int, part: TrainingSlice) -> None:
        """As the base, with the metrics that the rows carry."""
        if pass_index == 0:
            self.tally.carried.add_batch(part.batch)
        super().account(pass_index, part)


def train_rows(
    batch: Batch, truncated: Truncated, log_probs: Jagged | None = None, passed: torch.Tensor | None = None
) -> TrainRows:
    """The batch as a trainer takes it; `log_probs` are the proximal ones where they are no column of it.

    `passed`, [rows] bool: not those that the job's filter leaves out; None: it has none.
    Rows that nothing may be learnt from stay in it, masked: what ranks are dealt is fixed. Of what has one advantage a
    row each token gets it: an objective knows those of tokens alone.
    """
    columns = {column: batch.columns[column] for column in Column if column in batch.columns}
    if (of_rows := columns.pop(Column.ROW_ADVANTAGES, None)) is not None:
        lengths = columns[Column.RESPONSE_LENGTHS].values
        columns[Column.ADVANTAGES] = Jagged.from_lengths(broadcast_to_tokens(of_rows.values, lengths), lengths)
    if log_probs is not None:
        columns.setdefault(Column.LOG_PROBS, log_probs)
    columns[Column.LOSS_MASKS] = loss_masks(batch, truncated, passed)
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


def loss_masks(batch: Batch, truncated: Truncated, passed: torch.Tensor | None = None) -> Jagged:
    """The masks of the batch, with 0 throughout the rows that nothing may be learnt from, or that are not `passed`."""
    masks, learnt = batch.columns[Column.LOSS_MASKS], learnt_rows(batch, truncated)
    if passed is not None:
        learnt = learnt & passed
    return Jagged(masks_of_rows(masks.values, masks.offsets.diff(), learnt), masks.offsets)


def learnt_rows(batch: Batch, truncated: Truncated) -> torch.Tensor:
    """From which rows something may be learnt, [rows] bool."""
    learnt = batch.columns[Column.VALID].values.bool()
    if truncated is Truncated.MASK:
        learnt = learnt & ~is_truncated(batch)
    if Column.HAS_VARIANCE in batch.columns:  # only in jobs that leave groups without it out
        learnt = learnt & batch.columns[Column.HAS_VARIANCE].values.bool()
    return learnt


def run_actor(rank: RankParts) -> None:
    """Builds the parts of a rank that trains, restores them, and runs the loop until the pod drains."""
    spec, context, session = rank.spec, rank.context, rank.session
    restore = session.welcome.restore
    restored = None if restore.folder is None else context.checkpoint_dir / restore.folder
    # A restore reads its folder twice: to verify it, and to load it.
    with rank.loading("building the model", spec.model.path, restored, restored):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, session)
        trainer, sample_filter = build_trainer(spec, tokenizer, group), SampleFilter.of(spec)
        store = build_checkpoint_store(
            context,
            session,
            policy_files(spec.model, tokenizer),
            leader=leader_of_checkpoints(context, session, group),
            share=trainer.weight_share,
        )
        if restore.folder is None:
            load_version_0(trainer, spec, tokenizer, Path(context.endpoints.weights_dir))
        else:
            folder = store.verified(restore.folder, group.rank, group.world)
            assert folder is not None, "every record has the policy"
            # Each rank has verified its share of the files.
            agree(group, RankVote(False, False, 0), f"the files of {restore.folder}")
            trainer.restore(folder)
    gang = GangParts(session, rank.queue, trainer, Turns.of(rank, group), rank.timeline)
    slicing = slicing_of(spec, pipeline.ACTOR_TRAIN, trainer.mesh)
    leader = Leader.of(rank, tokenizer, slicing.num_slices) if group.rank == 0 else None
    tickets = None if leader is None else rank.queue.ticket_table
    saves = Saves(SaveConfig.of(spec), session, trainer, store, tickets, rank.timeline)
    exports = Exports(
        ExportConfig.of(spec),
        session,
        saves,
        trainer.weight_share,
        build_publisher(context, session),
        store,
        rank.timeline,
        lambda names: tensors_of_version_0(spec, tokenizer, names),
        TrainerProbe.of(spec, tokenizer, trainer),
    )
    ActorLoop(ActorConfig.of(spec), gang, slicing, saves, exports, leader, sample_filter).run()
