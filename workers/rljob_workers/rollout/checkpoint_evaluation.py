"""Evaluation of one checkpoint without a job: the same evaluators at the same engines, and a list of samples.

Run by `launcher.evaluate` in a process of its own, beside the engines that it keeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.spec.restart import engine_stall_seconds
from rljob_api.wire.checkpoint_evaluation import CheckpointEvaluation, EvaluationQuestion, ScoredSamples
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.evaluated import EvaluatedWeights, find_weights, require_model, verify_weights
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.evaluation import SampleResult, metrics_of
from rljob_workers.models.tokenizers import build_tokenizer, text_decoder
from rljob_workers.models.weights import Folder, Weights, WeightSource
from rljob_workers.rank_loop import TURN_SECONDS
from rljob_workers.rewards.scoring import ScoringCounts
from rljob_workers.rollout.engine_access import EngineProgress, IdleEngine, RankEngine, build_engine
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.evaluating import Evaluator
from rljob_workers.rollout.evaluation_plan import EvaluationPlan, build_plan
from rljob_workers.rollout.loop import RETRY_SECONDS
from rljob_workers.rollout.verification import WeightProof
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import EvaluationWaits
from rljob_workers.user_processes import begin_from_a_server

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPORT_SECONDS = 2.0
"""Between two reports of how far it is."""


class SampleList:
    """The samples of one evaluation, for the engines of one process; what an engine has lost comes back.

    In the place of a job's queue (`rollout.evaluating.EvaluationWork`). Used from one thread.
    """

    def __init__(self) -> None:
        self._next = 0
        self._again: list[int] = []
        self.results: dict[int, SampleResult] = {}
        """By number; of each the first one."""

    def claim(
        self, holds: WeightId, digest: str, num_samples: int, limit: int, in_work: Collection[int]
    ) -> list[int] | EvaluationWaits:
        """Up to `limit` of `num_samples` numbers: first those that came back."""
        del holds, digest, in_work  # one version, of one set of sets, and no answer is lost on the way
        if len(self.results) == num_samples:
            return EvaluationWaits.OVER
        again, self._again = self._again[:limit], self._again[limit:]
        begin, self._next = self._next, min(num_samples, self._next + limit - len(again))
        return [*again, *range(begin, self._next)] or EvaluationWaits.TAKEN

    def put(self, version: WeightVersion, results: Mapping[int, bytes]) -> int:
        """Keeps results; gives how many were not there yet."""
        del version
        before = len(self.results)
        self.results = {number: SampleResult.parse(text) for number, text in results.items()} | self.results
        return len(self.results) - before

    def hand_back(self, samples: Collection[int], *, killed: bool = False) -> None:
        """Hands samples back. No prompt is suspect: engines are started again a few times in all."""
        del killed
        self._again += samples


class OneWeight(WeightReceiver):
    """A folder on this machine in the place of an actor: one weight, to which no newer one comes."""

    def __init__(self, weights: Weights[WeightSource]) -> None:
        self._weights = weights

    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> Weights[WeightSource] | None:
        """The weight, at first; then None at `deadline`."""
        del stream, pulse
        if than is None:
            return self._weights
        time.sleep(max(0.0, deadline - time.monotonic()))
        return None

    def close(self) -> None:
        """Nothing: the folder is its owner's."""


class Undisturbed:
    """In the place of a rank's session: no coordinator waits for a beat, and its end is the end of its process."""

    draining = False

    def busy(self, what: str, seconds: float) -> AbstractContextManager[None]:
        """Nothing is announced."""
        del what, seconds
        return nullcontext()


class _EngineInUse:
    """An engine, what keeps its weights, and what it is asked."""

    def __init__(
        self, engine: RankEngine, follower: WeightFollower, evaluator: Evaluator, samples_in_flight: int
    ) -> None:
        self._engine = engine
        self._follower = follower
        self._evaluator = evaluator
        self._samples_in_flight = samples_in_flight
        self._pauses_until = 0.0
        self._results = 0

    def turn(self, num_results: int) -> None:
        """Puts what is scored and takes more; `num_results` are there of all engines.

        Raises what the engine cannot recover from.
        """
        if self._follower.error is not None:
            raise self._follower.error
        if num_results > self._results:
            self._results = num_results
            self._engine.answered()
        errors = self._evaluator.collect()
        self._engine.end_if_stalled(errors)
        self._engine.end_if_refusing(errors)
        now = time.monotonic()
        if errors:
            self._pauses_until = now + RETRY_SECONDS
        held = self._follower.held
        if held is not None and now >= self._pauses_until:
            self._evaluator.claim(held, self._samples_in_flight)


