"""Client and server together, over real HTTP between real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save_file

from rljob_api.names import Lineage, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import EngineGone, EngineRefused, Sample, SamplingParams
from rljob_workers.engines.torch_engine.scheduler import Limits
from rljob_workers.models.blob import read_blob
from rljob_workers.models.building import build_config
from rljob_workers.models.tokenizers import build_tokenizer
from tests.integration.engines.driven import DrivenEngine, running_samples, torch_engine, wait_until, waiting_prompts
from tests.integration.engines.engine_process import (
    engine_process,
    open_listener,
    talkative_model,
    url_of,
    write_weights,
)
from tests.near import assert_log_probs_near
from tests.unit.models.peer import peer_of

FIRST = WeightId(lineage=Lineage(1), version=WeightVersion(0))
SECOND = WeightId(lineage=Lineage(1), version=WeightVersion(1))


def params(*, num_samples: int = 2, seed: int = 0, max_new_tokens: int = 6, **changes: object) -> SamplingParams:
    given: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop_token_ids": ()}
    return SamplingParams(num_samples=num_samples, seed=seed, max_new_tokens=max_new_tokens, **(given | changes))  # type: ignore[arg-type]


def soon() -> float:
    return time.monotonic() + 240


def hf_log_probs(weights: Path, prompt: list[int], output: list[int]) -> torch.Tensor:
    model_spec = talkative_model()
    model = peer_of(build_config(model_spec, build_tokenizer(model_spec)), read_blob(weights))
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    chosen: torch.Tensor = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
    return chosen


def test_refuses_to_generate_before_weights_are_loaded(first_weights: Path) -> None:
    with (
        open_listener() as listener,
        engine_process(listener, talkative_model()),
        closing(torch_engine(url_of(listener))) as engine,
    ):
        assert engine.held() is None
        with pytest.raises(EngineRefused, match="No weights are loaded yet"):
            engine.generate([[1, 2]], [params()], deadline=soon())
        engine.update_weights(first_weights, FIRST, deadline=soon())
        assert engine.held() == FIRST
        assert len(engine.generate([[1, 2]], [params()], deadline=soon())) == 1


def test_max_tokens_is_the_models_positions(engine: DrivenEngine) -> None:
    assert engine.max_tokens() == 1024


def interrupted(engine: DrivenEngine, url: str, between: Callable[[], object]) -> list[Sample]:
    """Runs `between` while a long generation runs, and waits for both."""
    found: list[list[Sample]] = []

    def generate() -> None:
        long = params(num_samples=8, seed=5, max_new_tokens=900)
        found.extend(engine.generate([[1, 2, 3]], [long], deadline=soon()))

    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(lambda: running_samples(url) > 0, "the generation to run")
    between()
    thread.join()
    assert found, "the interrupted generation failed"
    return found[0]


def test_drain_lets_what_runs_end_and_keeps_what_comes_for_the_new_weights(
    engine: DrivenEngine, server_url: str, first_weights: Path, second_weights: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    late: list[Future[list[list[Sample]]]] = []

    def update() -> None:
        httpx.post(f"{server_url}/pause_generation", json={"mode": "in_place"}, timeout=60).raise_for_status()
        late.append(engine.begin([[4]], [params()]))
        wait_until(lambda: waiting_prompts(server_url) > 0, "the late request to wait")
        engine.update_weights(second_weights, SECOND, Interruption.DRAIN, deadline=soon())

    samples = interrupted(engine, server_url, update)
    assert {span.weight for sample in samples for span in sample.spans} == {FIRST}
    (of_late,) = late[0].result(60)
    assert {span.weight for sample in of_late for span in sample.spans} == {SECOND}


def test_a_long_request_reports_its_tokens_while_it_runs(
    engine: DrivenEngine, server_url: str, first_weights: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())

    def listen() -> None:
        wait_until(lambda: bool(engine.progress), "a word of progress")
        httpx.post(f"{server_url}/continue_generation", json={}, timeout=60).raise_for_status()

    samples = interrupted(engine, server_url, listen)
    assert len(engine.progress) > 1
    assert min(engine.progress) >= 0
    assert sum(engine.progress) == sum(len(sample.output_ids) for sample in samples)


def test_a_request_that_fails_on_its_way_is_refused_with_the_servers_sentence(
    engine: DrivenEngine, first_weights: Path, tmp_path: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    running = engine.begin([[1]], [params(num_samples=8, max_new_tokens=900)])
    wait_until(lambda: bool(engine.progress), "a word of progress")
    with pytest.raises(EngineRefused):
        engine.update_weights(tmp_path / "none", SECOND, deadline=soon())
    with pytest.raises(EngineRefused, match="ended with 503: The engine lost its weights"):
        running.result(60)


def test_scores_are_the_models_log_probs_also_while_paused(
    engine: DrivenEngine, server_url: str, first_weights: Path
) -> None:
    with open_listener() as listener, engine_process(listener, talkative_model()):
        empty = torch_engine(url_of(listener))
        with closing(empty), pytest.raises(EngineRefused, match="nothing can be scored"):
            empty.score([1, 2], deadline=soon())
    engine.update_weights(first_weights, FIRST, deadline=soon())
    httpx.post(f"{server_url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
    tokens = [1, 2, 3, 9, 8, 7, 500, 4]
    assert_log_probs_near(
        torch.tensor(engine.score(tokens, deadline=soon())), hf_log_probs(first_weights, tokens[:1], tokens[1:])
    )


def test_an_engine_reports_how_many_samples_it_runs_at_once() -> None:
    limits = Limits(max_running_samples=7)
    with (
        open_listener() as listener,
        engine_process(listener, talkative_model(), limits=limits),
        closing(torch_engine(url_of(listener))) as engine,
    ):
        assert engine.capacity() == 7


def test_an_update_that_fails_leaves_the_engine_without_weights(
    engine: DrivenEngine, first_weights: Path, tmp_path: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    wrong = tmp_path / "wrong.safetensors"
    save_file({**read_blob(first_weights), "model.norm.weight": torch.ones(7)}, wrong)
    with pytest.raises(EngineRefused, match=r"model\.norm\.weight has shape \(7,\), but the model needs \(32,\)"):
        engine.update_weights(wrong, SECOND, deadline=soon())
    assert engine.held() is None
    with pytest.raises(EngineRefused, match="No weights are loaded"):
        engine.generate([[1]], [params()], deadline=soon())
    engine.update_weights(first_weights, FIRST, deadline=soon())
    assert engine.generate([[1]], [params()], deadline=soon())


def test_an_update_that_fails_ends_running_requests_with_the_reason(
    engine: DrivenEngine, server_url: str, first_weights: Path, tmp_path: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"not a file of tensors")
    refused: list[EngineRefused] = []

    def generate() -> None:
        try:
            engine.generate([[1]], [params(num_samples=8, max_new_tokens=900)], deadline=soon())
        except EngineRefused as error:
            refused.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(lambda: running_samples(server_url) > 0, "the generation to run")
    with pytest.raises(EngineRefused, match="not a readable safetensors file"):
        engine.update_weights(garbage, SECOND, deadline=soon())
    thread.join()
    assert "lost its weights" in str(refused[0])


def test_weights_outlive_their_file(engine: DrivenEngine, tmp_path: Path) -> None:
    path = write_weights(tmp_path, talkative_model(seed=4))
    engine.update_weights(path, FIRST, deadline=soon())
    before = engine.generate([[1, 2]], [params()], deadline=soon())
    path.write_bytes(b"\0" * 16)  # truncates what a mapping of the file would still show
    assert engine.generate([[1, 2]], [params()], deadline=soon()) == before


def test_abort_all_ends_running_samples_with_what_they_have(
    engine: DrivenEngine, server_url: str, first_weights: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    with closing(torch_engine(server_url)) as other:
        samples = interrupted(engine, server_url, other.abort_all)
    assert {sample.finish_reason for sample in samples} <= {"abort", "stop"}
    assert "abort" in {sample.finish_reason for sample in samples}
    assert running_samples(server_url) == 0


def test_abort_all_ends_a_pause_that_a_dead_rank_left(
    engine: DrivenEngine, server_url: str, first_weights: Path
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    httpx.post(f"{server_url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
    engine.abort_all()
    assert engine.generate([[1]], [params()], deadline=soon())


@pytest.mark.parametrize("mode", ["retract", "in_place", "drain"])
def test_a_request_that_is_given_up_ends_at_the_server_too(
    engine: DrivenEngine, server_url: str, first_weights: Path, mode: str
) -> None:
    engine.update_weights(first_weights, FIRST, deadline=soon())
    httpx.post(f"{server_url}/pause_generation", json={"mode": mode}, timeout=60).raise_for_status()
    with pytest.raises(TimeoutError):
        engine.generate([[1]], [params()], deadline=time.monotonic() + 0.3)

    def has_nothing_waiting() -> bool:
        return waiting_prompts(server_url) == 0

    wait_until(has_nothing_waiting, "the disconnected request to be aborted")
    engine.abort_all()


def test_killed_while_it_generates_is_gone_and_its_successor_must_be_loaded(first_weights: Path) -> None:
    failures: list[Exception] = []
    with open_listener() as listener, closing(torch_engine(url_of(listener))) as engine:

        def generate() -> None:
            try:
                engine.generate([[1]], [params(num_samples=8, max_new_tokens=900)], deadline=soon())
            except EngineGone as error:
                failures.append(error)

        with engine_process(listener, talkative_model(), "aaaaaaaaaaaa", halting=True) as process:
            engine.update_weights(first_weights, FIRST, deadline=soon())
            thread = threading.Thread(target=generate)
            thread.start()
            wait_until(lambda: running_samples(url_of(listener)) > 0, "the generation to run")
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            thread.join()
        assert "broke off" in str(failures[0])
        with engine_process(listener, talkative_model(), "bbbbbbbbbbbb"):
            with pytest.raises(EngineRefused, match="No weights are loaded yet"):
                engine.generate([[1]], [params()], deadline=soon())
            engine.update_weights(first_weights, FIRST, deadline=soon())
            assert engine.generate([[1]], [params()], deadline=soon())


def test_a_reply_of_another_incarnation_does_not_count(first_weights: Path) -> None:
    with open_listener() as listener, closing(torch_engine(url_of(listener))) as engine:
        with engine_process(listener, talkative_model(), "aaaaaaaaaaaa"):
            engine.update_weights(first_weights, FIRST, deadline=soon())
            assert engine.generate([[1]], [params()], deadline=soon())
        with (
            engine_process(listener, talkative_model(), "bbbbbbbbbbbb"),
            closing(torch_engine(url_of(listener))) as other,
        ):
            other.update_weights(first_weights, SECOND, deadline=soon())
            with pytest.raises(EngineGone, match="bbbbbbbbbbbb answered, aaaaaaaaaaaa was asked"):
                engine.generate([[1]], [params()], deadline=soon())
            assert engine.held() == SECOND


def test_ends_on_sigterm_though_a_request_runs(first_weights: Path) -> None:
    with (
        open_listener() as listener,
        engine_process(listener, talkative_model()) as process,
        closing(torch_engine(url_of(listener))) as engine,
    ):
        url = url_of(listener)
        engine.update_weights(first_weights, FIRST, deadline=soon())
        httpx.post(f"{url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
        failures: list[Exception] = []

        def generate() -> None:
            try:
                engine.generate([[1]], [params()], deadline=soon())
            except (EngineGone, EngineRefused) as error:
                failures.append(error)

        def is_waiting() -> bool:
            return waiting_prompts(url) > 0

        thread = threading.Thread(target=generate)
        thread.start()
        wait_until(is_waiting, "the request to wait")
        process.terminate()
        process.join(240)
        assert process.exitcode is not None
        thread.join()
        assert len(failures) == 1
