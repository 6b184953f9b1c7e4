"""Updates of weights: what each pause does to samples that run, and what is left of an update that fails."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rljob_api.spec.weights import Interruption
from rljob_workers.engines.base import Engine, EngineError, EngineRefused, Sample
from tests.integration.engines.contract.calls import (
    PROMPT,
    Running,
    draw,
    load,
    params,
    require_true_name,
    until,
    version,
)
from tests.integration.engines.contract.contenders import Contender, SimContender
from tests.integration.engines.contract.reference import Weights, log_probs_on_one_cache
from tests.near import assert_log_probs_near

pytestmark = pytest.mark.anyio

LONG = 700
"""Tokens: more than are made until an update has come."""


def require_cache(server: Contender) -> None:
    """Skips what is about keys and values for a server that has none."""
    if not server.caches:
        pytest.skip("it caches nothing: its log-probs are those of the weights of each token's span")


async def interrupted(server: Contender, engine: Engine, versions: list[Weights], mode: Interruption) -> list[Sample]:
    """Some samples that ran when version 2 took the place of version 1."""
    await load(engine, versions[1].folder, 1)
    running = await Running(engine, params(LONG, num_samples=server.crowd)).began()
    await load(engine, versions[2].folder, 2, mode)
    spanning = [sample for sample in await running.samples() if len(sample.spans) == 2]
    assert spanning, "the update came after every sample had ended"
    for sample in spanning:
        old, new = sample.spans
        assert (old.start, old.end, new.end) == (0, new.start, len(sample.output_ids))
    return spanning[:3]


async def test_retract_computes_the_cache_again_so_that_later_tokens_are_the_new_weights(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    for sample in await interrupted(server, engine, versions, Interruption.RETRACT):
        old, new = sample.spans
        assert (old.weight, new.weight) == (version(1), version(2))
        before = versions[1].log_probs(PROMPT, sample.output_ids)[: old.end]
        after = versions[2].log_probs(PROMPT, sample.output_ids)[old.end :]
        assert_log_probs_near(torch.tensor(sample.log_probs), torch.cat([before, after]))


async def test_in_place_goes_on_with_the_new_weights_on_what_the_old_ones_cached(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    require_cache(server)
    for sample in await interrupted(server, engine, versions, Interruption.IN_PLACE):
        old, new = sample.spans
        assert (old.weight, new.weight) == (version(1), version(2))
        found = torch.tensor(sample.log_probs)
        assert_log_probs_near(found[: old.end], versions[1].log_probs(PROMPT, sample.output_ids)[: old.end])
        on_old_cache = versions[2].log_probs_after(versions[1], PROMPT, sample.output_ids, old.end)
        assert_log_probs_near(found[old.end :], on_old_cache)
        recomputed = versions[2].log_probs(PROMPT, sample.output_ids)[old.end :]
        assert float((recomputed - found[old.end :]).abs().max()) > 0.01, "the versions cannot be told apart"


async def test_after_in_place_new_samples_read_nothing_that_the_old_weights_cached(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    prompt = [*PROMPT, *range(20, 60)]
    await draw(engine, params(4), prompt)  # its prefix is cached now
    await load(engine, versions[2].folder, 2, Interruption.IN_PLACE)
    [sample] = await draw(engine, params(16), prompt)
    assert [span.weight for span in sample.spans] == [version(2)]
    assert_log_probs_near(torch.tensor(sample.log_probs), versions[2].log_probs(prompt, sample.output_ids))


async def test_drain_gives_each_sample_one_version(server: Contender, engine: Engine, versions: list[Weights]) -> None:
    await load(engine, versions[1].folder, 1)
    running = await Running(engine, params(LONG, num_samples=server.crowd)).began()
    update = asyncio.create_task(load(engine, versions[2].folder, 2, Interruption.DRAIN))
    await asyncio.sleep(0)
    late = asyncio.create_task(draw(engine, params(8)))
    for sample in (await running.samples())[:3]:
        assert [span.weight for span in sample.spans] == [version(1)]
        assert_log_probs_near(torch.tensor(sample.log_probs), versions[1].log_probs(PROMPT, sample.output_ids))
    await update
    [sample] = await late
    assert len(sample.spans) == 1
    [sample] = await draw(engine, params(8))
    assert [span.weight for span in sample.spans] == [version(2)]


@pytest.mark.parametrize(
    ("mode", "updates"),
    [
        (Interruption.IN_PLACE, 8),
        pytest.param(Interruption.DRAIN, 4, marks=pytest.mark.long),
        pytest.param(Interruption.RETRACT, 20, marks=pytest.mark.long),
        pytest.param(Interruption.IN_PLACE, 20, marks=pytest.mark.long),
    ],
)
async def test_under_16_clients_every_token_is_of_its_span_s_version(
    server: Contender,
    engine: Engine,
    versions: list[Weights],
    mode: Interruption,
    updates: int,
    record_property: Callable[[str, object], None],
) -> None:
    if mode is Interruption.IN_PLACE:
        require_cache(server)
    await load(engine, versions[0].folder, 0)
    done: list[Sample] = []
    ended = asyncio.Event()
    num_tokens = 0

    def count(tokens: int) -> None:
        nonlocal num_tokens
        num_tokens += tokens

    async def keep_drawing(seed: int) -> None:
        while not ended.is_set():
            done.extend(await draw(engine, params(48, seed=seed), progress=count))
            seed += 16

    took = []
    async with asyncio.TaskGroup() as clients:
        for seed in range(16):
            clients.create_task(keep_drawing(seed))
        for number in range(1, updates + 1):
            await until(lambda before=num_tokens: num_tokens > before + 64, "tokens between two updates")  # type: ignore[misc]
            begun = time.perf_counter()
            await load(engine, versions[number % 3].folder, number, mode)
            took.append((time.perf_counter() - begun) * 1e3)
        ended.set()
    figures = f"{mode}: median {statistics.median(took):.0f}, max {max(took):.0f} ms; {len(done)} samples"
    record_property("updates", figures)
    print(f"updates under 16 clients, {type(engine).__name__}, {figures}")  # noqa: T201 -- shown with -s
    assert {span.weight for sample in done for span in sample.spans} >= {version(1), version(updates)}
    for sample in done[:: max(1, len(done) // 100)]:
        assert sample.spans[-1].end == len(sample.output_ids)
        spans = [(versions[span.weight.version % 3], span.end) for span in sample.spans]
        assert_log_probs_near(torch.tensor(sample.log_probs), expected_log_probs(mode, spans, sample.output_ids))


def expected_log_probs(mode: Interruption, spans: Sequence[tuple[Weights, int]], output: Sequence[int]) -> torch.Tensor:
    """[len(output)]: each span by its weights, in place on what those of the spans before have cached."""
    if mode is Interruption.IN_PLACE:
        return log_probs_on_one_cache(spans, PROMPT, output)
    starts = [0, *(end for _, end in spans)]
    return torch.cat(
        [weights.log_probs(PROMPT, output)[start:end] for start, (weights, end) in zip(starts, spans, strict=False)]
    )


def missing(state: dict[str, torch.Tensor]) -> None:
    del state["model.norm.weight"]


def unknown(state: dict[str, torch.Tensor]) -> None:
    state["model.extra.weight"] = torch.ones(3)


def misshapen(state: dict[str, torch.Tensor]) -> None:
    state["model.norm.weight"] = torch.ones(5)


@pytest.mark.parametrize("spoil", [missing, unknown, misshapen])
async def test_weights_of_another_model_are_refused_by_the_tensor_s_name_and_kill_no_one(
    server: Contender,
    engine: Engine,
    versions: list[Weights],
    tmp_path: Path,
    spoil: Callable[[dict[str, torch.Tensor]], None],
) -> None:
    if isinstance(server, SimContender):
        pytest.skip("it has other tensors: see tests/unit/simulation")
    await load(engine, versions[1].folder, 1)
    shutil.copytree(versions[2].folder, tmp_path / "spoiled")
    state = load_file(tmp_path / "spoiled" / "model.safetensors")
    spoil(state)
    save_file(state, tmp_path / "spoiled" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineRefused, match=r"model\.(norm|extra)\.weight"):
        await load(engine, tmp_path / "spoiled", 2)
    assert await engine.held() != version(2)
    await load(engine, versions[2].folder, 2)
    assert await engine.held() == version(2)


async def test_a_folder_that_is_not_whole_is_refused_and_kills_no_one(
    engine: Engine, versions: list[Weights], tmp_path: Path
) -> None:
    await load(engine, versions[1].folder, 1)
    with pytest.raises(EngineRefused):
        await load(engine, tmp_path / "nothing", 2)
    shutil.copytree(versions[2].folder, tmp_path / "half")
    whole = (tmp_path / "half" / "model.safetensors").read_bytes()
    (tmp_path / "half" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineRefused):
        await load(engine, tmp_path / "half", 2)
    assert await engine.held() != version(2)
    await load(engine, versions[2].folder, 2)


async def test_an_update_of_several_parts_is_one_update(
    engine: Engine, versions: list[Weights], tmp_path: Path
) -> None:
    state = load_file(versions[2].folder / "model.safetensors")
    halves = list(state)[::2], list(state)[1::2]
    for index, names in enumerate(halves, 1):
        part = {name: state[name] for name in names}
        save_file(part, tmp_path / f"model-{index:05}-of-00002.safetensors", metadata={"format": "pt"})
    await load(engine, tmp_path, 2)
    [sample] = await draw(engine, params(16))
    assert_log_probs_near(torch.tensor(sample.log_probs), versions[2].log_probs(PROMPT, sample.output_ids))


async def test_an_update_that_is_given_up_leaves_a_server_that_holds_what_it_states(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    for _ in range(5):
        update = asyncio.create_task(load(engine, versions[2].folder, 2))
        await asyncio.sleep(0.005)
        update.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineError):
            await update
        await require_true_name(engine, versions)
    await load(engine, versions[2].folder, 2)
    [sample] = await draw(engine, params(8))
    assert [span.weight for span in sample.spans] == [version(2)]


async def test_a_new_client_ends_a_pause_that_a_dead_one_has_left(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    server.pause()
    successor = server.client()
    await successor.abort_all()
    assert len(await draw(successor, params(4))) == 1
    await successor.close()


async def test_the_version_of_the_last_update_is_held(engine: Engine, versions: list[Weights]) -> None:
    for number in (1, 2):
        await load(engine, versions[number].folder, number)
        assert await engine.held() == version(number)
