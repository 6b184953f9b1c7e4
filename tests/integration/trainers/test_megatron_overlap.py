"""Gradients that are exchanged beside the last backward pass are those that are exchanged after it.

The last data-parallel rank has no rows in the last slice of a step: its last passes are empty.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.integration.trainers.megatron_bench import ALL, Bench
from tests.integration.trainers.megatron_ranks import Run

BUCKET = 4000
"""Elements: several buckets in each model."""


def run_of(layout: str, model: str) -> Run:
    """Four steps: Megatron learns in the first one what to wait for."""
    return Run(f"{layout}, {model}, after it", model, 0, 4, ALL[layout].parallelism)


def beside(run: Run) -> Run:
    return replace(run, folder=f"{run.folder} and beside it", bucket=BUCKET)


FIRST = [("DP2", "qwen3"), ("EP2", "qwen3_moe")]
OTHERS = [("DP2", "qwen3-untied"), ("PP2 DP2", "qwen3-untied"), ("CP2", "qwen3"), ("PP2 EP2", "qwen3_moe")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("overlap"))


@pytest.fixture(scope="module")
def first(bench: Bench) -> Bench:
    runs = [run_of(*case) for case in FIRST]
    bench.run(2, *runs, *map(beside, runs))
    return bench


def assert_alike(bench: Bench, run: Run, world: int) -> None:
    steps = bench.results(beside(run), world)
    early = [step.pop("early") for step in steps]
    assert early[0] == 0, "in the first step it sees which gradients there are"
    assert early[1:] == [1] * (len(early) - 1), "gradients were on their way before the step"
    for found, expected in zip(steps, bench.results(run, world), strict=True):
        assert expected.pop("early") == 0
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)  # shards are others: the norm is rounded otherwise
    expected_weights, found_weights = bench.weights(run, world), bench.weights(beside(run), world)
    assert expected_weights.keys() == found_weights.keys()
    for key, tensor in expected_weights.items():
        torch.testing.assert_close(found_weights[key], tensor, rtol=1e-5, atol=2e-6, msg=key)


@pytest.mark.long
@pytest.mark.parametrize("case", FIRST, ids=", ".join)
def test_an_exchange_beside_the_last_pass_changes_nothing(case: tuple[str, str], first: Bench) -> None:
    assert_alike(first, run_of(*case), 2)


@pytest.mark.long
@pytest.mark.parametrize("case", OTHERS, ids=", ".join)
def test_it_does_not_in_other_layouts(case: tuple[str, str], bench: Bench) -> None:
    run, world = run_of(*case), ALL[case[0]].world
    bench.run(world, run, beside(run))
    assert_alike(bench, run, world)
