"""What an engine's samples are: whose log-probs, which seeds, how many, why they end, how long they may be."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rljob_workers.engines.base import (
    NOT_BEGUN,
    Ended,
    Engine,
    EngineRefused,
    FinishReason,
    Grown,
    Sample,
    Shown,
    VersionSpan,
    continued,
)
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rollout.carried import beginning
from tests.integration.engines.contract.calls import PROMPT, Running, draw, load, params, soon, until, version
from tests.integration.engines.contract.contenders import Contender, TorchContender
from tests.integration.engines.contract.reference import Weights
from tests.integration.engines.driven import samples_of
from tests.integration.engines.engine_process import talkative_model
from tests.near import assert_log_probs_near

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_log_probs_are_those_of_the_distribution_at_temperature(
    engine: Engine, versions: list[Weights], temperature: float
) -> None:
    await load(engine, versions[1].folder, 1)
    for sample in await draw(engine, params(64, num_samples=3, temperature=temperature)):
        expected = versions[1].log_probs(PROMPT, sample.output_ids, temperature)
        assert_log_probs_near(torch.tensor(sample.log_probs), expected)
        assert sample.spans == (VersionSpan(version(1), 0, len(sample.output_ids)),)


async def test_top_p_and_top_k_choose_tokens_and_leave_log_probs_as_they_were(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    for sample in await draw(engine, params(64, num_samples=3, top_p=0.5, top_k=9)):
        assert versions[1].nucleus(PROMPT, sample.output_ids, 0.5, 9).all()
        assert_log_probs_near(torch.tensor(sample.log_probs), versions[1].log_probs(PROMPT, sample.output_ids))


async def test_temperature_0_takes_the_likeliest_token(engine: Engine, versions: list[Weights]) -> None:
    await load(engine, versions[1].folder, 1)
    """With the log-probs of temperature 1, beside a sample of another temperature."""
    (greedy,), (other,) = await samples_of(engine, [PROMPT, PROMPT], [params(32, temperature=0.0), params(32)])
    assert versions[1].nucleus(PROMPT, greedy.output_ids, 0.0, 1).all()
    assert not versions[1].nucleus(PROMPT, other.output_ids, 0.0, 1).all()
    assert_log_probs_near(torch.tensor(greedy.log_probs), versions[1].log_probs(PROMPT, greedy.output_ids))


async def test_a_seed_fixes_a_sample_whatever_runs_beside_it(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    if not server.seeds:
        pytest.skip("the server was not started with --enable-deterministic-inference")
    await load(engine, versions[1].folder, 1)
    together = await draw(engine, params(num_samples=4, seed=40))
    alone = await draw(engine, params(seed=42))
    assert together[2].output_ids == alone[0].output_ids
    assert len({tuple(sample.output_ids) for sample in together}) == 4


async def test_samples_come_in_the_order_of_prompts_as_many_as_each_asks_for(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2, 3]]
    asked = [params(3 + count, num_samples=count, seed=count) for count in (3, 1, 2)]
    found = await samples_of(engine, prompts, asked)
    assert [len(samples) for samples in found] == [3, 1, 2]
    for prompt, samples in zip(prompts, found, strict=True):
        for sample in samples:
            expected = versions[1].log_probs(prompt, sample.output_ids)
            assert_log_probs_near(torch.tensor(sample.log_probs), expected)
            assert sample.spans == (VersionSpan(version(1), 0, len(sample.output_ids)),)


async def test_a_stop_token_ends_a_sample_and_is_its_last(engine: Engine, versions: list[Weights]) -> None:
    await load(engine, versions[1].folder, 1)
    [whole] = await draw(engine, params(32, seed=3))
    stop = whole.output_ids[9]
    [sample] = await draw(engine, params(32, seed=3, stop_token_ids=(stop,)))
    assert sample.finish_reason is FinishReason.STOP
    assert sample.output_ids == whole.output_ids[: whole.output_ids.index(stop) + 1]
    assert len(sample.log_probs) == len(sample.output_ids)


def end_by(texts: tuple[str, ...], tokens: list[int], tokenizer: Any) -> int:
    """Tokens of a sample until one of the texts stands in its last ones; all of them where none does."""
    window = 1 + max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    for count in range(1, len(tokens)):
        if any(text in tokenizer.decode(tokens[max(0, count - window) : count]) for text in texts):
            return count
    return len(tokens)


async def test_a_text_ends_a_sample_where_it_is_whole(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    """With the tokens and log-probs of the text, be it the sample's last that there is room for."""
    await load(engine, versions[1].folder, 1)
    own = isinstance(server, TorchContender)
    tokenizer = build_tokenizer(talkative_model()) if own else AutoTokenizer.from_pretrained(versions[1].folder)
    wholes = await draw(engine, params(32, num_samples=4, seed=3))
    texts = (str(tokenizer.decode(wholes[0].output_ids[8:11])), str(tokenizer.decode(wholes[1].output_ids[30:32])))
    samples = await draw(engine, params(32, num_samples=4, seed=3, stop=texts))
    for whole, sample in zip(wholes, samples, strict=True):
        text = str(tokenizer.decode(sample.output_ids))
        assert sample.output_ids == whole.output_ids[: end_by(texts, whole.output_ids, tokenizer)]
        assert (sample.finish_reason is FinishReason.STOP) == text.endswith(texts) or whole.finish_reason == "stop"
        assert_log_probs_near(torch.tensor(sample.log_probs), versions[1].log_probs(PROMPT, sample.output_ids))
    assert {len(sample.output_ids) for sample in samples[:2]} <= {11, 32}
    assert samples[0].finish_reason is samples[1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "cut",
    [
        {"min_p": 0.5},
        {"min_p": 0.3, "top_k": 4},
        {"min_p": 0.1, "top_p": 0.5},
        {"min_p": 0.5, "temperature": 2.0},
        {"top_p": 0.5, "top_k": 5},
    ],
    ids=str,
)
async def test_top_p_top_k_and_min_p_leave_what_each_of_them_leaves(
    engine: Engine, versions: list[Weights], cut: dict[str, Any]
) -> None:
    await load(engine, versions[1].folder, 1)
    given: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 10**6, "min_p": 0.0, **cut}
    expected = versions[1].left(PROMPT, **given)
    found = [sample.output_ids[0] for sample in await draw(engine, params(1, num_samples=64, **cut))]
    assert set(found) <= expected
    assert len(set(found)) > min(2, len(expected) - 1), "the test would not see bounds that leave too little"


