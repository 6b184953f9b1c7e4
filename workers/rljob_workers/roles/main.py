"""Entry of a rank: builds the parts that its role needs from their factories and runs the loop.

Called by the launcher in the forked child. Returns the exit code; a ValueError is the user's, everything else is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rljob_api.checkpoint_interval import checkpoint_interval
from rljob_api.names import EXIT_SUCCEEDED, Role
from rljob_api.role_traits import TRAITS
from rljob_api.spec import RLJobSpec
from rljob_api.topology import RoleTopology, topology_of
from rljob_workers.data import build_prompt_source
from rljob_workers.dcs.checkpoints import build_checkpoint_store
from rljob_workers.dcs.context import RankContext
from rljob_workers.dcs.session import RankSession
from rljob_workers.dcs.weights import build_publisher, build_receiver
from rljob_workers.engines import build_engine
from rljob_workers.models.building import initial_tensors, policy_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rewards import build_reward
from rljob_workers.roles import advantages, tasks
from rljob_workers.roles.actor import ActorConfig, ActorLoop
from rljob_workers.roles.exports import ExportConfig, Exports
from rljob_workers.roles.forward import ForwardConfig, ForwardLoop
from rljob_workers.roles.group import form_group, incarnation_of_leader
from rljob_workers.roles.leader import Leader
from rljob_workers.roles.proximal import proximal_of
from rljob_workers.roles.rollout import RolloutConfig, RolloutLoop
from rljob_workers.roles.stages.generate import GenerateConfig, GenerateStage, TextDecoder
from rljob_workers.roles.stages.log_probs import LogProbsStage
from rljob_workers.roles.weight_follower import WeightFollower
from rljob_workers.telemetry.sample_log import SampleLog
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers import build_forward_model, build_trainer, load_version_0
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing
from rljob_workers.transfer_queue.types import Task

LOADING_SECONDS = 300.0
"""How long a rank may take to build its model, by its own word."""


def main(context: RankContext) -> int:
    """Runs the role of `context` until its pod drains; LifeOver and errors go to the launcher as they are."""
    rank = _Rank(context)
    with closing(rank.timeline):
        _LOOPS[rank.role](rank)
    return EXIT_SUCCEEDED


@dataclass(frozen=True)
class _Rank:
    """The parts of one rank, each made when it is first needed."""

    context: RankContext

    @property
    def spec(self) -> RLJobSpec:
        return self.context.job.spec

    @property
    def role(self) -> Role:
        return self.context.life.key.role

    @property
    def run_dir(self) -> Path:
        return Path(self.context.endpoints.run_dir)

    @cached_property
    def session(self) -> RankSession:
        return RankSession(self.context)

    @cached_property
    def queue(self) -> TransferQueueClient:
        shape = tasks.queue_shape(self.spec)
        queue = TransferQueueClient(
            self.context.endpoints,
            shape,
            self.context.life,
            waiting=self.spec.transfer_queue.polling_mode,
            checksums=self.spec.transfer_queue.checksums,
            counters=self.session.counters,
        )
        self.session.follow_seq(lambda: queue.seen_seq)
        return queue

    @cached_property
    def timeline(self) -> Timeline:
        key = self.context.life.key
        path = self.run_dir / "timeline" / f"{key}.{self.context.life.incarnation}.jsonl"
        return Timeline(path, str(key))

    @property
    def partitions(self) -> range:
        """Those that were not trained and recorded when this epoch began."""
        return range(self.session.welcome.restore.version, self.spec.rollout.num_rollouts)

    @property
    def topology(self) -> RoleTopology:
        return topology_of(self.spec.roles, self.role)

    @property
    def share(self) -> int:
        """Rows that one claimant takes at once: its part of a rollout, in whole groups."""
        groups = -(-self.spec.rollout.batch_size // len(self.topology.gangs))
        return groups * self.spec.rollout.samples_per_prompt


def _run_advantages(rank: _Rank) -> None:
    advantages.run(
        rank.session,
        rank.queue,
        rank.timeline,
        partitions=rank.partitions,
        samples_per_prompt=rank.spec.rollout.samples_per_prompt,
        max_rows=rank.share,
    )


def _run_actor_fwd(rank: _Rank) -> None:
    _run_forward(rank, tasks.ACTOR_LOG_PROBS, tasks.LOG_PROBS, interval=1)


def _run_reference(rank: _Rank) -> None:
    _run_forward(rank, tasks.REFERENCE_LOG_PROBS, tasks.REF_LOG_PROBS, interval=rank.spec.training.ref_update_interval)


def _run_forward(rank: _Rank, task: Task, field: str, *, interval: int | None) -> None:
    stream = TRAITS[rank.role].stream
    assert stream is not None, f"{rank.role} computes under weights that it follows"
    config = ForwardConfig(
        task=task.name,
        stream=stream,
        num_rollouts=rank.spec.rollout.num_rollouts,
        max_rows=rank.share,
        interval=interval,
    )
    with rank.session.busy("building the model", LOADING_SECONDS):
        tokenizer = build_tokenizer(rank.spec.model)
        model = build_forward_model(rank.spec, tokenizer)
    stage = LogProbsStage(model, field, rank.spec.rollout.sampling.temperature)
    with closing(build_receiver(rank.context, rank.session)) as receiver:
        ForwardLoop(config, rank.session, rank.queue, receiver, model, stage, rank.timeline).run()


def _run_rollout(rank: _Rank) -> None:
    spec = rank.spec
    with rank.session.busy("opening data, reward and engine", LOADING_SECONDS):
        tokenizer = build_tokenizer(spec.model)
        source = build_prompt_source(spec.data, tokenizer)
        reward = build_reward(spec.rollout.reward, spec.data, source)
        engine = build_engine(rank.context)
        engine.abort_all()
    sampling = spec.rollout.sampling
    config = GenerateConfig(
        job_seed=spec.seed,
        samples_per_prompt=spec.rollout.samples_per_prompt,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        max_tokens=engine.max_tokens(),
        stop_token_ids=tuple(sampling.stop_token_ids),
        timeout_seconds=float(spec.restart_policy.stall_timeout_seconds),
    )
    stage = GenerateStage(config, engine, source, reward, _text_decoder(tokenizer))
    sizes = RolloutConfig.sized(
        spec.rollout.batch_size,
        rank.topology.num_ranks,
        spec.rollout.samples_per_prompt,
        sampling.max_new_tokens,
    )
    loop = RolloutLoop(sizes, rank.session, rank.queue, engine, stage, rank.timeline)
    with closing(build_receiver(rank.context, rank.session)) as receiver:
        follower = WeightFollower(
            receiver,
            engine,
            rank.timeline,
            on_change=loop.wake.set,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )
        follower.start()
        loop.run(follower)


def _run_actor(rank: _Rank) -> None:
    spec, context = rank.spec, rank.context
    restore = rank.session.welcome.restore
    with rank.session.busy("building the model", LOADING_SECONDS):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, rank.session)
        trainer = build_trainer(spec, tokenizer, group)
        leader_life = incarnation_of_leader(group, context.life)
        store = build_checkpoint_store(
            context,
            rank.session,
            policy_files(spec.model, tokenizer),
            leader=leader_life,
            share=trainer.weight_share,
        )
        if restore.folder is None:
            load_version_0(trainer, spec, tokenizer, Path(context.endpoints.weights_dir))
        else:
            trainer.restore(store.verified(restore.folder))
    is_leader = group.rank == 0
    samples = SampleLog(rank.run_dir / "samples.jsonl") if is_leader and spec.telemetry.sample_log else None
    leader = Leader(rank.session, samples, spec.rollout.samples_per_prompt) if is_leader else None
    exports = Exports(
        ExportConfig(
            num_rollouts=spec.rollout.num_rollouts,
            checkpoint_every=checkpoint_interval(spec),
            keep_every=spec.checkpoint.keep_every,
            ref_update_interval=spec.training.ref_update_interval,
            serves_reference=spec.roles.reference is not None,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        ),
        rank.session,
        trainer,
        build_publisher(context, rank.session),
        store,
        rank.queue.ticket_table if is_leader else None,
        rank.timeline,
        lambda names: initial_tensors(spec.model, tokenizer, names),
    )
    slicing = Slicing(
        task=tasks.ACTOR_TRAIN,
        rows_per_rollout=spec.rollout.batch_size * spec.rollout.samples_per_prompt,
        global_batch_size=spec.training.global_batch_size,
        iters_per_train_update=spec.training.iters_per_train_update,
        dp_rank=group.rank,
        dp_size=group.world,
    )
    loop_config = ActorConfig(
        spec.rollout.num_rollouts,
        spec.training.epochs_per_rollout,
        slicing,
        proximal_of(spec),
        spec.rollout.sampling.temperature,
    )
    ActorLoop(loop_config, rank.session, rank.queue, trainer, group, exports, leader, rank.timeline).run()


def _text_decoder(tokenizer: PreTrainedTokenizerBase) -> TextDecoder:
    """All texts of a request in one call; transformers' own batch_decode is a loop in Python."""
    backend = tokenizer.backend_tokenizer

    def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = backend.decode_batch([list(ids) for ids in sequences], skip_special_tokens=True)
        return texts

    return decode


_LOOPS: dict[Role, Callable[[_Rank], None]] = {
    Role.ROLLOUT: _run_rollout,
    Role.ACTOR: _run_actor,
    Role.ACTOR_FWD: _run_actor_fwd,
    Role.REFERENCE: _run_reference,
    Role.ADVANTAGES: _run_advantages,
}
