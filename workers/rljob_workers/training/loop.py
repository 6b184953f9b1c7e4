"""The actor's loop: trains on `train_r`, publishes version r + 1, reports the step, saves; in that order for each r.

Run by the assembly on every data-parallel rank, in step: no rank goes on or leaves before all have agreed to. Rank 0
(the `Leader`) also logs, commits and reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from rljob_api.names import WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import ProximalPolicy
from rljob_api.spec.evaluation import EvaluationSpec
from rljob_api.wire.ranks import NoticeKind
from rljob_workers import pipeline
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import build_checkpoint_store
from rljob_workers.dcs.weights import build_publisher
from rljob_workers.evaluation import sentence_of_unfinished
from rljob_workers.gangs.leading import leader_of_checkpoints
from rljob_workers.gangs.rendezvous import form_group
from rljob_workers.models.policy_files import policy_files
from rljob_workers.models.saved_templates import saved_template
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rank_loop import TURN_SECONDS, RankParts
from rljob_workers.run_inputs import report_inputs
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer, load_version_0, tensors_of_version_0
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import RankVote, agree
from rljob_workers.training.gang_loop import GangLoop, GangParts, slicing_of
from rljob_workers.training.learnt_tokens import LearntTokens, train_rows
from rljob_workers.training.publishing import ExportConfig, Exports, TrainerProbe
from rljob_workers.training.reporting import Leader
from rljob_workers.training.row_metrics import of_all_ranks
from rljob_workers.training.sample_filter import SampleFilter
from rljob_workers.training.saving import SaveConfig, Saves
from rljob_workers.training.turns import Turns
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, TrainingSlice


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
    learnt: LearntTokens
    evaluation: EvaluationSpec | None
    """Which versions are evaluated, if any."""
    seed: int
    """The job's."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> ActorConfig:
        """Of a job."""
        return cls(
            num_rollouts=spec.rollout.num_rollouts,
            passes=spec.training.epochs_per_rollout,
            critic_only_steps=spec.training.critic_only_steps or 0,
            proximal=proximal_of(spec),
            temperature=spec.rollout.sampling.temperature,
            learnt=LearntTokens.of(spec),
            evaluation=spec.evaluation,
            seed=spec.seed,
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
        super().__init__(
            gang, slicing, saves, leader, config.learnt, rollouts=config.num_rollouts, passes=config.passes
        )
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
        self._exports.begin(self.saves.weights)

    def _train_rollout(self, loader: StreamingDataLoader) -> None:
        rollout_id, mesh, reports = self.rollout_id, self.gang.mesh, self.reports
        if self.computes and self._config.proximal is Proximal.ROLLOUT:
            self._log_probs = self._proximal_log_probs(loader)
        self.train(loader, has_claimed=bool(self._log_probs))
        self._log_probs, self._passed = {}, {}
        if reports is not None:
            reports.sync_samples()
        if self.computes:
            self.saves.reach(WeightVersion(rollout_id + 1))
        else:
            self.saves.name(WeightVersion(rollout_id + 1))
        self._exports.publish(self.saves.weights)
        # Nothing is reported, or recorded, of a version that is not visible: a rank may still be announcing its part.
        agree(mesh.gang, RankVote(False, False, 0), f"the parts of version {rollout_id + 1}")
        self.starved.count(0.0)
        self.tally.carried = of_all_ranks(mesh, self.tally.carried)
        if reports is not None:
            reports.report(rollout_id, self.tally)
        self.saves.save_if_due()

    def await_leave(self) -> None:
        """Until version r is evaluated, where it is to be: no optimizer step takes it away before.

        So a drain, and any restart, finds it as the newest version, and the evaluation goes on with its weights. The
        last version is waited for by the supervisor.
        """
        version, gang = WeightVersion(self.rollout_id), self.gang
        if not self._is_evaluated_at(version):
            return
        waiting = f"the evaluation of version {version}"
        with gang.timeline.span("await_evaluation", version=version):
            while True:
                is_over = gang.queue.evaluation.is_over(version, timeout=TURN_SECONDS)
                if self.agree(waiting, has_rows=is_over).all_have_rows:
                    return
                self.starved.count(0.0)  # more rollouts would not help
                gang.session.pulse(waiting=waiting)

    def end(self) -> None:
        """Reports an evaluation that this version's weights are needed for yet."""
        version, evaluation = self.saves.version, self._config.evaluation
        if evaluation is None or not self.gang.leads or not self._is_evaluated_at(version):
            return
        samples = self.gang.queue.evaluation
        if not samples.is_over(version, timeout=0):
            message = sentence_of_unfinished(version, samples.scored(version), evaluation, self._config.seed)
            self.gang.session.notify(NoticeKind.EVALUATION_UNFINISHED, message)

    def _is_evaluated_at(self, version: WeightVersion) -> bool:
        evaluation = self._config.evaluation
        return evaluation is not None and evaluation.is_due(version, self._config.num_rollouts)

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
        return train_rows(part.batch, self.learnt, log_probs, self._passed_by_filter(part))

    def left_out(self, part: TrainingSlice) -> torch.Tensor | None:
        """See the base: those that the job's filter leaves out."""
        passed = self._passed.get(part.index)
        return None if passed is None else self.learnt.rows(part.batch) & ~passed

    def _passed_by_filter(self, part: TrainingSlice) -> torch.Tensor | None:
        """Asked for once, whichever passes there are; a collective of the ranks that have the same rows."""
        if self._sample_filter is None or not self.computes:
            return None
        if part.index not in self._passed:
            self._passed[part.index] = self._sample_filter.passed_by_source(
                self.gang.mesh, part.batch, self.learnt, self.pulse
            )
        return self._passed[part.index]

    def account(self, pass_index: int, part: TrainingSlice) -> None:
        """As the base, with the metrics that the rows carry."""
        if pass_index == 0:
            self.tally.carried.add_batch(part.batch)
        super().account(pass_index, part)


def run_actor(rank: RankParts) -> None:
    """Builds the parts of a rank that trains, restores them, and runs the loop until the pod drains."""
    spec, context, session = rank.spec, rank.context, rank.session
    restore = session.welcome.restore
    restored = None if restore.folder is None else context.checkpoint_dir / restore.folder
    # A restore reads its folder twice: to verify it, and to load it.
    with rank.loading("building the model", spec.model.path, restored, restored):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, session)
        trainer, named = build_trainer(spec, tokenizer, group), spec.algorithm.sample_filter
        sample_filter = None if named is None else SampleFilter.load(named, spec)
        template = saved_template(spec.data, tokenizer)
        report_inputs(rank)
        store = build_checkpoint_store(
            context,
            session,
            policy_files(spec, tokenizer, template),
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
    if template.problem is not None and group.rank == 0:
        session.notify(NoticeKind.TEMPLATE_NOT_SAVED, template.problem)
    gang = GangParts(session, rank.queue, trainer, Turns.of(rank, group), rank.timeline)
    slicing = slicing_of(spec, pipeline.ACTOR_TRAIN, trainer.mesh)
    leader = Leader.of(rank, tokenizer, slicing.num_slices) if group.rank == 0 else None
    tickets = None if leader is None else rank.queue.ticket_table
    saves = Saves(SaveConfig.of(spec), session, trainer, store, tickets, rank.timeline)
    exports = Exports(
        ExportConfig.of(spec),
        session,
        build_publisher(context, session),
        store,
        rank.timeline,
        lambda names: tensors_of_version_0(spec, tokenizer, names),
        TrainerProbe.of(spec, tokenizer, trainer),
    )
    ActorLoop(ActorConfig.of(spec), gang, slicing, saves, exports, leader, sample_filter).run()
