"""A user's rollout function: called for each sample, tried again, given up, and refused by name for what it returns."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rljob_api.names import RolloutId
from rljob_api.spec.model import TokenizerConfig
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.data.prompts import Prompt
from rljob_workers.dcs.membership.news import News, NewsQueue
from rljob_workers.engines.base import (
    EngineEmptied,
    EngineGone,
    Event,
    FinishReason,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
)
from rljob_workers.models.tokenizers import TokenizerText, make_tokenizer
from rljob_workers.rewards.scoring import FailedShare
from rljob_workers.rollout import function_loops, function_stage
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.function import RolloutEngine, Trajectory, single_turn
from rljob_workers.rollout.function_stage import CalledFunction, FunctionStage, turn_seed
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import GenerateConfig, sampling_seed
from rljob_workers.rollout.trajectory import LostSample
from rljob_workers.transfer_queue.types import Ticket
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine, ends
from tests.weights import weight

CONFIG = GenerateConfig(
    job_seed=7,
    samples_per_prompt=2,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    max_new_tokens=8,
    max_tokens=16,
    stop_token_ids=(),
)
TICKET = Ticket(id=11, rollout_id=RolloutId(3), group=2, attempt=0, prompt_index=4, alone=False)
TEXT = TokenizerText(make_tokenizer(TokenizerConfig(kind="Character", alphabet="0123456789=")), vocab_size=13)
SEED = sampling_seed(7, TICKET)


class TwoTokens(FakeEngine):
    """Draws two tokens a request; its version grows with each."""

    prompts_per_request = 1

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], SamplingParams]] = []

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        (prompt,), (one,) = prompts, params
        self.asked.append((list(prompt), one))
        tokens = [1, 2][: one.max_new_tokens]
        span = VersionSpan(weight(len(prompt)), 0, len(tokens))
        for event in ends([Sample(tokens, [-1.0] * len(tokens), FinishReason.STOP, (span,))]):
            yield event


@dataclass
class Setting:
    """A stage, and what it reported."""

    engine: TwoTokens
    rank: FakeRankEngine
    moved: list[int] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)

    def run(self, function: Any, *, retries: int = 1, timeout_seconds: float = 60.0, **arguments: Any) -> Any:
        """The samples of the ticket's group."""
        called = CalledFunction("tools:play", function, arguments, timeout_seconds, retries, backoff_seconds=0.0)
        share = FailedShare(256, 0.1)
        news = NewsQueue()
        stage = FunctionStage(CONFIG, self.engine, self.rank.begin, called, TEXT, share, self.counters, news)
        calls = EngineCalls(self.rank.progress, [TICKET], stall_seconds=60.0, moved=self.moved.append)
        prompt = Prompt(4, "p4", (4, 4, 4), label="l4")
        work: Coroutine[Any, Any, list[GeneratedGroup]] = stage.run([PromptedTicket(TICKET, prompt)], calls)
        try:
            (group,) = self.rank.call(work)
        finally:
            stage.close()
        self.news = [news.get() for _ in range(news.qsize())]
        return group.samples


@pytest.fixture
def setting() -> Iterator[Setting]:
    engine = TwoTokens()
    with closing(FakeRankEngine(engine, tokens_per_ticket=100)) as rank:
        engine.close = _nothing  # type: ignore[method-assign]
        yield Setting(engine, rank)


async def _nothing() -> None:
    return None


async def with_tool(prompt: Prompt, engine: RolloutEngine, _: SamplingParams, *, answer: str = "7") -> Trajectory:
    """Two turns; the tool answers between them."""
    conversation = engine.begin(prompt.token_ids)
    conversation.add_turn(await engine.generate(conversation.token_ids))
    await asyncio.sleep(0)
    conversation.add_tokens(engine.encode(answer))
    conversation.add_turn(await engine.generate(conversation.token_ids))
    return conversation.finish()


def test_each_sample_and_each_turn_has_a_seed_of_its_own_and_the_first_is_that_of_a_single_turn(
    setting: Setting,
) -> None:
    first, second = setting.run(with_tool, answer="89")
    assert first.token_ids == second.token_ids == [4, 4, 4, 1, 2, 8, 9, 1, 2]
    assert first.loss_mask == [1, 1, 0, 0, 1, 1]
    assert [(span.weight, span.start, span.end) for span in first.version_spans] == [
        (weight(3), 0, 2),
        (weight(7), 4, 6),
    ]
    seeds = sorted(one.seed for _, one in setting.engine.asked)
    assert seeds == sorted([SEED, SEED + 1, turn_seed(SEED, 1), turn_seed(SEED + 1, 1)])
    assert sorted(one.max_new_tokens for _, one in setting.engine.asked) == [4, 4, 8, 8], "of the conversation"


def test_the_single_turn_that_is_built_in_is_a_function_too(setting: Setting) -> None:
    samples = setting.run(single_turn)
    assert [sample.token_ids for sample in samples] == [[4, 4, 4, 1, 2]] * 2
    assert {one.seed for _, one in setting.engine.asked} == {SEED, SEED + 1}


