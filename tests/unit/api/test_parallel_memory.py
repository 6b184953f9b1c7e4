"""Memory of a model that ranks share, by numbers made by hand, and by what no more ranks may change."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.machine.memory import Pass
from rljob_api.machine.parallel_memory import RankPart, laid_out_forward_memory, laid_out_trainer_memory
from rljob_api.model_files.size import ModelShape, shape_of_files
from rljob_api.spec.model import Dtype
from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.training import RecomputedModule
from tests.unit.api.test_device_memory import QWEN3_4B, QWEN3_30B_A3B, stored

TINY = ModelShape(
    num_layers=4,
    parameters=4 * 740 + 168,
    layer=740,  # 100 that every token goes through, and 640 of experts
    outside=168,  # 10 x 8 of an embedding, as many of a head, and a norm of 8
    hidden=8,
    inner=6,  # 2 experts of 3
    queries=8,
    keys=4,
    vocabulary=10,
    max_positions=None,
    experts=640,
    experts_per_token=2,
)
WORK = Pass(tokens=12, responses=6)
LAYOUT: dict[str, Any] = {"tensor": 2, "pipeline": 2, "expert": 4}


def part(stage: int = 0, ranks: int = 16, shape: ModelShape = TINY, **parallelism: Any) -> RankPart:
    return RankPart(shape, ParallelismSpec(**(parallelism or LAYOUT)), stage, ranks)


@pytest.mark.parametrize(
    ("one", "dense", "experts"),
    [
        pytest.param(part(), 2 * 50 + 5 * 8, 2 * 160, id="the first stage has the embedding"),
        pytest.param(part(1), 2 * 50 + 5 * 8 + 8, 2 * 160, id="the last one head and norm"),
        pytest.param(part(1, pipeline=4), 100, 640, id="one between them neither"),
        pytest.param(part(tensor=3), 4 * 34 + 2 * 4 * 8 + 8, 4 * 640, id="a vocabulary is padded"),
        pytest.param(part(expert=2, expert_tensor=4), 4 * 100 + 160 + 8, 4 * 80, id="experts are cut by both"),
        pytest.param(part(shape=replace(TINY, outside=88), tensor=2), 4 * 50 + 5 * 8 + 8, 4 * 640, id="tied: once"),
        pytest.param(
            part(1, shape=replace(TINY, outside=88), pipeline=2), 2 * 100 + 80 + 8, 2 * 640, id="tied: a copy"
        ),
        pytest.param(
            part(shape=replace(TINY, outside=96, vocabulary=1), tensor=2),
            4 * 50 + 5 * 8 + 8 + 8,
            4 * 640,
            id="a critic's head is whole",
        ),
    ],
)
def test_weights_of_a_rank(one: RankPart, dense: int, experts: int) -> None:
    assert (one.dense, one.experts) == (dense, experts)


def test_state_is_sharded_over_those_that_have_the_same_weights() -> None:
    """140 weights on 4 ranks alike, and 320 of experts on 2."""
    half = laid_out_trainer_memory(part(), Dtype.BFLOAT16, WORK, 3)
    assert (half.weights, half.gradients, half.copies) == (2 * 460, 4 * 460, 0)
    assert half.optimizer == 12 * 140 // 4 + 12 * 320 // 2
    full = laid_out_trainer_memory(part(), Dtype.FLOAT32, WORK, 3)
    assert (full.weights, full.gradients) == (4 * 460, 4 * 460)
    assert full.optimizer == 8 * 140 // 4 + 8 * 320 // 2


# Of a layer, for each token: (4 x 6 + 4 x (8 + 2 x 4)) / 2 columns, 7 x 8 / 2 between them, 2 x 2 x 8 / 2 sent.
RETAINED = 44 + 28 + 16
# 2 x 6 / 2 columns and 2 x 8 / 2 between them.
IN_WORK = 6 + 8


@pytest.mark.parametrize(
    ("one", "work", "micro_batches", "expected"),
    [
        pytest.param(part(), WORK, 3, 2 * 12 * (2 * 2 * RETAINED + IN_WORK), id="two passes of two layers"),
        pytest.param(part(), WORK, 1, 2 * 12 * (1 * 2 * RETAINED + IN_WORK), id="there is one"),
        pytest.param(part(1), WORK, 3, 2 * 12 * 2 * RETAINED + 3 * 4 * 6 * 5, id="logits, on the last stage"),
        pytest.param(
            part(), replace(WORK, checkpointing=True), 3, 2 * 12 * (2 * 2 * 4 + RETAINED + IN_WORK), id="inputs alone"
        ),
        pytest.param(
            part(**LAYOUT, sequence=None, context=2, virtual_pipeline=2),
            WORK,
            4,
            2 * 6 * ((2 + 2 + 1) * RETAINED + IN_WORK),
            id="half of the tokens, five passes of one layer",
        ),
        pytest.param(
            part(tensor=2, sequence=False),
            Pass(12, 1),
            1,
            2 * 12 * (4 * (44 + 56 + 16) + 6 + 16),
            id="tokens that are not cut",
        ),
    ],
)
def test_activations(one: RankPart, work: Pass, micro_batches: int, expected: int) -> None:
    assert laid_out_trainer_memory(one, Dtype.BFLOAT16, work, micro_batches).activations == expected


@pytest.mark.parametrize(
    ("modules", "again"),
    [
        pytest.param([RecomputedModule.CORE_ATTN], (8 + 2 * 4) // 2, id="a copy of queries, keys and values"),
        pytest.param([RecomputedModule.MOE], 4 * 6 // 2 + 16, id="experts, and what is sent to them"),
        pytest.param(list(RecomputedModule), 8 + 12 + 16, id="all"),
    ],
)
def test_activations_of_parts_that_are_computed_again(modules: list[RecomputedModule], again: int) -> None:
    found = laid_out_trainer_memory(part(), Dtype.BFLOAT16, WORK, 3, modules)
    assert found.activations == 2 * 12 * (2 * 2 * (RETAINED - again) + again + IN_WORK)


def test_a_forward_role_has_weights_and_one_pass() -> None:
    first, last = (laid_out_forward_memory(part(stage, 4), Dtype.FLOAT32, WORK) for stage in (0, 1))
    assert (first.weights, first.state, first.activations) == (4 * 460, 4 * 460, 4 * 12 * (12 + 12))
    assert last.activations == max(4 * 12 * 24, 3 * 4 * 6 * 5)


def test_a_known_model_on_four_ranks() -> None:
    """Qwen3-4B, tied: layers of 100,930,816 weights, and 388,956,160 of an embedding."""
    shape = shape_of_files(QWEN3_4B, stored(QWEN3_4B))
    assert (shape.experts, shape.experts_per_token) == (0, 0)
    first, last = (part(stage, 8, shape, tensor=2, pipeline=2) for stage in (0, 1))
    assert first.dense == 18 * 50_465_408 + 194_478_080 == last.dense - 2560
    memory = laid_out_trainer_memory(last, Dtype.BFLOAT16, Pass(4096, 4096), 4)
    assert memory.state == (2 + 4 + 12 // 2) * (1_102_855_424 + 2560)


def test_experts_are_counted_by_the_names_of_their_weights() -> None:
    shape = shape_of_files(QWEN3_30B_A3B, stored(QWEN3_30B_A3B))
    assert shape.parameters == 30_532_122_624  # as its card says: 30.5B
    assert (shape.experts, shape.experts_per_token, shape.inner) == (128 * 3 * 768 * 2048, 8, 8 * 768)
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 2048 + 2 * 128
    assert shape.layer == shape.experts + attention + 128 * 2048


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2, 4]),
    tokens=st.integers(4, 1 << 12),
    dtype=st.sampled_from(Dtype),
)
def test_more_ranks_never_need_more_each(tensor: int, pipeline: int, expert: int, tokens: int, dtype: Dtype) -> None:
    def peak(ranks: int, **parallelism: Any) -> int:
        return laid_out_trainer_memory(part(0, ranks, **parallelism), dtype, Pass(tokens, tokens), 8).peak

    own = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    assert peak(32, **own) >= peak(64, **own)
    assert peak(32, **own) > peak(64, **own, context=2)
    assert peak(32, **own) >= peak(64, **{**own, "tensor": 2 * tensor})
    assert peak(32, **own) >= peak(32, **{**own, "expert": 2 * expert})
