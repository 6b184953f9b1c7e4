"""Generates by a user's rollout function: once for each sample, with retries, and what becomes of one that fails.

In the engine's event loop; the functions run in `function_loops`. A sample counts as in flight while the engine has a
request of it: while a tool runs, others take its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn

import xxhash

from rljob_api.spec import RLJobSpec
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.data.prompts import Prompt
from rljob_workers.dcs.membership.counters import FUNCTION_RETRIES, SAMPLES_LOST
from rljob_workers.dcs.membership.news import News, NewsQueue
from rljob_workers.engines.base import (
    Engine,
    EngineError,
    FinishReason,
    SamplingParams,
    all_or_none,
)
from rljob_workers.models.first_tokens import FirstTokens
from rljob_workers.models.tokenizers import TokenizerText
from rljob_workers.rewards.base import Answer, Reward, RewardRefused, named_prompt
from rljob_workers.rewards.scoring import FailedShare
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.engine_calls import CHECK_SECONDS, EngineCalls
from rljob_workers.rollout.function import FIELD, RolloutFunction
from rljob_workers.rollout.function_loops import BLOCKED_SECONDS, FunctionLoops
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.trajectory import (
    LostSample,
    TokenLimits,
    Trajectory,
    TrajectoryBuilder,
    Turn,
    not_finite,
    refuse_impossible,
)
from rljob_workers.user_cures import with_cure
from rljob_workers.user_functions import FailureLog, final, user_place

_LOG = logging.getLogger(__name__)


MAX_LEFT = 100
"""Event loops that functions which never return have left behind. A job that leaves more would end by the limits of its
machine, without a name."""


ENCODING_THREADS = 4
"""Texts of tools that are encoded at once. A pool of its own: tools that hang may fill that of their loop."""


CUT_SHARE, CUT_TOKENS, CUT_CHARACTERS = "tools/cut_share", "tools/cut_tokens", "tools/cut_characters"
"""Samples in which a tool wrote more than there was room for; tokens that had none; characters that were not read."""


class _Failed(Exception):
    """The function raised, or has not returned in time; the sample may be tried again."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a function raised; SystemExit would end its loop."""

    error: BaseException


def turn_seed(seed: int, turn: int) -> int:
    """Seed of the engine's n-th call for a sample: turns would else repeat each other's chances."""
    return seed if turn == 0 else xxhash.xxh3_64_intdigest(f"{seed}/{turn}".encode()) >> 20