def test_a_sample_is_in_flight_while_the_engine_has_a_request_of_it(setting: Setting) -> None:
    setting.run(with_tool)
    assert sum(setting.moved) == -2, "those of the whole group, when it is done"
    assert sorted(setting.moved) == [-1] * 4 + [1] * 2


def test_no_request_is_sent_where_the_conversation_has_no_room(setting: Setting) -> None:
    async def talks_on(prompt: Prompt, engine: RolloutEngine, _: SamplingParams) -> Trajectory:
        conversation = engine.begin(prompt.token_ids)
        while not conversation.is_full:
            conversation.add_turn(await engine.generate(conversation.token_ids))
        assert (await engine.generate(conversation.token_ids)).finish_reason is FinishReason.LENGTH
        return conversation.finish()

    first, _ = setting.run(talks_on)
    assert len(first.loss_mask) == CONFIG.max_new_tokens


@pytest.mark.parametrize("door", ["encode", "add_text"])
def test_a_tool_that_writes_a_megabyte_is_read_as_far_as_there_is_room_and_reported_once(
    setting: Setting, door: str
) -> None:
    async def writes(prompt: Prompt, engine: RolloutEngine, _: SamplingParams) -> Trajectory:
        conversation = engine.begin(prompt.token_ids)
        conversation.add_turn(await engine.generate(conversation.token_ids))
        if door == "encode":
            fits = conversation.add_tokens(engine.encode("7" * 1_000_000))
        else:
            fits = await engine.add_text(conversation, "7" * 1_000_000)
        assert not fits
        assert conversation.is_full
        return conversation.finish(metrics={"mine": 1.0})

    first, _ = setting.run(writes)
    assert first.token_ids == [4, 4, 4, 1, 2, 7, 7, 7, 7, 7, 7]
    assert first.finish is FinishReason.LENGTH
    read = 17 if door == "encode" else 7
    cut = {"tools/cut_share": 1.0, "tools/cut_tokens": read - 6.0, "tools/cut_characters": 1_000_000.0 - read}
    assert first.metrics == {**cut, "mine": 1.0}
    (news,) = setting.news
    assert news.kind is NoticeKind.TOOL_TEXT_CUT
    assert "tools:play gave the tokenizer a text of 1,000,000 characters" in news.sentence
    assert "rollout/tools/cut_share of each step" in news.sentence


def test_what_fits_is_no_news_and_its_metrics_are_zero(setting: Setting) -> None:
    async def writes(prompt: Prompt, engine: RolloutEngine, _: SamplingParams) -> Trajectory:
        conversation = engine.begin(prompt.token_ids)
        conversation.add_turn(await engine.generate(conversation.token_ids))
        assert await engine.add_text(conversation, "789")
        return conversation.finish()

    first, _ = setting.run(writes)
    assert first.token_ids == [4, 4, 4, 1, 2, 7, 8, 9]
    assert set(first.metrics.values()) == {0.0}
    assert setting.news == []


