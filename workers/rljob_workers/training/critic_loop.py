"""The critic's loop: values of `train_r` under version r, then training on its returns, then its part of version r + 1.

Run by the assembly on every data-parallel rank, in step. All values of a rollout are made before the first optimizer
step on it. The critic publishes nothing: it makes its values itself. It saves what the actor saves (`training.saving`),
and begins each rollout together with it (`training.turns`).
"""

from __future__ import annotations

from pathlib import Path

from rljob_api.names import WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_workers import pipeline
from rljob_workers.algorithms.objective import Output
from rljob_workers.dcs.checkpoints.store import build_checkpoint_store
from rljob_workers.gangs.leading import leader_of_checkpoints
from rljob_workers.gangs.rendezvous import form_group
from rljob_workers.gangs.shared_claims import SharedClaims
from rljob_workers.models.saved_templates import saved_template, with_template
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.value_head import critic_files
from rljob_workers.rank_loop import RankParts, RowServer
from rljob_workers.run_inputs import report_inputs
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_critic, load_critic_version_0
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import RankVote, agree
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.trainers.row_shares import score_shared
from rljob_workers.trainers.settings import CriticSettings
from rljob_workers.training.gang_loop import GangLoop, GangParts, slicing_of
from rljob_workers.training.learnt_tokens import LearntTokens, critic_rows
from rljob_workers.training.reporting import CriticReports
from rljob_workers.training.saving import SaveConfig, Saves
from rljob_workers.training.turns import Turns
from rljob_workers.transfer_queue.dataset import StreamingDataLoader, TrainingSlice
from rljob_workers.transfer_queue.types import Batch


class CriticLoop(GangLoop):
    """The critic's main loop on one data-parallel rank."""

    def __init__(self, rank: RankParts, gang: GangParts, saves: Saves) -> None:
        spec = rank.spec
        super().__init__(
            gang,
            slicing_of(spec, pipeline.CRITIC_TRAIN.name, gang.mesh),
            saves,
            CriticReports(rank) if gang.leads else None,
            LearntTokens.of(spec),
            rollouts=spec.rollout.num_rollouts,
            passes=spec.training.epochs_per_rollout,
        )
        whole = gang.mesh.gang
        # The rows of a claim are dealt to the ranks by length, and the values of all put by one of them.
        shared = SharedClaims(gang.queue, Mesh.of(whole, [0] * whole.world))
        self._values = RowServer(
            gang.session,
            shared,
            pipeline.CRITIC_VALUES.name,
            spec.rollout.batch_size * spec.rollout.samples_per_prompt,
            self._put_values,
            self._leaves,
            counts=gang.leads,
        )

    def _train_rollout(self, loader: StreamingDataLoader) -> None:
        self._values.serve_partitions(range(self.rollout_id, self.rollout_id + 1))
        self.train(loader)
        if self.reports is not None:
            self.reports.sync_samples()
        self.saves.reach(WeightVersion(self.rollout_id + 1))
        self.starved.count(0.0)
        if self.reports is not None:
            self.reports.report(self.rollout_id, self.tally)
        self.saves.save_if_due()

    def while_waiting(self) -> None:
        """Makes values that were lost since again, else no rows would come.

        After the first optimizer step on the rollout they are those of the weights of now.
        """
        self._values.serve_again(range(self.rollout_id, self.rollout_id + 1))

    def rows_of(self, part: TrainingSlice) -> TrainRows:
        """With every sample that has a score, also those that the policy leaves out."""
        return critic_rows(part.batch, self.learnt)

    def _leaves(self) -> bool:
        """False; where the roles that train leave at version r, Draining is raised. A collective."""
        self.agree("who drains", has_rows=False)
        return False

    def _put_values(self, batch: Batch) -> None:
        gang = self.gang
        tokens, lengths = batch.columns[Column.TOKENS], batch.columns[Column.RESPONSE_LENGTHS].values
        with gang.timeline.span("values", r=batch.rollout_id, rows=len(batch.rows)):
            values: Jagged = score_shared(gang.trainer, tokens, lengths, Output.VALUES, self.pulse)
            if gang.leads:
                gang.queue.put(batch, {Column.VALUES: values}, weight=None)


def run_critic(rank: RankParts) -> None:
    """Builds the parts of a rank of the critic, restores them, and runs the loop until the pod drains."""
    spec, context, session = rank.spec, rank.context, rank.session
    restore = session.welcome.restore
    restored = None if restore.folder is None else context.checkpoint_dir / restore.folder
    with rank.loading("building the model", _first_folder(spec), restored, restored):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, session)
        settings = CriticSettings.of(spec)
        trainer = build_critic(settings, spec, tokenizer, group)
        report_inputs(rank)
        store = build_checkpoint_store(
            context,
            session,
            with_template(
                critic_files(settings.of_its_model(spec).model, tokenizer), saved_template(spec.data, tokenizer)
            ),
            leader=leader_of_checkpoints(context, session, group),
            share=trainer.weight_share,
        )
        folder = None if restore.folder is None else store.verified(restore.folder, group.rank, group.world)
        if folder is None:
            load_critic_version_0(trainer, settings, spec, tokenizer, Path(context.endpoints.weights_dir))
        else:
            # Each rank has verified its share of the files.
            agree(group, RankVote(False, False, 0), f"the critic's files of {restore.folder}")
            trainer.restore(folder)
    gang = GangParts(session, rank.queue, trainer, Turns.of(rank, group), rank.timeline)
    CriticLoop(rank, gang, Saves(SaveConfig.of(spec), session, trainer, store, None, rank.timeline)).run()


def _first_folder(spec: RLJobSpec) -> str | None:
    """The folder that the critic of a new job is made of."""
    critic = spec.roles.critic
    assert critic is not None, "a critic runs where the job has one"
    return critic.model_path or spec.model.path