class _Place:
    """Whether a sample is in flight at the engine, and for how long its function was busy with something else."""

    def __init__(self, moved: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Counts as in flight: it will be sent at once."""
        self._moved = moved
        self._clock = clock
        self._is_counted = True
        self._has_ended = False
        self._requests = 0
        self._spent = 0.0
        self._since = clock()

    def begin(self) -> None:
        """An attempt begins."""
        self._spent, self._since = 0.0, self._clock()

    def enter(self) -> None:
        """A request goes to the engine."""
        if not self._requests:
            self._spent += self._clock() - self._since
        self._requests += 1
        self._count(is_counted=True)

    def leave(self) -> None:
        """It was answered."""
        self._requests -= 1
        if not self._requests:
            self._since = self._clock()
            self._count(is_counted=False)

    def outside(self) -> float:
        """Seconds of this attempt without a request. A function that has none now gives its place up."""
        if self._requests:
            return self._spent
        self._count(is_counted=False)
        return self._spent + self._clock() - self._since

    def end(self) -> None:
        """The sample is done, or given up."""
        self._count(is_counted=False)
        self._has_ended = True

    def _count(self, *, is_counted: bool) -> None:
        if is_counted is not self._is_counted and not self._has_ended:
            self._is_counted = is_counted
            self._moved(1 if is_counted else -1)


class _ToolTexts:
    """Encodes what tools wrote for one sample, and counts what there was no room for."""

    def __init__(self, text: TokenizerText, limits: TokenLimits, encoders: ThreadPoolExecutor) -> None:
        self.text = text
        self.longest = 0
        """Characters of the longest text of which a part was not read."""
        self._limits = limits
        self._encoders = encoders
        self._builders: list[TrajectoryBuilder] = []
        self._characters_left = 0

    def begin(self, prompt_ids: Sequence[int]) -> TrajectoryBuilder:
        """Follows the conversation."""
        self._builders.append(TrajectoryBuilder(prompt_ids, self._limits))
        return self._builders[-1]

    async def add(self, conversation: TrajectoryBuilder, text: str) -> bool:
        """One token more than there is room for is read, by which the conversation knows that it is cut."""
        read = asyncio.get_running_loop().run_in_executor(self._encoders, self.text.encode, text, conversation.room + 1)
        return conversation.add_tokens(self._counted(await read, text))

    def encode(self, text: str) -> list[int]:
        """No more than the longest conversation has room for: which one it is for is not known here."""
        return self._counted(self.text.encode(text, self._limits.max_tokens + 1), text)

    def metrics(self) -> dict[str, float]:
        """Metrics of the sample; every sample has them, so that their means are over all."""
        tokens = sum(each.num_cut for each in self._builders)
        return {
            CUT_SHARE: float(bool(tokens or self._characters_left)),
            CUT_TOKENS: float(tokens),
            CUT_CHARACTERS: float(self._characters_left),
        }

    def _counted(self, read: FirstTokens, text: str) -> list[int]:
        if read.characters_left:
            self._characters_left += read.characters_left
            self.longest = max(self.longest, len(text))
        return read.token_ids


class _SampleEngine:
    """A `RolloutEngine`: lives in the function's loop, and asks in the engine's."""

    def __init__(
        self,
        engine: Engine,
        begin: Callable[[Coroutine[Any, Any, Turn]], Future[Turn]],
        calls: EngineCalls,
        place: _Place,
        texts: _ToolTexts,
        params: SamplingParams,
        limits: TokenLimits,
        prompt_length: int,
    ) -> None:
        self.tokenizer = texts.text.tokenizer
        self.error: EngineError | None = None
        """What the engine raised last: it ends the sample, whatever the function made of it."""
        self.is_over = False
        """The attempt has ended: a function that goes on all the same gets nothing."""
        self._engine = engine
        self._begin = begin
        self._calls = calls
        self._place = place
        self._texts = texts
        self._params = params
        self._limits = limits
        self._prompt_length = prompt_length
        self._turns = 0

    def begin(self, prompt_ids: Sequence[int]) -> TrajectoryBuilder:
        """See `RolloutEngine`."""
        self._prompt_length = len(prompt_ids)
        return self._texts.begin(prompt_ids)

    async def add_text(self, conversation: TrajectoryBuilder, text: str) -> bool:
        """See `RolloutEngine`."""
        return await self._texts.add(conversation, text)

    async def generate(self, token_ids: Sequence[int], params: SamplingParams | None = None) -> Turn:
        """See `RolloutEngine`."""
        if self.is_over:
            raise asyncio.CancelledError
        if unknown := self._limits.unknown(token_ids):
            raise ValueError(
                f"engine.generate was given token {unknown[0]!r}, and the model knows tokens 0 to"
                f" {self._limits.vocab_size - 1}."
            )
        return await asyncio.wrap_future(self._begin(self._turn(list(token_ids), params or self._params)))

    def encode(self, text: str) -> list[int]:
        """See `RolloutEngine`."""
        return self._texts.encode(text)

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """See `RolloutEngine`."""
        return self._texts.text.decode(token_ids, special_tokens=special_tokens)

    async def _turn(self, token_ids: list[int], params: SamplingParams) -> Turn:
        wanted = min(params.max_new_tokens, self._limits.room(self._prompt_length, len(token_ids)))
        if wanted <= 0:
            return Turn((), (), (), FinishReason.LENGTH)
        seed, self._turns = turn_seed(params.seed, self._turns), self._turns + 1
        asked = replace(params, max_new_tokens=wanted, num_samples=1, seed=seed)
        self._place.enter()
        try:
            (sample,) = await self._calls.watch(self._calls.samples(self._engine, [token_ids], [asked]))
        except EngineError as error:
            self.error = error
            raise
        finally:
            self._place.leave()
        return Turn(sample.output_ids, sample.log_probs, sample.spans, sample.finish_reason)


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """The function and how it is called."""

    name: str
    function: RolloutFunction
    arguments: Mapping[str, Any]
    timeout_seconds: float
    retries: int
    backoff_seconds: float

    @classmethod
    def of(cls, job: RLJobSpec, function: RolloutFunction) -> CalledFunction:
        """As the job has it."""
        spec = job.rollout.function
        assert spec is not None
        limit = spec.timeout_seconds or job.restart_policy.stall_timeout_seconds / 2
        return cls(spec.function, function, spec.arguments, limit, spec.retries, spec.backoff_seconds)


class FunctionsOwnReward(Reward):
    """Of a job whose function scores every sample: it has no label that answers could be compared with."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> NoReturn:
        """Called for trajectories without a reward."""
        assert groups
        raise RewardRefused(
            f"{FIELD} returned a Trajectory without a reward, and data.labelKey is null, so that nothing else scores"
            " it. Give `finish` a reward, or set data.labelKey or rollout.reward.custom."
        )


class FunctionStage:
    """Generates the groups of tickets by a function of the user's."""

    def __init__(
        self,
        config: GenerateConfig,
        engine: Engine,
        begin: Callable[[Coroutine[Any, Any, Turn]], Future[Turn]],
        called: CalledFunction,
        text: TokenizerText,
        share: FailedShare,
        counters: MutableMapping[str, float],
        news: NewsQueue,
    ) -> None:
        """`begin` runs a coroutine in the engine's event loop. `share`: how many samples may be lost."""
        self._config = config
        self._engine = engine
        self._begin = begin
        self._called = called
        self._text = text
        self._share = share
        self._counters = counters
        self._limits = TokenLimits(config.max_new_tokens, config.max_tokens, text.vocab_size)
        self._loops = FunctionLoops()
        self._encoders = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="encode")
        self._news = news
        self._reported: set[NoticeKind] = set()
        self._failures = FailureLog(_LOG, "the rollout function")
        counters.update(dict.fromkeys((FUNCTION_RETRIES, SAMPLES_LOST), 0.0))

    async def run(self, tickets: Sequence[PromptedTicket], calls: EngineCalls) -> list[GeneratedGroup]:
        """All samples of all tickets, side by side.

        Raises EngineError (nothing of it counts), and ValueError where another try would not help.
        """
        count = self._config.samples_per_prompt
        samples = iter(
            await all_or_none(self._sample(each, index, calls) for each in tickets for index in range(count))
        )
        return [GeneratedGroup(each.ticket, each.prompt, tuple(islice(samples, count))) for each in tickets]

    def close(self) -> None:
        """No sample begins any more."""
        self._loops.close()
        self._encoders.shutdown(wait=False, cancel_futures=True)

    async def _sample(self, each: PromptedTicket, index: int, calls: EngineCalls) -> Trajectory | LostSample:
        params = self._config.params_of(each)
        one = replace(params, num_samples=1, seed=params.seed + index)
        place = _Place(calls.moved)
        try:
            for retry in range(self._called.retries + 1):
                try:
                    made = await self._attempt(each.prompt, one, place, calls)
                except _Failed as failed:
                    sentence, cause = str(failed), failed.__cause__
                    calls.made(1)  # a job whose tools fail comes forward, if only to its end
                    if retry < self._called.retries:
                        self._counters[FUNCTION_RETRIES] += 1
                        await asyncio.sleep(self._called.backoff_seconds * 2**retry)
                else:
                    self._share.add(failed=False)
                    return made
        finally:
            place.end()
        return self._lost(sentence, cause)

    async def _attempt(self, prompt: Prompt, params: SamplingParams, place: _Place, calls: EngineCalls) -> Trajectory:
        texts = _ToolTexts(self._text, self._limits, self._encoders)
        engine = _SampleEngine(
            self._engine, self._begin, calls.without_places(), place, texts, params, self._limits, len(prompt.token_ids)
        )
        place.begin()
        try:
            outcome = await self._outcome(self._loops.begin(self._called_on(prompt, engine, params)), prompt, place)
        finally:
            engine.is_over = True
        if engine.error is not None:
            raise engine.error
        if isinstance(outcome, _Raised):
            self._raise(outcome.error, prompt)
        made = self._checked(outcome)
        if texts.longest:
            self._report(
                NoticeKind.TOOL_TEXT_CUT,
                f"{FIELD}.function: {self._called.name} gave the tokenizer a text of {texts.longest:,} characters, and"
                f" only its beginning has room (rollout.sampling.maxNewTokens: {self._limits.max_new_tokens}; positions"
                f" of the model: {self._limits.max_tokens}). The rest was not read: where another part of it matters"
                f" more, cut what the tool returns. The share of such samples is rollout/{CUT_SHARE} of each step.",
            )
        return replace(made, metrics={**texts.metrics(), **made.metrics})

    def _report(self, kind: NoticeKind, sentence: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            _LOG.warning(sentence)
            self._news.put(News(kind, sentence))

    async def _called_on(self, prompt: Prompt, engine: _SampleEngine, params: SamplingParams) -> object:
        try:
            return await self._called.function(prompt, engine, params, **self._called.arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the stage decides
            return _Raised(error)

    async def _outcome(self, running: Future[object], prompt: Prompt, place: _Place) -> object:
        """What the function returned or raised, once it has; gives it up when it has been outside for too long."""
        waiting = asyncio.wrap_future(running)
        try:
            while not (await asyncio.wait({waiting}, timeout=CHECK_SECONDS))[0]:
                if (blocked := self._loops.blocked()) is not None:
                    self._report(
                        NoticeKind.FUNCTION_BLOCKS,
                        f"{FIELD}.function: {self._called.name} blocks its event loop for more than"
                        f" {BLOCKED_SECONDS:g} s{blocked}, and all its other samples wait meanwhile. Await"
                        " asyncio.to_thread(...) there, or a client that is async.",
                    )
                if place.outside() > self._called.timeout_seconds:
                    self._give_up(prompt)
            return waiting.result()
        finally:
            waiting.cancel()

    def _give_up(self, prompt: Prompt) -> NoReturn:
        self._loops.renew()
        late = (
            f"{FIELD}.function: {self._called.name} has been busy outside of the engine for more than"
            f" {self._called.timeout_seconds:g} s with {named_prompt(prompt.text)}."
        )
        if self._loops.num_left > MAX_LEFT:
            raise ValueError(
                f"{late} More than {MAX_LEFT} of its calls block their event loop, and each keeps a thread. Give what"
                " it waits for a time limit of its own."
            )
        raise _Failed(f"{late} Make it faster, or raise {FIELD}.timeoutSeconds.")

    def _raise(self, error: BaseException, prompt: Prompt) -> NoReturn:
        sentence = (
            f"{FIELD}.function: {self._called.name} raised {type(error).__name__} on {named_prompt(prompt.text)}"
            f"{user_place(error)}: {with_cure(error)}"
        )
        # A subclass of it is mostly a text that could not be read, and so a matter of this sample alone.
        if type(error) is ValueError:
            raise final(sentence, error) from error
        raise _Failed(sentence) from error

    def _checked(self, returned: object) -> Trajectory:
        made = returned
        if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
            if len(returned) != 1:
                raise ValueError(
                    f"{FIELD}.function: {self._called.name} returned {len(returned)} trajectories for one sample, and"
                    " the queue has room for one. Return one."
                )
            made = returned[0]
        if not isinstance(made, Trajectory):
            raise ValueError(
                f"{FIELD}.function: {self._called.name} returned {type(made).__name__}. Return a Trajectory, such as"
                " `engine.begin(prompt.token_ids)` and its `finish()` give."
            )
        refuse_impossible(made, self._called.name, self._limits)
        if (sentence := not_finite(made, self._called.name)) is not None:
            raise _Failed(sentence)
        return made

    def _lost(self, sentence: str, cause: BaseException | None) -> LostSample:
        self._counters[SAMPLES_LOST] += 1
        if self._share.add(failed=True):
            share = self._share
            raise ValueError(
                f"rollout.reward.maxFailedShare: {share.num_failed} of the last {share.num_seen} samples were lost by"
                f" {FIELD}, after {self._called.retries} retries each, which is more than {share.limit:g} of"
                f" {share.window}. Mend the function, or raise maxFailedShare. The last: {sentence}"
            )
        number = int(self._counters[SAMPLES_LOST])
        so_far = f"samples lost so far: {number}, after {self._called.retries} retries each"
        self._failures.add(number, f"{so_far}; the last: {sentence}", cause)
        return LostSample(sentence)