async def test_a_sample_ends_at_its_length(engine: Engine, versions: list[Weights]) -> None:
    await load(engine, versions[1].folder, 1)
    [sample] = await draw(engine, params(7))
    assert (sample.finish_reason, len(sample.output_ids)) == (FinishReason.LENGTH, 7)


async def test_the_longest_sample_that_there_is_room_for_is_made_and_a_longer_one_refused(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    room = await engine.max_tokens()
    prompt = [5] * (room - 30)
    [sample] = await draw(engine, params(30, temperature=1.0), prompt)
    assert len(sample.output_ids) == 30
    with pytest.raises(EngineRefused):
        await draw(engine, params(31), prompt)
    with pytest.raises(EngineRefused):
        await draw(engine, params(1), [5] * (room + 100))
    assert len(await draw(engine, params(1))) == 1


async def test_progress_reports_each_token_once(server: Contender, engine: Engine, versions: list[Weights]) -> None:
    await load(engine, versions[1].folder, 1)
    reported: list[int] = []
    samples = await draw(engine, params(300, num_samples=server.crowd), progress=reported.append)
    assert sum(reported) == sum(len(sample.output_ids) for sample in samples)


async def test_tokens_that_are_shown_are_those_of_the_whole_samples(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    """Each sample's come in order, with log-probs and weights; nothing is shown of one that has ended."""
    await load(engine, versions[1].folder, 1)
    num_samples = server.crowd
    shown = dict.fromkeys(range(num_samples), NOT_BEGUN)
    whole: dict[int, Sample] = {}
    async with (
        asyncio.timeout(240),
        aclosing(engine.generate([PROMPT], [params(300, num_samples=num_samples)], Shown.TOKENS)) as events,
    ):
        async for event in events:
            if isinstance(event, Grown):
                assert not whole.keys() & event.samples.keys()
                shown |= {number: continued(shown[number], more) for number, more in event.samples.items()}
            elif isinstance(event, Ended):
                whole |= event.samples
    assert len(whole) == num_samples
    assert any(sample.output_ids for sample in shown.values()), "all ended before any tokens were shown"
    for number, sample in whole.items():
        begun = beginning(sample, len(shown[number].output_ids))
        assert shown[number] == replace(begun, finish_reason=FinishReason.ABORT)


async def test_progress_is_reported_while_tokens_are_made(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    """A long answer is seen to grow: word comes again and again before its end."""
    await load(engine, versions[1].folder, 1)
    running = await Running(engine, params(900, num_samples=server.crowd)).began()
    first = running.num_tokens
    await until(lambda: running.num_tokens > first or running.task.done(), "word of more tokens")
    assert not running.task.done(), "it was told of all at the end"
    await running.give_up()


async def test_score_is_the_log_prob_of_each_token_after_the_first(engine: Engine, versions: list[Weights]) -> None:
    tokens = [*PROMPT, *range(100, 158)]
    for number in (1, 2):
        await load(engine, versions[number].folder, number)
        found = await engine.score(tokens, deadline=soon())
        assert_log_probs_near(torch.tensor(found), versions[number].log_probs(tokens[:1], tokens[1:]))


async def test_a_token_that_the_model_does_not_have_is_refused_and_kills_no_one(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    with pytest.raises(EngineRefused):
        await draw(engine, params(), [1, 10**6])
    with pytest.raises(EngineRefused):
        await engine.score([1, 10**6], deadline=soon())
    assert len(await draw(engine, params())) == 1


async def test_it_reports_how_many_samples_it_runs_at_once(engine: Engine) -> None:
    assert await engine.capacity() >= 1
