"""The roles' assembly: makes the parts that every rank has, and runs the role that the table names for it.

`main` is called by the launcher in the forked child. It returns the exit code; a ValueError is the user's, everything
else is ours. A new role is a function beside its loop and a row in the table. Rollout's is here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from rljob_api.names import EXIT_SUCCEEDED, Role
from rljob_api.spec.restart import engine_stall_seconds
from rljob_workers import pipeline
from rljob_workers.data import build_prompt_source
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights import build_receiver
from rljob_workers.engines.base import EngineError
from rljob_workers.models.tokenizers import build_tokenizer, text_decoder
from rljob_workers.rank_loop import RankParts
from rljob_workers.rewards import Reward, build_reward
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring
from rljob_workers.rollout.admission import FittingPrompts, PromptLimit, RolloutShape
from rljob_workers.rollout.engine_access import EngineProgress, IdleEngine, RankEngine, build_engine
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.groups import GenerateConfig, GenerateStage, GroupsInWork, ScoreStage
from rljob_workers.rollout.loop import RolloutLoop
from rljob_workers.rollout.verification import WeightProof, bound_of
from rljob_workers.scoring.advantages import run_advantages
from rljob_workers.scoring.forward import run_actor_fwd, run_reference
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.training.loop import run_actor
from rljob_workers.transfer_queue.client import TransferQueueClient


def main(context: RankContext) -> int:
    """Runs the role of `context` until its pod drains; LifeOver and errors go to the launcher as they are."""
    spec, life = context.job.spec, context.life
    path = Path(context.endpoints.run_dir) / "timeline" / f"{life.key}.{life.incarnation}.jsonl"
    with closing(Timeline(path, str(life.key))) as timeline:
        session = RankSession(context)
        queue = TransferQueueClient(
            context.endpoints,
            pipeline.queue_shape(spec),
            life,
            waiting=spec.transfer_queue.polling_mode,
            checksums=spec.transfer_queue.checksums,
            counters=session.counters,
        )
        session.follow_seq(lambda: queue.seen_seq)
        topology = spec.roles.topology(life.key.role)
        _LOOPS[life.key.role](RankParts(context, spec, topology, session, queue, timeline))
    return EXIT_SUCCEEDED


def _run_rollout(rank: RankParts) -> None:
    rollout = rank.spec.rollout
    progress = EngineProgress(time.monotonic, rollout.samples_per_prompt * rollout.sampling.max_new_tokens)
    with closing(RankEngine(build_engine(rank.context), progress, rank.context, rank.session)) as engine:
        if (found := engine.find_idle()) is not None:
            _serve_tickets(rank, engine, found)


def _serve_tickets(rank: RankParts, engine: RankEngine, found: IdleEngine) -> None:
    spec = rank.spec
    with rank.loading("opening data and reward", spec.data.prompts):
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


def _scoring(rank: RankParts, reward: Reward) -> Scoring:
    rollout = rank.spec.rollout
    window = FailedShare.over(rollout.batch_size * rollout.samples_per_prompt, rollout.reward.max_failed_share)
    return Scoring(reward, FailurePolicy.of(rollout.reward), window, rank.session.counters)


_LOOPS: dict[Role, Callable[[RankParts], None]] = {
    Role.ROLLOUT: _run_rollout,
    Role.ACTOR: run_actor,
    Role.ACTOR_FWD: run_actor_fwd,
    Role.REFERENCE: run_reference,
    Role.ADVANTAGES: run_advantages,
}
