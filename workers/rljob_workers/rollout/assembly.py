"""The parts of a rank that drives an engine, built from the job and put together to its rollout loop.

Run as the rollout role. Opens data, reward, functions and evaluation first, in this order, then reports what it reads;
the loop, its groups in work and the follower of weights get their parts from here, and what is left of the engine's
requests is aborted at the end.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress

from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import engine_stall_seconds
from rljob_workers.data import build_prompt_source
from rljob_workers.data.curriculum import Curriculum, CurriculumPrompts
from rljob_workers.data.prompts import DrawnPrompts
from rljob_workers.dcs.membership.counters import OF_EVALUATIONS
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.dcs.weights import build_receiver
from rljob_workers.engines.base import EngineError
from rljob_workers.estimators import estimator_of
from rljob_workers.models.building import described_config
from rljob_workers.models.tokenizers import TokenizerText, build_tokenizer, text_decoder
from rljob_workers.pipeline import rollout_estimates
from rljob_workers.rank_loop import RankParts
from rljob_workers.rewards import Reward, build_reward
from rljob_workers.rewards.length import shaped_by_length
from rljob_workers.rewards.retries import Retries
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts
from rljob_workers.rollout.admission import (
    FittingPrompts,
    PromptLimit,
    RolloutShape,
    prompts_per_request,
)
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.dynamic_sampling import DynamicSampling
from rljob_workers.rollout.engine_access import EngineProgress, IdleEngine, RankEngine, build_engine
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.evaluating import Evaluator
from rljob_workers.rollout.evaluation_plan import build_plan
from rljob_workers.rollout.function import load_rollout_function
from rljob_workers.rollout.function_stage import CalledFunction, FunctionsOwnReward, FunctionStage
from rljob_workers.rollout.groups import GenerateStage, GroupMaker, GroupsInWork
from rljob_workers.rollout.loop import RolloutLoop
from rljob_workers.rollout.partials import PartialConfig, Partials
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.scoring_stage import ScoreStage
from rljob_workers.rollout.verification import WeightProof, bound_of
from rljob_workers.run_inputs import report_inputs
from rljob_workers.user_processes import begin_from_a_server


def run_rollout(rank: RankParts) -> None:
    """Builds the parts of a rank that drives an engine, and runs the loop until the pod drains."""
    rollout = rank.spec.rollout
    progress = EngineProgress(time.monotonic, rank.spec.samples_per_ticket * rollout.sampling.max_new_tokens)
    with closing(RankEngine(build_engine(rank.context), progress, rank.context, rank.session)) as engine:
        if (found := engine.find_idle()) is not None:
            _serve_tickets(rank, engine, found)


def _serve_tickets(rank: RankParts, engine: RankEngine, found: IdleEngine) -> None:
    spec, news = rank.spec, NewsQueue()
    begin_from_a_server()
    with rank.loading("opening data and reward", *(file.path for file in spec.data.files)):
        tokenizer = build_tokenizer(spec.model)
        source = build_prompt_source(spec.data, tokenizer)
        prompts: DrawnPrompts = source
        if (curriculum := spec.rollout.curriculum) is not None:
            prompts = CurriculumPrompts(
                source, rank.queue.curriculum, Curriculum.load(curriculum), spec.rollout.batch_size
            )
        counts = ScoringCounts(rank.session.counters, news=news)
        of_sets = ScoringCounts(rank.session.counters, OF_EVALUATIONS, news)
        policy = FailurePolicy.of(spec.rollout.reward)
        reward: Reward = FunctionsOwnReward()
        if _scores_answers(spec):
            built = build_reward(spec.rollout.reward, spec.data, source, Retries(policy, counts))
            reward = shaped_by_length(built, spec.rollout)
        share = FailedShare.over(
            spec.rollout.batch_size * spec.rollout.samples_per_prompt, spec.rollout.reward.max_failed_share
        )
        estimator = estimator_of(spec.algorithm) if rollout_estimates(spec) else None
        decode = text_decoder(tokenizer, skip_special_tokens=True)
        sampling = DynamicSampling.of(spec.rollout.dynamic_sampling, decode)
        plan = build_plan(spec, tokenizer, found.max_tokens, of_sets)
    wake = threading.Event()
    maker = _group_maker(rank, engine, found, news)
    with rank.loading("noting what it reads", *(file.path for file in spec.data.files)):
        report_inputs(rank)  # after all of the users' modules are imported
    work = GroupsInWork(
        engine,
        maker,
        ScoreStage(
            Scoring(reward, policy, share, counts),
            decode,
            estimator,
            sampling,
            spec.rollout.order,
            None if curriculum is None else curriculum.pass_reward,
        ),
        rank.timeline,
        wake=wake.set,
        stall_seconds=engine_stall_seconds(spec.restart_policy),
    )
    shape = RolloutShape(
        batch_size=spec.rollout.batch_size,
        samples_per_ticket=spec.samples_per_ticket,
        max_new_tokens=spec.rollout.sampling.max_new_tokens,
        capacity=spec.rollout.capacity,
        most_ranks=rank.topology.num_ranks,
        concurrency=spec.rollout.concurrency or found.capacity,
        prompts_per_request=prompts_per_request(spec.rollout, engine.client.prompts_per_request),
    )
    limit = PromptLimit.of(spec.rollout.max_prompt_tokens, found.max_tokens, spec.rollout.long_prompts)
    fitting = FittingPrompts(rank.queue, prompts, limit, rank.session.counters)
    with closing(build_receiver(rank.context, rank.session)) as receiver:
        proof = WeightProof(
            engine, bound_of(spec, spec.roles.rollout.engine.traits), first=rank.session.welcome.restore.version
        )
        follower = WeightFollower(
            receiver,
            engine,
            rank.timeline,
            proof,
            news,
            interruption=spec.weight_sync.interruption,
            on_change=wake.set,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )
        evaluator = None
        if plan is not None:
            evaluator = Evaluator(
                plan,
                rank.queue.evaluation,
                engine,
                decode,
                proof,
                max_tokens=found.max_tokens,
                stall_seconds=engine_stall_seconds(spec.restart_policy),
                wake=wake.set,
                advance=rank.session.advance,
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
            evaluator,
            _partials(rank, engine, found, maker, proof),
            news,
        ).run(follower)
    with suppress(EngineError):  # what is dead or hangs generates nothing for us either
        engine.call(engine.client.abort_all())


def _group_maker(rank: RankParts, engine: RankEngine, found: IdleEngine, news: NewsQueue) -> GroupMaker:
    """Generates in a single turn, or by the user's function."""
    rollout, config = rank.spec.rollout, GenerateConfig.of(rank.spec, found.max_tokens)
    if rollout.function is None:
        if rollout.partial is not None:
            return ContinuingStage(config, engine.client)
        return GenerateStage(config, engine.client)
    with rank.loading("opening the rollout function", rank.spec.model.path):
        function = load_rollout_function(rollout.function)
        tokenizer = build_tokenizer(rank.spec.model)  # its own: another thread encodes with it
        vocab_size = int(described_config(rank.spec.model, tokenizer)["vocab_size"])
    return FunctionStage(
        config,
        engine.client,
        engine.begin,
        CalledFunction.of(rank.spec, function),
        TokenizerText(tokenizer, vocab_size),
        FailedShare.over(rollout.batch_size * rollout.samples_per_prompt, rollout.reward.max_failed_share),
        rank.session.counters,
        news,
    )


def _partials(
    rank: RankParts, engine: RankEngine, found: IdleEngine, maker: GroupMaker, proof: WeightProof
) -> Partials | None:
    partial = rank.spec.rollout.partial
    if partial is None:
        return None
    assert isinstance(maker, ContinuingStage), "a job with partial rollouts has no rollout function"
    most = rank.spec.rollout.sampling.max_new_tokens
    return Partials(
        PartialConfig(float(partial.save_seconds), most if partial.max_tokens is None else partial.max_tokens),
        GenerateConfig.of(rank.spec, found.max_tokens),
        maker,
        rank.queue.partials,
        engine,
        proof,
        rank.session.counters,
        time.monotonic,
    )


def _scores_answers(spec: RLJobSpec) -> bool:
    """Whether there is a reward beside that which a rollout function may give: it may do without labels."""
    has_answers = spec.data.label_key is not None or spec.data.reasoning_gym is not None
    return spec.rollout.function is None or has_answers or not spec.rollout.reward.compares_with_labels
