"""What the real SGLang does that its answers do not report, each with the test that would show it.

| SGLang                                                                  | test                                       |
|-------------------------------------------------------------------------|--------------------------------------------|
| spans carry one string, and there are always some                       | test_samples: log_probs_are_those_of       |
| it begins with weights that no one named (`default`)                    | test_ends: server_that_is_killed_gives     |
| an update wants a folder; parts count as one                            | test_updates: update_of_several_parts      |
| a wrong shape kills it; names that miss or are unknown are `success`    | test_updates: weights_of_another_model     |
| a half file, a missing folder                                           | test_updates: folder_that_is_not_whole     |
| it may die, or be left, between old weights and new                     | test_updates: given_up, test_ends: in_an   |
| retracted samples go on with a cache that the new weights computed      | test_updates: retract_computes             |
| frozen ones with the old cache, and a flush would fail after the update | test_updates: in_place_goes_on             |
| new samples read prefixes that old weights cached                       | test_updates: after_in_place               |
| so do samples that came before an update and begin after it             | test_updates: under_16_clients             |
| naming its weights aborts every sample, unless asked not to             | test_updates: under_16_clients             |
| an abort of a request that waits while it is paused is lost             | test_ends: given_up_while_paused           |
| an abort by name is one of all names that begin so: none is sent        | test_ends: one_sample_is_given_up          |
| a pause outlives the client that began it                               | test_updates: new_client_ends_a_pause      |
| a token that the model lacks kills it                                   | test_samples: token_that_the_model         |
| samples longer than there is room for are cut without a word            | test_samples: longest_sample, and below    |
| a refusal of a stream has status 200                                    | below                                      |
| seeds count only in deterministic mode, and n samples share one         | test_samples: seed_fixes                   |
| log-probs are of the distribution before top-p and top-k                | test_samples: top_p_and_top_k              |
| parameters that are not said come from the model's own folder           | unit: everything_is_said                   |
| log-probs in a stream come again with each event                        | unit: events_that_carry_all, and below     |
| its scheduler's death takes a while to end it                           | test_ends: scheduler_that_is_killed        |
| the next incarnation answers on the old one's connections               | test_ends: answer_of_another_incarnation   |
| forks of one process draw alike                                         | below                                      |
| a killed one leaves a file in /dev/shm                                  | below                                      |
| it closes idle connections after 5 s                                    | below                                      |
| versions differ in endpoints and fields                                 | unit: what_a_server_lacks                  |
| errors come in five shapes                                              | unit: sentence_is_found                    |
| `/health` generates, `/ready` is 503 in a pause                         | unit: pause_is_no_sign_of_death            |
| a probe as long as the context is refused                               | unit, of roles: tokens_are_of_the_vocab    |
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from rljob_workers.engines.base import Engine, EngineRefused
from rljob_workers.engines.sglang.connection import Connection
from tests.integration.engines.contract.calls import PROMPT, load, soon
from tests.integration.engines.contract.contenders import Contender, SglangContender, TorchContender
from tests.integration.engines.contract.reference import Weights

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _only_sglang(server: Contender) -> None:
    if isinstance(server, TorchContender):
        pytest.skip("of SGLang's server")


def body(max_new_tokens: int, prompt: list[int] = PROMPT, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": max_new_tokens, "stream_interval": 4, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "stream": True, **more}


async def test_a_refusal_of_a_stream_has_status_200(server: Contender, engine: Engine) -> None:
    too_long = body(4, [5] * 3000)
    assert (await asyncio.to_thread(httpx.post, f"{server.url}/generate", json=too_long)).status_code == 200
    connection = Connection(server.url)
    with pytest.raises(EngineRefused, match="context length"):
        async for _ in connection.stream("/generate", too_long):
            pass
    await connection.close()


async def test_a_stream_reports_each_token_s_log_prob_once(server: Contender, engine: Engine) -> None:
    connection = Connection(server.url)
    reported = [len(event["output_ids"]) async for event in connection.stream("/generate", body(40))]
    await connection.close()
    assert sum(reported) == 40
    assert len(reported) > 5


async def test_what_there_is_no_room_for_is_cut_silently(server: Contender, engine: Engine) -> None:
    """So that the client refuses it before."""
    room = await engine.max_tokens()
    connection = Connection(server.url)
    prompt = [5] * (room - 30)
    events = [event async for event in connection.stream("/generate", body(31, prompt))]
    await connection.close()
    assert sum(len(event["output_ids"]) for event in events) == 30
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"


async def test_forks_of_one_process_do_not_draw_alike_and_a_killed_one_leaves_nothing_in_shared_memory(
    server: Contender, tmp_path: Path
) -> None:
    if not isinstance(server, SglangContender):
        pytest.skip("nobody here may start another")
    before = set(Path("/dev/shm").iterdir())
    other = SglangContender(tmp_path)
    try:
        seeds = {httpx.get(f"{one.url}/server_info", timeout=60).json()["random_seed"] for one in (server, other)}
    finally:
        other.close()
    assert len(seeds) == 2
    assert set(Path("/dev/shm").glob("sglang*")) <= before


@pytest.mark.long
async def test_a_connection_that_was_idle_for_long_is_not_taken_for_a_dead_server(
    engine: Engine, versions: list[Weights]
) -> None:
    await load(engine, versions[1].folder, 1)
    for seconds in (2.1, 4.9, 5.0, 5.1):
        await asyncio.sleep(seconds)
        assert len(await engine.score(PROMPT, deadline=soon())) == len(PROMPT) - 1
