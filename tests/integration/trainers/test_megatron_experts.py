"""Balanced experts train as a plain loop with the definitions of the losses does, in every layout of their tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch

from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.micro_batches import MicroBatchLimits, cut
from tests.integration.trainers.megatron_bench import ALL, Bench
from tests.integration.trainers.megatron_ranks import AUX, Run, Z
from tests.integration.trainers.plain_balance import Groups, Seen, balance
from tests.integration.trainers.plain_training import OPTIMIZER, Trained, train_plainly
from tests.near import assert_moved_alike

STEPS = 2
MODEL = "qwen3_moe"
WEIGHTS_BOUND, RESULTS_BOUND = 5e-3, 1e-4
"""Of the way that a tensor moved; of loss, norm and metrics."""


def run_of(layout: str, *, by_row: bool, rows: int) -> Run:
    """`rows`: of a micro-batch at most."""
    return Run(
        f"{layout}, balanced {'by row' if by_row else f'by {rows} rows'} in {rows}",
        MODEL,
        0,
        STEPS,
        ALL[layout].parallelism,
        balanced="by row" if by_row else "by pass",
        rows_of_pass=rows,
    )


def singly(rows: TrainRows) -> list[list[int]]:
    return [[row] for row in range(len(rows.tokens))]


@cache
def passes(dp_size: int, rows_of_pass: int) -> Groups:
    """One for each, so that a plain loop is run once."""
    return partial(by_pass, dp_size=dp_size, rows_of_pass=rows_of_pass)


def by_pass(rows: TrainRows, *, dp_size: int, rows_of_pass: int) -> list[list[int]]:
    """As `megatron_ranks.slices_of` deals rows to data-parallel ranks, each of which cuts its own."""
    found, half, count = [], len(rows.tokens) // 2, len(rows.tokens)
    dealt = [list(range(rank, half, dp_size)) for rank in range(dp_size)]
    ranks = max(1, dp_size - 1)
    dealt += [list(range(half + rank, count, ranks)) for rank in range(ranks)]
    for own in dealt:
        picked = rows.tokens.select(own)
        parts = cut(picked, rows.response_lengths[own], MicroBatchLimits(rows_of_pass, 400))
        found += [own[part.start : part.stop] for part in parts]
    return found


FIRST = [
    ("1", True, 2, "rows"),
    ("1", False, 2, "passes of two rows"),
    ("1", False, 11, "one pass for a slice"),
    ("EP2", True, 2, "experts of two ranks"),
    ("TP2 EP2 SP", False, 11, "tokens that are cut over ranks"),
    ("PP2", True, 2, "stages, whose layers are computed again"),
]
AGAIN = Run(
    "PP2, parts computed again", MODEL, 0, STEPS, ALL["PP2"].parallelism, balanced="by row",
    recomputed=("CoreAttn", "Moe"),
)  # fmt: skip
DENSE_AGAIN = Run(
    "PP2, parts of a dense model", "qwen3", 0, STEPS, ALL["PP2"].parallelism, recomputed=("CoreAttn", "Mlp")
)
OTHERS = [
    ("1", True, 11, "rows of one pass"),
    ("EP2", False, 2, "experts of two ranks, by pass"),
    ("PP2", False, 2, "stages, by pass"),
    *[
        (layout, by_row, 2, f"{layout}, {by_row}")
        for layout in ("CP2 EP2", "TP2 EP2 SP", "PP2 EP2", "TP2 EP2 ETP2")
        for by_row in (True, False)
    ],
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("experts"))


Plain = Callable[[Groups], tuple[Trained, list[Seen]]]


@pytest.fixture(scope="module")
def plain(bench: Bench) -> Plain:
    def train(groups: Groups) -> tuple[Trained, list[Seen]]:
        seen: list[Seen] = []

        def added(model: object, rows: TrainRows) -> torch.Tensor:
            seen.append(balance(model, rows, groups, aux=AUX, z=Z))
            return seen[-1].added

        return train_plainly(bench.model(MODEL), STEPS, added=added), seen

    return cache(train)


def assert_trains_like_a_plain_loop(bench: Bench, plain: Plain, layout: str, *, by_row: bool, rows: int) -> None:
    own, world = ALL[layout].parallelism, ALL[layout].world
    shared = own.get("tensor", 1) * own.get("pipeline", 1) * own.get("context", 1)
    groups = singly if by_row else passes(world // shared, rows)
    assert_trains_like(bench, *plain(groups), run_of(layout, by_row=by_row, rows=rows), world)


def assert_trains_like(bench: Bench, trained: Trained, seen: list[Seen], run: Run, world: int) -> None:
    for number, (step, expected, of_experts) in enumerate(
        zip(bench.results(run, world), trained.results, seen, strict=True)
    ):
        loads = of_experts.loads
        shares = loads / loads.sum(1, keepdim=True)
        fullest = loads.max(1).values / loads.mean(1)
        expected_metrics = {
            "loss": expected[0],
            "norm": expected[1],
            "experts/aux_loss": of_experts.aux,
            "experts/z_loss": of_experts.z,
            "experts/load_max": float(fullest.mean()),
            "experts/load_max_worst": float(fullest.max()),
            "experts/load_entropy": float(-(shares * shares.clamp(min=1e-30).log()).sum(1).mean())
            / torch.tensor(float(loads.shape[1])).log().item(),
            "experts/unused_share": float((loads == 0).float().mean()),
        }
        found = {name: step[name] for name in expected_metrics}
        assert found == pytest.approx(expected_metrics, rel=RESULTS_BOUND, abs=1e-6), number
        assert step["norm"] > 2 * OPTIMIZER.max_grad_norm, "clipping is active"
    found_weights = bench.weights(run, world)
    for key, weight in trained.weights.items():
        assert_moved_alike(found_weights[key], weight, trained.before[key], WEIGHTS_BOUND, f"{run.folder}: {key}")


@pytest.fixture(scope="module")
def first(bench: Bench) -> Bench:
    for world in (1, 2):
        runs = [run_of(one, by_row=own, rows=rows) for one, own, rows, _ in FIRST if ALL[one].world == world]
        bench.run(world, *runs, *([AGAIN, DENSE_AGAIN] if world == 2 else []))
    return bench


@pytest.mark.long  # test_megatron_layouts has experts, too
@pytest.mark.parametrize(("layout", "by_row", "rows"), [one[:3] for one in FIRST], ids=[one[3] for one in FIRST])
def test_balanced_experts_train_like_a_plain_loop(
    layout: str, by_row: bool, rows: int, first: Bench, plain: Plain
) -> None:
    assert_trains_like_a_plain_loop(first, plain, layout, by_row=by_row, rows=rows)


@pytest.mark.parametrize("rank", [0, 1])
def test_parts_that_are_computed_again_change_nothing(rank: int, first: Bench, plain: Plain) -> None:
    assert_trains_like(first, *plain(singly), AGAIN, 2)
    again = json.loads((first.folder / AGAIN.folder / f"again-{rank}.json").read_text())
    assert {"CountingRouter", "PackedAttention"} <= set(again)
    assert "SelfAttention" not in again


@pytest.mark.parametrize("rank", [0, 1])
def test_parts_of_a_dense_model_that_are_computed_again_change_nothing(rank: int, first: Bench) -> None:
    trained = first.plain("qwen3", "policy", STEPS)
    for key, weight in trained.weights.items():
        found = first.weights(DENSE_AGAIN, 2)[key]
        assert_moved_alike(found, weight, trained.before[key], WEIGHTS_BOUND, key)
    again = json.loads((first.folder / DENSE_AGAIN.folder / f"again-{rank}.json").read_text())
    assert {"MLP", "PackedAttention"} <= set(again)
    assert not {"SelfAttention", "Norm"} & set(again)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "by_row", "rows"), [one[:3] for one in OTHERS], ids=[one[3] for one in OTHERS])
def test_they_do_in_every_layout(layout: str, by_row: bool, rows: int, bench: Bench, plain: Plain) -> None:
    bench.run(ALL[layout].world, run_of(layout, by_row=by_row, rows=rows))
    assert_trains_like_a_plain_loop(bench, plain, layout, by_row=by_row, rows=rows)
