"""The roles' assembly: builds the parts that the role of a rank needs from their factories and runs its loop.

`main` is called by the launcher in the forked child. It returns the exit code; a ValueError is the user's, everything
else is ours. A new role is one function here and a row in the table of loops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rljob_api.names import EXIT_SUCCEEDED, Role
from rljob_api.roles import TRAITS, RoleTopology, topology_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import engine_stall_seconds, loading_seconds
from rljob_workers import pipeline
from rljob_workers.data import build_prompt_source
from rljob_workers.dcs.checkpoints.store import build_checkpoint_store
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights import build_publisher, build_receiver
from rljob_workers.engines.base import EngineError
from rljob_workers.models.building import described_config, policy_files
from rljob_workers.models.tokenizers import build_tokenizer, text_decoder
from rljob_workers.rewards import Reward, build_reward
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring
from rljob_workers.rollout.admission import FittingPrompts, PromptLimit, RolloutShape
from rljob_workers.rollout.engine_access import EngineProgress, IdleEngine, RankEngine, build_engine
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.groups import GenerateConfig, GenerateStage, GroupsInWork, ScoreStage
from rljob_workers.rollout.loop import RolloutLoop
from rljob_workers.rollout.verification import WeightProof, bound_of, is_published
from rljob_workers.scoring import advantages
from rljob_workers.scoring.forward import ForwardConfig, ForwardLoop
from rljob_workers.telemetry.sample_logs import GenerationLog, SampleLog
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.trainers import build_forward_model, build_trainer, load_version_0, tensors_of_version_0
from rljob_workers.trainers.base import Trainer
from rljob_workers.trainers.data_parallel import RankVote, agree
from rljob_workers.training.loop import ActorConfig, ActorLoop
from rljob_workers.training.publishing import NUM_TOKENS, ExportConfig, Exports, TrainerProbe, probe_tokens
from rljob_workers.training.rendezvous import form_group, incarnation_of_leader
from rljob_workers.training.reporting import GenerationSampler, Leader
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing
from rljob_workers.transfer_queue.types import Task


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
        shape = pipeline.queue_shape(self.spec)
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
    _run_forward(rank, pipeline.ACTOR_LOG_PROBS, pipeline.LOG_PROBS, interval=1)


def _run_reference(rank: _Rank) -> None:
    _run_forward(
        rank, pipeline.REFERENCE_LOG_PROBS, pipeline.REF_LOG_PROBS, interval=rank.spec.training.ref_update_interval
    )


def _run_forward(rank: _Rank, task: Task, field: str, *, interval: int | None) -> None:
    stream = TRAITS[rank.role].stream
    assert stream is not None, f"{rank.role} computes under weights that it follows"
    config = ForwardConfig(
        task=task.name,
        field=field,
        temperature=rank.spec.rollout.sampling.temperature,
        stream=stream,
        num_rollouts=rank.spec.rollout.num_rollouts,
        max_rows=rank.share,
        interval=interval,
    )
    with rank.session.busy("building the model", _loading_seconds(rank.spec.model.path)):
        tokenizer = build_tokenizer(rank.spec.model)
        model = build_forward_model(rank.spec, tokenizer)
    with closing(build_receiver(rank.context, rank.session)) as receiver:
        ForwardLoop(config, rank.session, rank.queue, receiver, model, rank.timeline).run()


def _run_rollout(rank: _Rank) -> None:
    rollout = rank.spec.rollout
    progress = EngineProgress(time.monotonic, rollout.samples_per_prompt * rollout.sampling.max_new_tokens)
    with closing(RankEngine(build_engine(rank.context), progress, rank.context, rank.session)) as engine:
        if (found := engine.find_idle()) is not None:
            _serve_tickets(rank, engine, found)


def _serve_tickets(rank: _Rank, engine: RankEngine, found: IdleEngine) -> None:
    spec = rank.spec
    with rank.session.busy("opening data and reward", _loading_seconds(spec.data.prompts)):
        tokenizer = build_tokenizer(spec.model)
        source = build_prompt_source(spec.data, tokenizer)
        reward = build_reward(spec.rollout.reward, spec.data, source)
    wake = threading.Event()
    work = GroupsInWork(
        engine,
        GenerateStage(GenerateConfig.of(spec, found.max_tokens), engine.client),
        ScoreStage(_scoring(rank, reward), text_decoder(tokenizer, skip_special_tokens=True)),
        rank.timeline,
        wake=wake.set,
        stall_seconds=engine_stall_seconds(spec.restart_policy),
    )
    shape = RolloutShape(
        batch_size=spec.rollout.batch_size,
        samples_per_prompt=spec.rollout.samples_per_prompt,
        max_new_tokens=spec.rollout.sampling.max_new_tokens,
        max_staleness=spec.rollout.max_staleness,
        most_ranks=rank.topology.num_ranks,
        concurrency=spec.rollout.concurrency or found.capacity,
        prompts_per_request=engine.client.prompts_per_request,
    )
    limit = PromptLimit.of(spec.rollout.max_prompt_tokens, found.max_tokens)
    fitting = FittingPrompts(rank.queue, source, limit, rank.session.counters)
    with closing(build_receiver(rank.context, rank.session)) as receiver:
        proof = WeightProof(
            engine, bound_of(spec, engine.client.capabilities), first=rank.session.welcome.restore.version
        )
        follower = WeightFollower(
            receiver,
            engine,
            rank.timeline,
            proof,
            interruption=spec.weight_sync.interruption,
            on_change=wake.set,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )
        follower.start()
        RolloutLoop(
            shape,
            rank.session,
            rank.queue,
            engine,
            work,
            fitting,
            rank.timeline,
            wake,
            proof,
        ).run(follower)
    with suppress(EngineError):  # what is dead or hangs generates nothing for us either
        engine.call(engine.client.abort_all())


def _loading_seconds(*read: str | Path | None) -> float:
    """For reading these files and folders; one that is not there is named by who opens it."""
    return loading_seconds(sum(_bytes_of(Path(path)) for path in read if path is not None))


def _bytes_of(path: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in path.iterdir()) if path.is_dir() else path.stat().st_size
    except OSError:
        return 0


def _scoring(rank: _Rank, reward: Reward) -> Scoring:
    rollout = rank.spec.rollout
    window = FailedShare.over(rollout.batch_size * rollout.samples_per_prompt, rollout.reward.max_failed_share)
    return Scoring(reward, FailurePolicy.of(rollout.reward), window, rank.session.counters)


def _run_actor(rank: _Rank) -> None:
    spec, context = rank.spec, rank.context
    restore = rank.session.welcome.restore
    restored = None if restore.folder is None else context.checkpoint_dir / restore.folder
    # A restore reads its folder twice: to verify it, and to load it.
    with rank.session.busy("building the model", _loading_seconds(spec.model.path, restored, restored)):
        tokenizer = build_tokenizer(spec.model)
        group = form_group(context, rank.session)
        trainer = build_trainer(spec, tokenizer, group)
        leader_incarnation = incarnation_of_leader(group, context.life)
        store = build_checkpoint_store(
            context,
            rank.session,
            policy_files(spec.model, tokenizer),
            leader=leader_incarnation,
            share=trainer.weight_share,
        )
        if restore.folder is None:
            load_version_0(trainer, spec, tokenizer, Path(context.endpoints.weights_dir))
        else:
            folder = store.verified(restore.folder, group.rank, group.world)
            # Each rank has verified its share of the files.
            agree(group, RankVote(False, False, 0), f"the files of {restore.folder}")
            trainer.restore(folder)
    is_leader = group.rank == 0
    samples = SampleLog(rank.run_dir / "samples.jsonl") if is_leader and spec.telemetry.sample_log else None
    exports = Exports(
        ExportConfig.of(spec),
        rank.session,
        trainer,
        build_publisher(context, rank.session),
        store,
        rank.queue.ticket_table if is_leader else None,
        rank.timeline,
        lambda names: tensors_of_version_0(spec, tokenizer, names),
        _trainer_probe(spec, tokenizer, trainer),
    )
    slicing = Slicing(
        task=pipeline.ACTOR_TRAIN,
        rows_per_rollout=spec.rollout.batch_size * spec.rollout.samples_per_prompt,
        global_batch_size=spec.training.global_batch_size,
        iters_per_train_update=spec.training.iters_per_train_update,
        dp_rank=group.rank,
        dp_size=group.world,
    )
    leader = None
    if is_leader:
        generations = _generation_sampler(rank, tokenizer, slicing) if spec.telemetry.generations_per_rollout else None
        leader = Leader(rank.session, samples, generations, spec.rollout.samples_per_prompt)
    ActorLoop(
        ActorConfig.of(spec, slicing), rank.session, rank.queue, trainer, group, exports, leader, rank.timeline
    ).run()


def _generation_sampler(rank: _Rank, tokenizer: PreTrainedTokenizerBase, slicing: Slicing) -> GenerationSampler:
    return GenerationSampler(
        GenerationLog(rank.run_dir),
        text_decoder(tokenizer, skip_special_tokens=False),
        per_rollout=rank.spec.telemetry.generations_per_rollout,
        num_slices=slicing.num_slices,
        samples_per_prompt=rank.spec.rollout.samples_per_prompt,
    )


def _trainer_probe(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, trainer: Trainer) -> TrainerProbe | None:
    if not is_published(spec.weight_sync.verify):
        return None
    described = described_config(spec.model, tokenizer)
    vocabulary = min(described.get("vocab_size", len(tokenizer)), len(tokenizer))
    return TrainerProbe(trainer, probe_tokens(vocabulary, described.get("max_position_embeddings", NUM_TOKENS)))


_LOOPS: dict[Role, Callable[[_Rank], None]] = {
    Role.ROLLOUT: _run_rollout,
    Role.ACTOR: _run_actor,
    Role.ACTOR_FWD: _run_actor_fwd,
    Role.REFERENCE: _run_reference,
    Role.ADVANTAGES: _run_advantages,
}
