"""Continuous batching against Hugging Face's forward pass, and against itself under other load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.engines.base import VersionSpan
from rljob_workers.engines.torch_engine.decoder import Decoder
from rljob_workers.engines.torch_engine.requests import BadRequest, Batch, EndReason, NotServing, StepFailed
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from tests.near import FORWARD, LOGITS, assert_log_probs_near
from tests.unit.engines.tiny_models import (
    FIRST,
    SECOND,
    VOCAB,
    hf_log_probs,
    make_batch,
    make_group,
    make_model,
    make_scheduler,
    outputs,
    run,
    weights_of,
)

QWEN = make_model("qwen3")


def assert_log_probs(model: Any, batch: Batch, temperature: float = 1.0) -> None:
    rows = outputs(batch)
    for index, group in enumerate(batch.groups):
        for row in range(batch.first_rows[index], batch.first_rows[index + 1]):
            expected = hf_log_probs(model, group.prompt, rows[row], temperature)
            found = torch.from_numpy(batch.log_probs[row, : len(rows[row])])
            assert_log_probs_near(found, expected)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_log_probs_are_those_of_hugging_face(kind: str, tied: bool) -> None:
    model = make_model(kind, tied=tied)
    prompts = [[1, 2, 3], [4], list(range(20)), [5, 6, 7, 8], [9] * 90]
    groups = [make_group(p, num_samples=3, seed=i, max_new_tokens=5 + 9 * i) for i, p in enumerate(prompts)]
    batch = make_batch(*groups)
    run(make_scheduler(model), batch)
    assert batch.lengths.tolist() == [5] * 3 + [14] * 3 + [23] * 3 + [32] * 3 + [41] * 3
    assert_log_probs(model, batch)


def test_log_probs_are_of_the_tempered_distribution() -> None:
    batch = make_batch(make_group([1, 2], num_samples=4, temperature=0.5, top_k=3, top_p=0.8))
    run(make_scheduler(QWEN), batch)
    assert_log_probs(QWEN, batch, temperature=0.5)


def test_greedy_takes_the_likeliest_token() -> None:
    batch = make_batch(make_group([1, 2], temperature=0.0, max_new_tokens=4))
    run(make_scheduler(QWEN), batch)
    sequence = [1, 2]
    for token in outputs(batch)[0]:
        with torch.no_grad():
            assert token == int(QWEN(torch.tensor([sequence])).logits[0, -1].argmax())
        sequence.append(token)


def test_a_sample_does_not_depend_on_the_load_beside_it() -> None:
    wanted = make_group([3, 1, 4], num_samples=4, seed=77, max_new_tokens=40, stop_token_ids=frozenset({5}))
    alone = make_batch(wanted)
    run(make_scheduler(QWEN), alone)
    others = [
        make_group(
            [i % VOCAB] * (1 + 7 * i),
            num_samples=1 + i,
            seed=i,
            max_new_tokens=1 + 11 * i,
            temperature=0.5 + 0.1 * i,
            top_k=i,
            stop_token_ids=frozenset({i}),
        )
        for i in range(12)
    ]
    crowded = make_batch(wanted)
    run(make_scheduler(QWEN, max_running_samples=37), make_batch(*others[:6]), crowded, make_batch(*others[6:]))
    assert outputs(crowded) == outputs(alone)
    width = int(alone.lengths.max())
    for row, length in enumerate(alone.lengths.tolist()):
        assert_log_probs_near(crowded.log_probs[row, :length], alone.log_probs[row, :length])
    assert width > 1


def test_the_i_th_sample_has_seed_plus_i() -> None:
    together = make_batch(make_group([1, 2], num_samples=5, seed=2**64 - 3))
    run(make_scheduler(QWEN), together)
    for index in range(5):
        alone = make_batch(make_group([1, 2], seed=(2**64 - 3 + index) % 2**64))
        run(make_scheduler(QWEN), alone)
        assert outputs(alone)[0] == outputs(together)[index]
    assert len({tuple(row) for row in outputs(together)}) == 5


def test_ends_at_a_stop_token_or_at_the_limit() -> None:
    stop = frozenset({3, 7, 11})
    batch = make_batch(make_group([1], num_samples=40, max_new_tokens=12, stop_token_ids=stop))
    run(make_scheduler(QWEN), batch)
    reasons = batch.reasons.tolist()
    for row, reason in zip(outputs(batch), reasons, strict=True):
        assert not stop & set(row[:-1])
        assert (reason == EndReason.STOP) == (row[-1] in stop)
        assert reason == EndReason.STOP or len(row) == 12
    assert set(reasons) == {EndReason.STOP, EndReason.LENGTH}


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_running_samples": 3}, id="few slots"),
        pytest.param({"max_cache_bytes": 200 * 512}, id="a small cache"),
        pytest.param({"max_prefill_tokens": 4}, id="short passes"),
    ],
)
def test_what_does_not_fit_waits_and_comes_out_the_same(limits: dict[str, int]) -> None:
    groups = [make_group([i, i + 1, i + 2], num_samples=5, seed=i, max_new_tokens=3 + i) for i in range(8)]
    free, bound = make_batch(*groups), make_batch(*groups)
    run(make_scheduler(QWEN), free)
    run(make_scheduler(QWEN, **limits), bound)
    assert outputs(bound) == outputs(free)


def test_a_large_cache_of_short_samples_makes_room_for_a_long_one() -> None:
    scheduler = make_scheduler(QWEN, max_cache_bytes=512 * 640)
    run(scheduler, make_batch(make_group([1], num_samples=10, max_new_tokens=8)))
    long = make_batch(make_group([1], max_new_tokens=500))
    run(scheduler, long)
    assert long.lengths.tolist() == [500]


def steps(scheduler: Scheduler, count: int) -> None:
    with torch.inference_mode():
        for _ in range(count):
            scheduler.step()


def test_retracted_samples_go_on_as_a_fresh_prefill_under_the_new_weights() -> None:
    other = make_model("qwen3", seed=9)
    scheduler = make_scheduler(QWEN, max_prefill_tokens=64)
    prompts = [[1, 2, 3], [4] * 30, [5]]
    batch = make_batch(*[make_group(p, num_samples=4, seed=i, max_new_tokens=20 + i) for i, p in enumerate(prompts)])
    scheduler.submit(batch)
    steps(scheduler, 9)
    geometry, weights = weights_of(other)
    drawn = [10] * 12  # the first step draws two: one from the prompt, one by decoding
    with torch.inference_mode():
        scheduler.retract()
        scheduler.install(weights, SECOND)
    run(scheduler)
    rows, spans = outputs(batch), batch.spans()
    assert batch.uniform_weight() is None
    for index, group in enumerate(batch.groups):
        for row in range(batch.first_rows[index], batch.first_rows[index + 1]):
            cut = drawn[row]
            assert spans[row] == [VersionSpan(FIRST, 0, cut), VersionSpan(SECOND, cut, len(rows[row]))]
            old, new = hf_log_probs(QWEN, group.prompt, rows[row]), hf_log_probs(other, group.prompt, rows[row])
            found = torch.from_numpy(batch.log_probs[row, : len(rows[row])])
            assert_log_probs_near(found, torch.cat([old[:cut], new[cut:]]))
    assert geometry.num_layers == 2


def test_retract_without_new_weights_changes_nothing() -> None:
    group = make_group([1, 2, 3], num_samples=6, max_new_tokens=30, stop_token_ids=frozenset({4}))
    plain, retracted = make_batch(group), make_batch(group)
    run(make_scheduler(QWEN), plain)
    scheduler = make_scheduler(QWEN)
    scheduler.submit(retracted)
    while scheduler.has_work:
        steps(scheduler, 2)
        scheduler.retract()
    assert outputs(retracted) == outputs(plain)
    assert retracted.uniform_weight() == FIRST


def test_weights_in_place_keep_the_cache_and_mark_the_tokens() -> None:
    scheduler = make_scheduler(QWEN)
    batch = make_batch(make_group([1, 2, 3], max_new_tokens=12))
    scheduler.submit(batch)
    steps(scheduler, 3)
    _, weights = weights_of(make_model("qwen3", seed=9))
    scheduler.install_in_place(weights, SECOND)
    run(scheduler)
    assert batch.spans() == [[VersionSpan(FIRST, 0, 4), VersionSpan(SECOND, 4, 12)]]
    fresh = hf_log_probs(make_model("qwen3", seed=9), [1, 2, 3], outputs(batch)[0])
    assert not torch.allclose(torch.from_numpy(batch.log_probs[0])[5:], fresh[5:], atol=10 * FORWARD * LOGITS)


def test_abort_keeps_what_was_drawn_and_spares_the_others() -> None:
    scheduler = make_scheduler(QWEN, max_running_samples=5)
    doomed = make_batch(make_group([1], rid="doomed", num_samples=8, max_new_tokens=50))
    spared = make_batch(make_group([2], rid="spared", num_samples=2, max_new_tokens=6))
    scheduler.submit(doomed)
    scheduler.submit(spared)
    steps(scheduler, 3)
    assert scheduler.abort(lambda group: group.rid == "doomed") == 1
    assert doomed.done.done()
    assert sorted(doomed.lengths.tolist()) == [0, 0, 0, 4, 4, 4, 4, 4]
    assert set(doomed.reasons.tolist()) == {EndReason.ABORT}
    run(scheduler)
    assert spared.lengths.tolist() == [6, 6]
    assert_log_probs(QWEN, spared)


def test_logits_that_are_not_finite_cost_the_request_and_not_the_engine() -> None:
    broken = make_model("qwen3", seed=3)
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    scheduler = make_scheduler(broken)
    batch = make_batch(make_group([1]))
    run(scheduler, batch)
    assert isinstance(batch.error, StepFailed)
    assert "not finite under weights v0@1" in str(batch.error)
    scheduler.install(weights_of(QWEN)[1], SECOND)
    healthy = make_batch(make_group([1]))
    run(scheduler, healthy)
    assert healthy.lengths.tolist() == [8]


def test_lack_of_memory_costs_what_runs_and_not_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(QWEN, max_running_samples=2)
    running, waiting = make_batch(make_group([1], num_samples=2)), make_batch(make_group([2]))
    scheduler.submit(running)
    scheduler.submit(waiting)
    steps(scheduler, 1)
    decode = Decoder.decode

    def fail_once(*arguments: object) -> torch.Tensor:
        monkeypatch.setattr(Decoder, "decode", decode)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore lines")

    monkeypatch.setattr(Decoder, "decode", fail_once)
    run(scheduler)
    assert str(running.error) == (
        "The engine could not compute this request: DefaultCPUAllocator: can't allocate memory"
    )
    assert outputs(waiting)[0]


def test_refuses_what_can_never_run() -> None:
    geometry, weights = weights_of(QWEN)
    scheduler = Scheduler(geometry, Limits(max_cache_bytes=256 * 100))
    with pytest.raises(NotServing, match="No weights are loaded yet"):
        scheduler.submit(make_batch(make_group([1])))
    scheduler.install(weights, FIRST)
    with pytest.raises(BadRequest, match="2 prompt tokens and 511 new ones are 513, but the model has 512 positions"):
        scheduler.submit(make_batch(make_group([1, 2], max_new_tokens=511)))
    with pytest.raises(BadRequest, match="a sample of 200 tokens does not fit into the KV cache of 100 tokens"):
        scheduler.submit(make_batch(make_group([1] * 100, max_new_tokens=100)))
    assert not scheduler.has_work


def test_weights_that_go_take_every_request_with_them() -> None:
    scheduler = make_scheduler(QWEN, max_running_samples=1)
    batches = [make_batch(make_group([1], max_new_tokens=50)) for _ in range(2)]
    for batch in batches:
        scheduler.submit(batch)
    steps(scheduler, 2)
    scheduler.drop_weights()
    assert all(isinstance(batch.error, NotServing) for batch in batches)
    assert not scheduler.has_work


arrivals = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(1, 30), st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=12, deadline=None)
@given(arrivals)
def test_any_mixture_of_arrivals_aborts_and_retracts_keeps_log_probs_right(
    arriving: list[tuple[int, int, int, int, bool]],
) -> None:
    scheduler = make_scheduler(QWEN, max_running_samples=11, max_prefill_tokens=100)
    batches = []
    with torch.inference_mode():
        for index, (prompt_length, num_samples, max_new_tokens, num_steps, retracts) in enumerate(arriving):
            prompt = [(index + position) % VOCAB for position in range(prompt_length)]
            group = make_group(
                prompt,
                rid=str(index),
                num_samples=num_samples,
                seed=index,
                max_new_tokens=max_new_tokens,
                stop_token_ids=frozenset({index}),
            )
            batches.append(make_batch(group))
            scheduler.submit(batches[-1])
            steps(scheduler, num_steps)
            if retracts:
                scheduler.retract()
            elif index % 3 == 2:
                scheduler.abort(lambda one, rid=str(index - 1): one.rid == rid)  # type: ignore[misc]
        while scheduler.has_work:
            scheduler.step()
    for batch in batches:
        assert batch.done.done()
        for row, tokens in enumerate(outputs(batch)):
            if tokens:
                expected = hf_log_probs(QWEN, batch.groups[0].prompt, tokens)
                assert_log_probs_near(batch.log_probs[row, : len(tokens)], expected)