def test_a_function_that_blocks_its_loop_is_named_with_its_line_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_loops, "BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(function_stage, "CHECK_SECONDS", 0.02)
    released, report = threading.Event(), FunctionStage._report

    def reports(self: FunctionStage, kind: NoticeKind, sentence: str) -> None:
        report(self, kind, sentence)
        released.set()

    monkeypatch.setattr(FunctionStage, "_report", reports)

    async def blocks(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        released.wait()
        return await single_turn(prompt, engine, params)

    setting.run(blocks)
    (news,) = setting.news
    line = blocks.__code__.co_firstlineno + 1
    assert news.kind is NoticeKind.FUNCTION_BLOCKS
    assert f"tools:play blocks its event loop for more than 5 s ({__file__}, line {line})" in news.sentence


def test_a_function_that_raises_is_tried_again_and_then_the_sample_is_lost(setting: Setting) -> None:
    tries: list[int] = []

    async def fails(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        tries.append(params.seed)
        if params.seed == SEED or len(tries) < 3:
            raise OSError("the tool is away")
        return await single_turn(prompt, engine, params)

    lost, made = setting.run(fails, retries=2)
    assert isinstance(lost, LostSample)
    assert "rollout.function.function: tools:play raised OSError on the prompt 'p4'" in lost.reason
    assert "test_function_stage.py" in lost.reason
    assert isinstance(made, Trajectory)
    assert setting.counters == {"rollout_function_retries": 3.0, "samples_lost": 1.0}


def test_a_function_whose_reward_is_no_number_for_a_sample_is_called_again_for_that_sample(setting: Setting) -> None:
    async def odd(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        made = await single_turn(prompt, engine, params)
        return replace(made, reward=float("nan") if params.seed == SEED else 0.5)

    lost, made = setting.run(odd, retries=2)
    assert isinstance(lost, LostSample)
    assert lost.reason.startswith("rollout.function: tools:play returned a Trajectory whose reward is nan.")
    assert isinstance(made, Trajectory)
    assert setting.counters == {"rollout_function_retries": 2.0, "samples_lost": 1.0}


def test_a_value_error_fails_the_job_at_once(setting: Setting) -> None:
    async def refuses(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        raise ValueError("no such tool")

    with pytest.raises(ValueError, match=r"tools:play raised ValueError on the prompt 'p4' .*: no such tool"):
        setting.run(refuses)


@pytest.mark.parametrize("blocks", [False, True], ids=["waits", "blocks"])
def test_a_function_that_never_returns_is_given_up_and_keeps_no_other_from_running(
    setting: Setting, *, blocks: bool
) -> None:
    has_hung = False

    async def hangs(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        nonlocal has_hung
        if not has_hung:
            has_hung = True
            if blocks:
                time.sleep(5)
            else:
                await asyncio.sleep(1000)
        return await single_turn(prompt, engine, params)

    samples = setting.run(hangs, timeout_seconds=0.1, retries=3)
    assert all(isinstance(sample, Trajectory) for sample in samples)
    assert setting.counters["rollout_function_retries"] >= 1


def test_a_function_that_hangs_to_the_end_is_named(setting: Setting) -> None:
    async def hangs(*_: Any) -> Trajectory:
        await asyncio.sleep(1000)
        raise AssertionError

    lost, _ = setting.run(hangs, timeout_seconds=0.1, retries=0)
    assert "tools:play has been busy outside of the engine for more than 0.1 s with the prompt 'p4'" in lost.reason
    assert "raise rollout.function.timeoutSeconds" in lost.reason


def test_time_at_the_engine_is_not_the_functions(setting: Setting) -> None:
    original = setting.engine.generate

    async def slow(*arguments: Any, **named: Any) -> AsyncGenerator[Event]:
        await asyncio.sleep(2.5)
        async for event in original(*arguments, **named):
            yield event

    setting.engine.generate = slow  # type: ignore[method-assign]
    samples = setting.run(single_turn, timeout_seconds=0.3, retries=0)
    assert all(isinstance(sample, Trajectory) for sample in samples)


@pytest.mark.parametrize("error", [EngineGone("it died"), EngineEmptied("all was aborted")])
def test_what_the_engine_raises_ends_the_group_even_where_the_function_catches_it(
    setting: Setting, error: Exception
) -> None:
    async def dies(*_: Any, **__: Any) -> AsyncGenerator[Event]:
        raise error
        yield

    async def catches(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        try:
            return await single_turn(prompt, engine, params)
        except Exception:
            return Trajectory([4, 1], 1, [1], [-1.0], (VersionSpan(weight(1), 0, 1),), FinishReason.STOP)

    setting.engine.generate = dies  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        setting.run(catches)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "returned NoneType. Return a Trajectory"),
        ([], "returned 0 trajectories for one sample"),
        ([None, None], "returned 2 trajectories for one sample, and the queue has room for one"),
        ("text", "returned str. Return a Trajectory"),
        (
            Trajectory([4, 1], 1, [1, 1], [-1.0], (), FinishReason.STOP),
            "returned a Trajectory whose loss_mask has 2 elements for 1 tokens",
        ),
    ],
)
def test_what_is_no_trajectory_is_refused_by_name(setting: Setting, returned: Any, sentence: str) -> None:
    async def returns(*_: Any) -> Any:
        return returned

    with pytest.raises(ValueError, match=f"rollout.function.*tools:play {sentence}"):
        setting.run(returns)


def test_tokens_that_the_model_does_not_know_are_refused_before_they_are_sent(setting: Setting) -> None:
    async def invents(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> Trajectory:
        await engine.generate([*prompt.token_ids, 13])
        raise AssertionError

    with pytest.raises(ValueError, match=r"engine\.generate was given token 13, and the model knows tokens 0 to 12"):
        setting.run(invents)
    assert setting.engine.asked == []


def test_a_list_of_one_is_that_one(setting: Setting) -> None:
    async def lists(prompt: Prompt, engine: RolloutEngine, params: SamplingParams) -> list[Trajectory]:
        return [await single_turn(prompt, engine, params)]

    assert all(isinstance(sample, Trajectory) for sample in setting.run(lists))


def test_too_many_lost_samples_fail_the_job_by_name(setting: Setting) -> None:
    async def fails(*_: Any) -> Trajectory:
        raise OSError("the tool is away")

    called = CalledFunction("tools:play", fails, {}, 60.0, 0, 0.0)
    stage = FunctionStage(
        CONFIG, setting.engine, setting.rank.begin, called, TEXT, FailedShare(4, 0.3), {}, NewsQueue()
    )
    calls = EngineCalls(setting.rank.progress, [TICKET], stall_seconds=60.0, moved=lambda _: None)
    work = stage.run([PromptedTicket(TICKET, Prompt(4, "p4", (4,), label=None))], calls)
    with (
        closing(stage),
        pytest.raises(ValueError, match=r"maxFailedShare: 2 of the last 2 samples were lost by rollout"),
    ):
        setting.rank.call(work)
