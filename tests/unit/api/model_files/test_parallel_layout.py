"""What Megatron computes, and what its ranks can share evenly: each refusal by its sentence."""

from typing import Any

import pytest

from rljob_api.model_files.parallel_layout import (
    MEGATRON_FAMILIES,
    experts_problem,
    layout_problem,
    recomputed_problem,
)
from rljob_api.spec.parallelism import WHOLE, ParallelismSpec
from rljob_api.spec.training import RecomputedModule

DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 9728,
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rope_scaling": None,
}
"""The sizes of Qwen3-4B."""
EXPERTS = {
    **DENSE,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6143,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""Those of Qwen3-30B-A3B, but for a width that no layer has."""
ONLY = "backend: Megatron does not compute a model whose config.json has "


@pytest.mark.parametrize(
    ("described", "layout"),
    [
        pytest.param(DENSE, {}, id="a whole model on each rank"),
        pytest.param(DENSE, {"tensor": 8, "pipeline": 4, "virtualPipeline": 3, "context": 5}, id="all of a dense one"),
        pytest.param(EXPERTS, {"tensor": 4, "pipeline": 16, "expert": 128, "expertTensor": 3}, id="all of experts"),
        pytest.param({**EXPERTS, "num_local_experts": 128, "num_experts": None}, {"expert": 64}, id="the other name"),
        pytest.param({**DENSE, "model_type": "llama", "num_key_value_heads": None}, {"tensor": 32}, id="a key each"),
        pytest.param({**DENSE, "model_type": "qwen2", "attention_bias": True}, {}, id="a field that Qwen2 lacks"),
        pytest.param({**DENSE, "rope_scaling": {"type": "linear", "factor": 2.0}}, {}, id="linear, as it was called"),
        pytest.param({**DENSE, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, {}, id="Llama 3's rotary"),
        pytest.param({**DENSE, "layer_types": ["full_attention"] * 36}, {}, id="listed layers without windows"),
        pytest.param({**DENSE, "tie_word_embeddings": True}, {"pipeline": 2}, id="tied ends of a pipeline"),
    ],
)
def test_a_layout_that_comes_out_even_is_taken(described: dict[str, Any], layout: dict[str, int]) -> None:
    assert layout_problem(described, ParallelismSpec.model_validate(layout)) is None


@pytest.mark.parametrize(
    ("described", "layout", "sentence"),
    [
        pytest.param(
            DENSE,
            {"tensor": 16},
            "parallelism.tensor: 16 does not divide num_key_value_heads 8 of its config.json. Give a divisor of 8.",
            id="more tensor ranks than keys",
        ),
        pytest.param(
            {**DENSE, "num_attention_heads": 28, "num_key_value_heads": None},
            {"tensor": 8},
            "parallelism.tensor: 8 does not divide num_key_value_heads 28 of its config.json. Give a divisor of 28.",
            id="heads, each with keys of its own",
        ),
        pytest.param(
            {**DENSE, "intermediate_size": 9730},
            {"tensor": 4},
            "parallelism.tensor: 4 does not divide intermediate_size 9730 of its config.json. Give a divisor of 9730.",
            id="columns",
        ),
        pytest.param(
            {**DENSE, "vocab_size": 9},
            {"tensor": 4},
            "parallelism.tensor: 4 ranks leave one of them without a word of vocab_size 9 of its config.json. Give"
            " fewer.",
            id="words",
        ),
        pytest.param(
            DENSE,
            {"pipeline": 8},
            "parallelism.pipeline: 8 x virtualPipeline 1 does not divide num_hidden_layers 36 of its config.json. Give"
            " numbers whose product is a divisor of 36.",
            id="layers on stages",
        ),
        pytest.param(
            DENSE,
            {"pipeline": 4, "virtualPipeline": 2},
            "parallelism.pipeline: 4 x virtualPipeline 2 does not divide num_hidden_layers 36 of its config.json. Give"
            " numbers whose product is a divisor of 36.",
            id="layers in pieces",
        ),
        pytest.param(
            DENSE,
            {"expertTensor": 2},
            "parallelism.expert: 1 x expertTensor 2 needs a model with experts, and that of its config.json (qwen3) has"
            " none. Leave both out.",
            id="experts that are not there",
        ),
        pytest.param(
            EXPERTS,
            {"expert": 96},
            "parallelism.expert: 96 does not divide num_experts 128 of its config.json. Give a divisor of 128.",
            id="experts that are left over",
        ),
        pytest.param(
            EXPERTS,
            {"tensor": 2, "sequence": False},
            "parallelism.sequence: false has each of the tensor ranks (2) send all tokens to the experts of its"
            " config.json, so that each token would come 2 times. Leave sequence out, or set tensor to 1.",
            id="tokens that come to experts twice",
        ),
        pytest.param(
            EXPERTS,
            {"expertTensor": 5},
            "parallelism.expertTensor: 5 does not divide moe_intermediate_size 768 of its config.json. Give a divisor"
            " of 768.",
            id="columns of an expert",
        ),
        pytest.param(
            {**DENSE, "num_hidden_layers": "36"},
            {},
            f"{ONLY}num_hidden_layers '36', where it needs a whole number above 0. Give the config.json that belongs to"
            " the weights.",
            id="a size that is a text",
        ),
    ],
)
def test_a_layout_that_leaves_something_over_is_refused(
    described: dict[str, Any], layout: dict[str, int], sentence: str
) -> None:
    assert layout_problem(described, ParallelismSpec.model_validate(layout)) == sentence


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(
            {"model_type": "mixtral"},
            "model_type 'mixtral', but those of qwen2, qwen3, llama, qwen3_moe",
            id="a family",
        ),
        pytest.param({"model_type": None}, "model_type None, but those of qwen2, qwen3, llama, qwen3_moe", id="none"),
        pytest.param(
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_type 'yarn', but those of default, linear, llama3",
            id="a rotary embedding",
        ),
        pytest.param(
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor 0.5, but only 1.0",
            id="a part of a head that is turned",
        ),
        pytest.param({"use_sliding_window": True}, "use_sliding_window True, but only False", id="windows"),
        pytest.param(
            {"layer_types": ["full_attention", "sliding_attention"]},
            "other layer_types than full_attention",
            id="listed windows",
        ),
        pytest.param({"hidden_act": "gelu"}, "hidden_act 'gelu', but only 'silu'", id="an activation"),
        pytest.param({"attention_bias": True}, "attention_bias True, but only False", id="a bias of Qwen3"),
        pytest.param(
            {"model_type": "llama", "attention_bias": True}, "attention_bias True, but only False", id="one of Llama"
        ),
        pytest.param({"model_type": "llama", "mlp_bias": True}, "mlp_bias True, but only False", id="the other one"),
        pytest.param({**EXPERTS, "mlp_only_layers": [3]}, "mlp_only_layers [3], but only []", id="a dense layer"),
        pytest.param({**EXPERTS, "decoder_sparse_step": 2}, "decoder_sparse_step 2, but only 1", id="every second"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    assert layout_problem({**DENSE, **fields}, WHOLE) == f"{ONLY}{reason}. Set backend to Fsdp."


def test_every_family_of_the_table_is_taken() -> None:
    assert all(layout_problem({**EXPERTS, "model_type": family}, WHOLE) is None for family in MEGATRON_FAMILIES)


def test_experts_are_balanced_where_there_are_some() -> None:
    assert experts_problem(EXPERTS) is None
    assert experts_problem(DENSE) == (
        "training.experts: needs a model with experts, and that of its config.json (qwen3) has none. Leave experts out."
    )


def test_parts_are_computed_again_that_layers_have() -> None:
    every = set(RecomputedModule)
    assert recomputed_problem(DENSE, every - {RecomputedModule.MOE}) is None
    assert recomputed_problem(EXPERTS, every - {RecomputedModule.MLP}) is None
    sentence = "training.recomputeModules: has {}, and the layers of its config.json have {}. Give {} in its place."
    assert recomputed_problem(DENSE, every) == sentence.format("Moe", "no experts", "Mlp")
    assert recomputed_problem(EXPERTS, every) == sentence.format("Mlp", "experts", "Moe")
