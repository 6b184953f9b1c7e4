"""Evaluation at one engine: numbers of samples in, scores out, beside the rollout's groups.

Used by the rollout loop from its own thread, and to evaluate a checkpoint (`checkpoint_evaluation`); generation runs
in the engine's event loop, scoring in threads. Which sample is whose is in the control Redis of a job
(`transfer_queue/control/lua/evaluation.lua`). Puts no row.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from rljob_api.names import WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import (
    EngineError,
    EngineGone,
    EngineStalled,
    FinishReason,
    Sample,
    SamplingParams,
)
from rljob_workers.evaluation import SampleResult
from rljob_workers.models.tokenizers import TextDecoder
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.admission import SCORED_PER_GENERATED
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.evaluation_plan import EvaluationPlan, NumberedSample
from rljob_workers.rollout.verification import WeightProof
from rljob_workers.transfer_queue.types import EvaluationWaits

AGAIN_SECONDS = 0.5
"""After this long samples are asked for again that others had, or that were not there; sooner when some end here."""


REQUESTS = 4
"""An engine that takes many prompts at once gets about so many requests: it begins a large one in less time."""


SCORING_THREADS = 64
"""Parts whose scores are waited for at once: with an engine that takes one prompt at a time each is a sample."""


SCORED_TOGETHER = 16
"""Answers that a reward is asked for at once. Each such part is put when it is scored, so that the count of what is
scored goes on however many answers an engine gave together, and a death costs no more than what was not scored."""


@dataclass(frozen=True, slots=True)
class _Made:
    result: SampleResult
    weights: frozenset[WeightId]
    """Those that made a token of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """Samples that are generated together."""

    left: set[int]
    """Numbers of those that were neither put nor handed back; changed by the rollout's thread."""
    weight: WeightId
    voided: int
    """What `proof.num_voided` was then."""


class EvaluationWork(Protocol):
    """Which samples are left: the queue of a job (`EvaluationSamples`), or a list without one."""

    def claim(
        self, holds: WeightId, digest: str, num_samples: int, limit: int, in_work: Collection[int]
    ) -> list[int] | EvaluationWaits:
        """See `EvaluationSamples.claim`."""

    def put(self, version: WeightVersion, results: Mapping[int, bytes]) -> int:
        """See `EvaluationSamples.put`."""

    def hand_back(self, samples: Collection[int], *, killed: bool = False) -> None:
        """See `EvaluationSamples.hand_back`."""


