"""A config.json is read as transformers reads it, and refused with a sentence where nothing here computes it."""

import re
from typing import Any

import pytest
from transformers import AutoConfig

from rljob_api.spec import Architecture, ModelConfig, ModelSpec
from rljob_workers.models.building import build_config
from rljob_workers.models.decoder_config import read_config
from rljob_workers.models.tokenizers import build_tokenizer

SMALL = {
    "vocab_size": 13,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": 11,
}
LLAMA: dict[str, Any] = {"model_type": "llama", **SMALL}
QWEN3: dict[str, Any] = {"model_type": "qwen3", **SMALL}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
AS_NAMED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize(
    "described",
    [
        pytest.param(LLAMA, id="Llama, and what it leaves out"),
        pytest.param(QWEN3, id="Qwen3, and what it leaves out"),
        pytest.param({**LLAMA, "num_key_value_heads": None, "head_dim": None}, id="null means derived"),
        pytest.param({**LLAMA, "head_dim": 8, "mlp_bias": True, "attention_bias": True}, id="biases"),
        pytest.param({**LLAMA, "rope_theta": 5e5}, id="a base as transformers 4 writes it"),
        pytest.param({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, id="the oldest name of a rope type"),
        pytest.param({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3}, id="llama3 without its trained length"),
        pytest.param(
            {**LLAMA, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 512}}, id="llama3 with it"
        ),
        pytest.param(
            {**QWEN3, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "beta_fast": 16}},
            id="rope_parameters of transformers 5",
        ),
        pytest.param({**QWEN3, "use_sliding_window": True, "max_window_layers": 2}, id="a window that no layer has"),
    ],
)
def test_it_is_read_as_transformers_reads_it(described: dict[str, Any]) -> None:
    theirs = AutoConfig.for_model(**described)
    ours = read_config(described)
    assert {name: getattr(ours, name) for name in AS_NAMED} == {name: getattr(theirs, name) for name in AS_NAMED}
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)
    assert ours.rope_parameters == {name: value for name, value in theirs.rope_parameters.items() if name != "type"}
    assert read_config(theirs.to_dict()).rope_parameters == ours.rope_parameters


@pytest.mark.parametrize("architecture", list(Architecture))
def test_transformers_reads_a_made_config_as_we_do(architecture: Architecture) -> None:
    spec = ModelSpec(config=ModelConfig.model_validate({"architecture": architecture, "head_dim": 8}))
    tokenizer = build_tokenizer(spec)
    ours = build_config(spec, tokenizer)
    theirs = AutoConfig.for_model(**ours.described)
    assert {name: getattr(ours, name) for name in AS_NAMED} == {name: getattr(theirs, name) for name in AS_NAMED}
    assert ours.rope_parameters == theirs.rope_parameters
    assert ours.eos_token_ids == {theirs.eos_token_id} == {tokenizer.eos_token_id}
    assert (theirs.bos_token_id, theirs.pad_token_id) == (None, tokenizer.pad_token_id)


@pytest.mark.parametrize(
    ("given", "expected"), [(None, set()), (7, {7}), ([7, 8], {7, 8})], ids=["none", "one", "several"]
)
def test_tokens_that_end_a_sequence(given: object, expected: set[int]) -> None:
    assert read_config({**LLAMA, "eos_token_id": given}).eos_token_ids == expected


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        pytest.param({}, "model_type None, but the torch trainer and engine know llama and qwen3", id="nothing"),
        pytest.param({"model_type": "gpt2"}, "has model_type 'gpt2', but", id="another architecture"),
        pytest.param(
            {**QWEN3, "use_sliding_window": True, "max_window_layers": 1},
            "['full_attention', 'sliding_attention'], but the torch trainer and engine know full_attention."
            " Use a model without sliding windows.",
            id="windows by Qwen3's rule",
        ),
        pytest.param(
            {**LLAMA, "layer_types": ["sliding_attention"]}, "layer_types ['sliding_attention']", id="windows"
        ),
        pytest.param({**LLAMA, "hidden_size": None}, "has hidden_size None, which must be a whole", id="no size"),
        pytest.param({**LLAMA, "vocab_size": "13"}, "has vocab_size '13', which must be", id="a size as a text"),
        pytest.param({**LLAMA, "num_hidden_layers": 0}, "has num_hidden_layers 0, which must be", id="no layer"),
        pytest.param(
            {**LLAMA, "num_key_value_heads": 3}, "3, which does not divide num_attention_heads 4", id="uneven heads"
        ),
        pytest.param({**LLAMA, "head_dim": 15}, "head_dim 15, but rotary embeddings turn pairs", id="an odd head"),
        pytest.param(
            {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type 'dynamic', but the torch trainer knows default, linear, llama3, yarn. Use a model",
            id="frequencies that follow the length",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "linear"}}, "factor None, which rope_type 'linear' needs", id="no factor"
        ),
        pytest.param({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5, but", id="half a head turns"),
    ],
)
def test_what_cannot_be_computed_is_refused(described: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as raised:
        read_config(described)
    assert str(raised.value).startswith("model.path: its config.json has ")
