"""Names, shapes, order and initial weights are those of transformers' own model."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api.model_files.decoder_config import read_config
from rljob_workers.models.building import initial_weights, tensor_shapes
from tests.unit.models.peer import state_of
from tests.unit.models.test_decoder_config import LLAMA, QWEN3

CONFIGS = [
    pytest.param({**QWEN3, "head_dim": 16, "tie_word_embeddings": True}, id="Qwen3, tied"),
    pytest.param({**QWEN3, "attention_bias": True}, id="Qwen3 with biases, untied"),
    pytest.param({**LLAMA, "head_dim": 8, "num_key_value_heads": 1}, id="Llama, untied"),
    pytest.param({**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, id="Llama, biases"),
]


def state_of_transformers(described: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.for_model(**{**described, "initializer_range": 0.3})
        )
    return state_of(model)


@pytest.mark.parametrize("described", CONFIGS)
@pytest.mark.parametrize("seed", [0, 41])
def test_weights_are_those_that_transformers_draws(described: dict[str, Any], seed: int) -> None:
    expected = state_of_transformers(described, seed)
    config = read_config(described)
    drawn = initial_weights(config, 0.3, seed)
    assert list(drawn) == list(expected) == list(tensor_shapes(config))
    for name, tensor in drawn.items():
        assert tuple(tensor.shape) == tensor_shapes(config)[name]
        assert torch.equal(tensor, expected[name]), name


def test_matrices_are_normal_norms_are_one_and_biases_zero() -> None:
    config = read_config({**LLAMA, "vocab_size": 500, "attention_bias": True, "mlp_bias": True})
    for name, tensor in initial_weights(config, 0.05, 7).items():
        if tensor.dim() == 1:
            assert bool((tensor == (0.0 if name.endswith(".bias") else 1.0)).all()), name
        else:
            assert abs(float(tensor.std()) - 0.05) < 0.005, name
            assert abs(float(tensor.mean())) < 0.005, name
