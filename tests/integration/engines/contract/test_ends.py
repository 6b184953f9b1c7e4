"""Samples that someone gives up, and servers that die: nothing of either runs on, and nothing of either counts."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rljob_api.spec.weights import Interruption
from rljob_workers.engines.base import Engine, EngineError, EngineGone, EngineRefused
from tests.integration.engines.contract.calls import Running, draw, load, params, require_true_name, until, version
from tests.integration.engines.contract.contenders import Contender, SglangContender
from tests.integration.engines.contract.reference import Weights

pytestmark = pytest.mark.anyio

LONG = 900


async def crowd(server: Contender, engine: Engine, versions: list[Weights]) -> Running:
    """Samples of version 1 that the server is at for longer than any of these tests takes."""
    await load(engine, versions[1].folder, 1)
    return await Running(engine, params(LONG, num_samples=server.crowd)).began()


async def test_a_sample_that_is_given_up_leaves_the_server(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    running = await crowd(server, engine, versions)
    await running.give_up()
    await until(lambda: server.num_samples() == 0, "the server to be idle")


async def test_one_sample_is_given_up_and_the_others_go_on(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    given_up = Running(engine, params(LONG, num_samples=server.crowd, seed=1))
    retained = Running(engine, params(LONG, seed=2))
    await (await given_up.began()).give_up()
    [sample] = await retained.samples()
    assert sample.finish_reason != "abort"


async def test_samples_that_are_given_up_while_the_server_is_paused_are_gone_when_it_goes_on(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    running = await crowd(server, engine, versions)
    server.pause()
    at_the_gate = Running(engine, params(LONG))
    await asyncio.sleep(0.3)  # it has no way to report that it waits there
    await running.give_up()
    await at_the_gate.give_up()
    server.unpause()
    await until(lambda: server.num_samples() == 0, "the server to be idle")
    await asyncio.sleep(0.3)
    assert server.num_samples() == 0, "what waited at the gate runs after all"
    assert at_the_gate.num_tokens == 0


async def test_abort_all_ends_samples_of_whomever(server: Contender, engine: Engine, versions: list[Weights]) -> None:
    running = await crowd(server, engine, versions)
    successor = server.client()
    await successor.abort_all()
    await until(lambda: server.num_samples() == 0, "the server to be idle")
    with contextlib.suppress(EngineError):
        for sample in await running.samples():
            assert len(sample.log_probs) == len(sample.output_ids)
    await successor.close()


async def test_a_server_that_is_killed_gives_nothing_and_comes_back_empty(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    running = await crowd(server, engine, versions)
    server.kill()
    server.start()
    with pytest.raises(EngineGone):
        await running.samples()
    assert await engine.held() is None
    with pytest.raises(EngineRefused):
        await draw(engine, params())
    await load(engine, versions[1].folder, 1)
    [sample] = await draw(engine, params(8))
    assert [span.weight for span in sample.spans] == [version(1)]


async def test_a_scheduler_that_is_killed_takes_its_server_along(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    running = await crowd(server, engine, versions)
    server.kill_scheduler()
    if isinstance(server, SglangContender):
        server.await_end()
    server.start()
    with pytest.raises(EngineGone):
        await running.samples()


async def test_a_server_that_is_killed_while_paused_comes_back_unpaused(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    running = await crowd(server, engine, versions)
    server.pause()
    server.kill()
    server.start()
    with pytest.raises(EngineGone):
        await running.samples()
    await load(engine, versions[2].folder, 2)
    assert len(await draw(engine, params(4))) == 1


@pytest.mark.parametrize("after_seconds", [0.0, pytest.param(0.01, marks=pytest.mark.long), 0.02])
async def test_a_server_that_is_killed_in_an_update_holds_what_it_states(
    server: Contender, engine: Engine, versions: list[Weights], after_seconds: float
) -> None:
    await load(engine, versions[1].folder, 1)
    update = asyncio.create_task(load(engine, versions[2].folder, 2, Interruption.RETRACT))
    await asyncio.sleep(after_seconds)
    server.kill()
    server.start()
    with contextlib.suppress(EngineError):
        await update
    await require_true_name(engine, versions)
    await load(engine, versions[2].folder, 2)
    assert await engine.held() == version(2)
    await require_true_name(engine, versions)


async def test_an_answer_of_another_incarnation_does_not_count(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    """No one serves when the sample is asked for: the connection waits, and the next incarnation answers it."""
    await load(engine, versions[1].folder, 1)
    await draw(engine, params(4))
    server.kill()
    asked = Running(engine, params(4))
    await asyncio.sleep(0.2)
    server.start()
    with pytest.raises((EngineGone, EngineRefused)):
        await asked.samples()
