"""Cos and sin are those of transformers, with and without scaling."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rljob_api.model_files.decoder_config import read_config
from rljob_workers.trainers.flat_decoder import rotary_of
from tests.unit.models.test_decoder_config import LLAMA, LLAMA3


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param({"rope_type": "default", "rope_theta": 1e6}, id="default"),
        pytest.param({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, id="linear"),
        pytest.param({**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 64}, id="llama3"),
        pytest.param({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, id="yarn"),
        pytest.param(
            {"rope_type": "yarn", "factor": None, "rope_theta": 1e4, "original_max_position_embeddings": 64},
            id="yarn by the lengths alone",
        ),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64,
             "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
            id="yarn, all told",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_turns_as_transformers_does(rope: dict[str, Any], dtype: torch.dtype) -> None:
    described = {**LLAMA, "head_dim": 32, "max_position_embeddings": 256, "rope_parameters": rope}
    positions = torch.tensor([0, 1, 5, 77, 255, 3])
    theirs = LlamaRotaryEmbedding(LlamaConfig(**described))
    expected = theirs(torch.zeros(1, dtype=dtype), positions[None])
    found = rotary_of(read_config(described)).cos_and_sin(positions, dtype)
    for ours, other in zip(found, expected, strict=True):
        assert ours.dtype is dtype
        assert torch.equal(ours, other[0])


def test_yarn_scales_what_it_turns() -> None:
    described = {**LLAMA, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    assert rotary_of(read_config(described)).scale > 1.1