class Evaluator:
    """One rank's part of evaluations.

    errors = evaluator.collect()            puts what is scored, hands back what an engine has lost
    evaluator.claim(held, evaluator.share_of(samples_in_flight))
    evaluator.claim(held, free)             where rollouts have nothing to generate
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        samples: EvaluationWork,
        engine: RankEngine,
        decode: TextDecoder,
        proof: WeightProof,
        *,
        max_tokens: int,
        stall_seconds: float,
        wake: Callable[[], None],
        advance: Callable[[int], None],
    ) -> None:
        """`wake` is called from other threads when a sample is done, `advance` with how many more are scored.

        `max_tokens`: positions of the model.
        """
        self._plan = plan
        self._samples = samples
        self._engine = engine
        self._decode = decode
        self._proof = proof
        self._max_tokens = max_tokens
        self._stall_seconds = stall_seconds
        self._wake = wake
        self._advance = advance
        self._running: dict[Future[None], _Begun] = {}
        self._scored: deque[tuple[_Begun, int, _Made]] = deque()
        """What scorers have made and `collect` has not put, with the numbers."""
        self._generating: set[int] = set()
        """Numbers that the engine has, also while its error is not collected. Changed in its event loop, before a
        request begins, and in `collect`."""
        self._dead: set[int] = set()
        """Numbers whose engine has ended. They are handed back together once it has none left, so that one death is
        counted once of a prompt, in however many requests its samples were."""
        self._scorers = ThreadPoolExecutor(SCORING_THREADS, thread_name_prefix="evaluate")
        self._over: WeightId | None = None
        """The last weight whose evaluation is over."""
        self._asked_of: WeightId | None = None
        self._asks_at = 0.0

    @property
    def samples_in_flight(self) -> int:
        """Those that the engine has."""
        return len(self._generating)

    def share_of(self, samples_in_flight: int) -> int:
        """How many an evaluation may have at the engine whatever rollouts need, of all that it may have."""
        return self._plan.most_in_flight(samples_in_flight)

    def claim(self, held: WeightId, most: int) -> bool:
        """Takes more samples, up to `most` at the engine, if the version is to be evaluated; whether there were any."""
        if held == self._over or not self._plan.is_due(held.version):
            return False
        if self._dead or self._proof.is_awaited or (held == self._asked_of and time.monotonic() < self._asks_at):
            return False
        in_work = self._in_work()
        wanted = min(most - self.samples_in_flight, most * (1 + SCORED_PER_GENERATED) - len(in_work))
        if wanted < max(1, most // REQUESTS):
            return False
        self._asked_of, self._asks_at = held, 0.0
        answer = self._samples.claim(held, self._plan.digest, self._plan.num_samples, wanted, in_work)
        if isinstance(answer, EvaluationWaits):
            if answer is EvaluationWaits.OVER:
                self._over = held
            self._asks_at = time.monotonic() + AGAIN_SECONDS
            return False
        takes_many = self._engine.client.prompts_per_request is None
        for numbers in [tuple(answer)] if takes_many else [(number,) for number in answer]:
            self._begin(numbers, held)
        return True

    def collect(self) -> list[EngineError]:
        """Puts what is scored; gives what went wrong at the engine, whose samples are handed back.

        Raises ValueError for a reward that cannot work.
        """
        done = [(future, self._running.pop(future)) for future in list(self._running) if future.done()]
        back, num_scored = self._put_scored()
        errors: list[EngineError] = []
        for future, begun in done:
            error = future.exception()
            if isinstance(error, EngineError):
                self._generating -= begun.left
                # As of tickets: only an engine that has ended counts.
                if isinstance(error, EngineGone | EngineStalled):
                    self._dead |= begun.left
                else:
                    back.extend(begun.left)
                errors.append(error)
            elif error is not None:
                raise error
        self._samples.hand_back(back)
        if self._dead and not self._generating:
            self._samples.hand_back(sorted(self._dead), killed=True)
            self._dead.clear()
        if done or num_scored:
            self._asks_at = 0.0
        return errors

    def _put_scored(self) -> tuple[list[int], int]:
        """Puts what scorers have made; the numbers of what does not count, and how many were made."""
        results: dict[WeightVersion, dict[int, bytes]] = {}
        back: list[int] = []
        ready = [self._scored.popleft() for _ in range(len(self._scored))]
        for begun, number, made in ready:
            begun.left.discard(number)
            if self._counts(made, begun):
                results.setdefault(begun.weight.version, {})[number] = made.result.dump()
            else:
                back.append(number)
        for version, scored in results.items():
            self._advance(self._samples.put(version, scored))
        return back, len(ready)

    def hand_back(self) -> None:
        """Gives up all work."""
        numbers = self._in_work()
        for future in self._running:
            future.cancel()
        self._running.clear()
        self._samples.hand_back(numbers)
        self._scorers.shutdown(wait=False, cancel_futures=True)

    def _in_work(self) -> list[int]:
        running = [number for begun in self._running.values() for number in sorted(begun.left)]
        return running + sorted(self._dead)

    def _counts(self, made: _Made, begun: _Begun) -> bool:
        """Whether every token is of the version, and the engine had the weights that it said."""
        is_pure = all(weight.version == begun.weight.version for weight in made.weights)
        return is_pure and self._proof.num_voided == begun.voided

    def _begin(self, numbers: tuple[int, ...], held: WeightId) -> None:
        self._generating.update(numbers)
        begun = _Begun(set(numbers), held, self._proof.num_voided)
        future = self._engine.begin(self._work(numbers, begun))
        self._running[future] = begun
        future.add_done_callback(lambda _: self._wake())

    async def _work(self, numbers: tuple[int, ...], begun: _Begun) -> None:
        samples = [self._plan.of(number) for number in numbers]
        prompts = [sample.of.source.at(sample.prompt) for sample in samples]
        drawn = await self._generated(prompts, samples)
        self._generating.difference_update(numbers)
        self._wake()
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._scorers, self._score, begun, numbers[part], prompts[part], samples[part], drawn[part]
                )
                for part in (slice(n, n + SCORED_TOGETHER) for n in range(0, len(numbers), SCORED_TOGETHER))
            )
        )

    async def _generated(self, prompts: Sequence[Prompt], samples: Sequence[NumberedSample]) -> list[Sample]:
        """One of each, in one request."""
        params = [self._params_of(prompt, sample) for prompt, sample in zip(prompts, samples, strict=True)]
        calls = EngineCalls(self._engine.progress, [], stall_seconds=self._stall_seconds, moved=lambda _: None)
        request = calls.samples(self._engine.client, [each.token_ids for each in prompts], params)
        return await calls.watch(request)

    def _params_of(self, prompt: Prompt, sample: NumberedSample) -> SamplingParams:
        room, given = self._max_tokens - len(prompt.token_ids), sample.of.params
        return replace(given, max_new_tokens=min(given.max_new_tokens, room), seed=self._plan.seed_of(sample))

    def _score(
        self,
        begun: _Begun,
        numbers: Sequence[int],
        prompts: Sequence[Prompt],
        samples: Sequence[NumberedSample],
        drawn: Sequence[Sample],
    ) -> None:
        texts = self._decode([each.output_ids for each in drawn])
        answers = [_answer(*parts) for parts in zip(prompts, samples, drawn, texts, strict=True)]
        scores = _scores(samples, answers)
        made = [_made(*parts) for parts in zip(prompts, samples, drawn, scores, strict=True)]
        self._scored.extend((begun, number, one) for number, one in zip(numbers, made, strict=True))
        self._wake()


def _answer(prompt: Prompt, sample: NumberedSample, drawn: Sample, text: str) -> Answer:
    return Answer(
        prompt.text,
        text,
        prompt.label,
        sample.prompt,
        sample.index,
        token_ids=tuple(drawn.output_ids),
        loss_mask=(1,) * len(drawn.output_ids),
        finish_reason=drawn.finish_reason.value,
        messages=prompt.messages,
        row=prompt.row,
    )


def _scores(samples: Sequence[NumberedSample], answers: Sequence[Answer]) -> list[SettledScore]:
    """One for each answer; those of a set are asked for together, so that they wait for a reward side by side.

    Each is a group of its own: who scores it with others would score it by which of them came together.
    """
    scores: dict[int, SettledScore] = {}
    for of_set in dict.fromkeys(sample.of.spec.name for sample in samples):
        places = [place for place, sample in enumerate(samples) if sample.of.spec.name == of_set]
        groups = samples[places[0]].of.scorer.score_groups([[answers[place]] for place in places])
        scores |= {place: score for place, (score,) in zip(places, groups, strict=True)}
    return [scores[place] for place in range(len(samples))]


def _made(prompt: Prompt, sample: NumberedSample, drawn: Sample, score: SettledScore) -> _Made:
    result = SampleResult(
        sample.of.spec.name,
        sample.prompt,
        prompt.source,
        None if score.failure is not None else score.reward,
        len(drawn.output_ids),
        drawn.finish_reason is FinishReason.LENGTH,
    )
    return _Made(result, frozenset(span.weight for span in drawn.spans))