class CheckpointEvaluator:
    """Scores the sets of a job with one checkpoint, by the engines of some contexts, one each.

    CheckpointEvaluator(question, contexts, report).run()
    """

    def __init__(
        self, question: EvaluationQuestion, contexts: Sequence[RankContext], report: Callable[[ScoredSamples], None]
    ) -> None:
        """`report` gets how far it is, every few seconds."""
        self._question = question
        self._spec = question.job.spec
        self._contexts = contexts
        self._report = report
        self._work = SampleList()
        self._wake = threading.Event()

    def run(self) -> CheckpointEvaluation:
        """What was found; blocks until all samples are scored.

        ValueError, a sentence, for a checkpoint or a set that cannot be evaluated; CheckpointDamaged for a record that
        is not whole; whatever an engine cannot recover from.
        """
        begin_from_a_server()
        tokenizer = build_tokenizer(self._spec.model)
        weights = self._weights(tokenizer)
        linked = self._linked(weights)
        engines = [
            RankEngine(build_engine(context), EngineProgress(time.monotonic, 1), context, Undisturbed())
            for context in self._contexts
        ]
        found = [idle for engine in engines if (idle := engine.find_idle()) is not None]
        counts = ScoringCounts({})
        plan = build_plan(_evaluates_all(self._spec), tokenizer, min(idle.max_tokens for idle in found), counts)
        assert plan is not None
        in_use = [
            self._use(*parts, plan, linked, tokenizer) for parts in zip(engines, self._contexts, found, strict=True)
        ]
        self._score(in_use, plan.num_samples)
        assert self._spec.evaluation is not None
        return CheckpointEvaluation(
            folder=str(weights.folder),
            version=weights.version,
            samples=plan.num_samples,
            reward_retries=counts.retries,
            metrics=metrics_of(self._work.results.values(), self._spec.evaluation.sets),
        )

    def _weights(self, tokenizer: PreTrainedTokenizerBase) -> EvaluatedWeights:
        weights, record = find_weights(Path(self._question.folder))
        require_model(weights, self._spec, tokenizer)
        if record is not None and self._question.is_verified:
            verify_weights(weights, record)
        return weights

    def _linked(self, weights: EvaluatedWeights) -> Weights[WeightSource]:
        linked = Path(self._question.endpoints.weights_dir) / "evaluated"
        weights.link_in(linked)
        weight = WeightId(lineage=Lineage(0), version=WeightVersion(weights.version or 0))
        return Weights(weight, Stream.POLICY, Folder(linked))

    def _use(
        self,
        engine: RankEngine,
        context: RankContext,
        idle: IdleEngine,
        plan: EvaluationPlan,
        weights: Weights[WeightSource],
        tokenizer: PreTrainedTokenizerBase,
    ) -> _EngineInUse:
        """Has the engine load the weights."""
        spec, key = self._spec, str(context.incarnation.key)
        # No trainer is there that could say what an engine with these weights must answer.
        proof = WeightProof(engine, None, first=weights.id.version)
        evaluator = Evaluator(
            plan,
            self._work,
            engine,
            text_decoder(tokenizer, skip_special_tokens=True),
            proof,
            max_tokens=idle.max_tokens,
            stall_seconds=engine_stall_seconds(spec.restart_policy),
            wake=self._wake.set,
            advance=lambda _: None,
        )
        follower = WeightFollower(
            OneWeight(weights),
            engine,
            Timeline(Path(context.endpoints.run_dir) / "timeline" / f"{key}.jsonl", key),
            proof,
            NewsQueue(),  # of one version, which `proof` judges: the log has it, too
            interruption=spec.weight_sync.interruption,
            on_change=self._wake.set,
            timeout_seconds=float(spec.weight_sync.timeout_seconds),
        )
        follower.start()
        return _EngineInUse(engine, follower, evaluator, spec.rollout.concurrency or idle.capacity)

    def _score(self, engines: Sequence[_EngineInUse], num_samples: int) -> None:
        reports_at = time.monotonic() + REPORT_SECONDS
        while (scored := len(self._work.results)) < num_samples:
            self._wake.clear()
            for each in engines:
                each.turn(scored)
            if time.monotonic() >= reports_at:
                self._report(ScoredSamples(scored=scored, total=num_samples))
                reports_at = time.monotonic() + REPORT_SECONDS
            self._wake.wait(TURN_SECONDS)


def _evaluates_all(spec: RLJobSpec) -> RLJobSpec:
    """The same job, of which every version is due, and which leaves nothing of its engines to rollouts."""
    assert spec.evaluation is not None
    alone = {"every_steps": 1, "at_start": True, "engine_share": 1.0}
    return spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update=alone)})
