"""A config.json is read as transformers reads it, and refused with a sentence where nothing here computes it."""

import math
import re
from copy import deepcopy
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from rljob_api.model_files.decoder_config import read_config
from rljob_api.model_files.ends import end_tokens
from rljob_api.spec.model import Architecture, ModelConfig, ModelSpec
from rljob_workers.models.building import build_config
from rljob_workers.models.ends import ends_of_model
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
        pytest.param({"model_type": "llama"}, id="Llama, and nothing else"),
        pytest.param({"model_type": "qwen3"}, id="Qwen3, and nothing else"),
        pytest.param({**LLAMA, "num_key_value_heads": None, "head_dim": None}, id="null means derived"),
        pytest.param({**QWEN3, "num_key_value_heads": None}, id="null means derived, not Qwen3's default"),
        pytest.param({**LLAMA, "eos_token_id": None}, id="null means no token that ends a sequence"),
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
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 512}},
            id="yarn's factor as the ratio of the lengths",
        ),
        pytest.param(
            {
                **LLAMA,
                "rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": None, "mscale": 0, "truncate": None},
            },
            id="what yarn may be told",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "original_max_position_embeddings": None}},
            id="a trained length that nobody asks for",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {}, "rope_parameters": None, "rope_theta": 5e5}, id="no rope but a base"
        ),
        pytest.param({**LLAMA, "partial_rotary_factor": None}, id="null means that whole heads turn"),
        pytest.param({**LLAMA, "rms_norm_eps": 0.0}, id="a norm without epsilon"),
        pytest.param({**QWEN3, "use_sliding_window": True, "max_window_layers": 2}, id="a window that no layer has"),
        pytest.param({**QWEN3, "max_window_layers": 0}, id="a window that is not used"),
        pytest.param(
            {**QWEN3, "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, id="no window to use"
        ),
        pytest.param(
            {**LLAMA, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
            id="Qwen3's rule says nothing of Llama",
        ),
        pytest.param({**QWEN3, "layer_types": ["attention", "full_attention"]}, id="an older name of full attention"),
    ],
)
def test_it_is_read_as_transformers_reads_it(described: dict[str, Any]) -> None:
    theirs = AutoConfig.for_model(**deepcopy(described))  # it writes into what it is given
    ours = read_config(described)
    assert {name: getattr(ours, name) for name in AS_NAMED} == {name: getattr(theirs, name) for name in AS_NAMED}
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)
    assert end_tokens(described, None, frozenset()).all == ({theirs.eos_token_id} - {None})
    assert set(getattr(theirs, "layer_types", ["full_attention"])) == {"full_attention"}
    assert ours.rope_parameters == {name: value for name, value in theirs.rope_parameters.items() if name != "type"}
    assert read_config(theirs.to_dict()).rope_parameters == ours.rope_parameters


def test_an_older_name_of_a_rope_type_counts_where_the_newer_is_null() -> None:
    scaled = {**LLAMA, "rope_scaling": {"type": "linear", "rope_type": None, "factor": 2.0}}
    assert read_config(scaled).rope_parameters == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    "described",
    [
        *(
            pytest.param({**made, name: None}, id=f"{made['model_type']} with {name} null")
            for made in (LLAMA, QWEN3)
            for name in AS_NAMED
            if name not in ("num_key_value_heads", "head_dim")
        ),
        pytest.param({**QWEN3, "head_dim": None}, id="qwen3 with head_dim null"),
        pytest.param({**LLAMA, "mlp_bias": None}, id="llama with mlp_bias null"),
        pytest.param({**QWEN3, "use_sliding_window": None}, id="qwen3 with use_sliding_window null"),
        pytest.param({**LLAMA, "rope_scaling": {"type": "yarn"}}, id="yarn without a factor"),
        pytest.param(
            {**LLAMA, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": None}},
            id="llama3 with a trained length of null",
        ),
    ],
)
def test_what_transformers_refuses_is_refused(described: dict[str, Any]) -> None:
    with pytest.raises((StrictDataclassError, KeyError, TypeError)):
        AutoConfig.for_model(**deepcopy(described))
    with pytest.raises(ValueError, match=r"model.path: its config.json has .*, which must be "):
        read_config(described)


@pytest.mark.parametrize("architecture", list(Architecture))
def test_transformers_reads_a_made_config_as_we_do(architecture: Architecture) -> None:
    spec = ModelSpec(config=ModelConfig.model_validate({"architecture": architecture, "head_dim": 8}))
    tokenizer = build_tokenizer(spec)
    ours = build_config(spec, tokenizer)
    theirs = AutoConfig.for_model(**ours.described)
    assert {name: getattr(ours, name) for name in AS_NAMED} == {name: getattr(theirs, name) for name in AS_NAMED}
    assert ours.rope_parameters == theirs.rope_parameters
    assert ends_of_model(spec, tokenizer) == {theirs.eos_token_id} == {tokenizer.eos_token_id}
    assert (theirs.bos_token_id, theirs.pad_token_id) == (None, tokenizer.pad_token_id)


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        pytest.param({}, "model_type None, but the torch trainer and engine know llama and qwen3", id="nothing"),
        pytest.param({"model_type": "gpt2"}, "has model_type 'gpt2', but", id="another architecture"),
        pytest.param({"model_type": ["llama"]}, "has model_type ['llama'], but", id="a list of architectures"),
        pytest.param(
            {**QWEN3, "use_sliding_window": True, "max_window_layers": 1},
            "['full_attention', 'sliding_attention'], but the torch trainer and engine know full_attention."
            " Use a model without sliding windows.",
            id="windows by Qwen3's rule",
        ),
        pytest.param(
            {**LLAMA, "layer_types": ["sliding_attention"]}, "layer_types ['sliding_attention']", id="windows"
        ),
        pytest.param({**LLAMA, "layer_types": "full_attention"}, "which must be a list of texts or null", id="a kind"),
        pytest.param({**LLAMA, "layer_types": [1, 1]}, "layer_types [1, 1], which must be a list", id="numbered kinds"),
        pytest.param(
            {**QWEN3, "use_sliding_window": True, "max_window_layers": "x"},
            "has max_window_layers 'x', which must be a whole number of at least 0",
            id="windows from nowhere on",
        ),
        pytest.param({**LLAMA, "rms_norm_eps": "x"}, "has rms_norm_eps 'x', which must be a number", id="no epsilon"),
        pytest.param({**LLAMA, "rms_norm_eps": math.nan}, "has rms_norm_eps nan, which must be", id="not a number"),
        pytest.param({**LLAMA, "rms_norm_eps": True}, "has rms_norm_eps True, which must be", id="a flag as a number"),
        pytest.param({**LLAMA, "hidden_act": 1}, "has hidden_act 1, which must be a text", id="a numbered activation"),
        pytest.param({**LLAMA, "attention_bias": "x"}, "attention_bias 'x', which must be true or false", id="no flag"),
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
            {**LLAMA, "rope_scaling": {"type": "linear"}},
            "has factor None, which must be a number above 0 for rope_type 'linear'. Give the config.json that",
            id="no factor",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 0}},
            "has factor 0, which must be a number above 0 or null for rope_type 'yarn'",
            id="no factor of yarn",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "yarn"}}, "rope_type 'yarn', which must be said with a factor", id="yarn"
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": "x"}},
            "has beta_fast 'x', which must be a number of at least 0 or null for",
            id="yarn told a text",
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}},
            "has truncate 1, which must be true or false",
            id="yarn told a number for a flag",
        ),
        pytest.param(
            {**LLAMA, "original_max_position_embeddings": None, "rope_scaling": LLAMA3},
            "has original_max_position_embeddings None, which must be a number above 0 for rope_type 'llama3'",
            id="a trained length of null beside the rope",
        ),
        pytest.param({**LLAMA, "rope_theta": None}, "has rope_theta None, which must be a number above", id="no base"),
        pytest.param({**LLAMA, "rope_scaling": "x"}, "rope_scaling 'x', which must be an object or null", id="no rope"),
        pytest.param({**LLAMA, "rope_parameters": [1]}, "rope_parameters [1], which must be an object", id="a list"),
        pytest.param(
            {**LLAMA, "rope_scaling": {"rope_type": ["yarn"]}}, "rope_type ['yarn'], but the torch", id="a listed kind"
        ),
        pytest.param(
            {**LLAMA, "rope_scaling": {"rope_type": None, "factor": 2.0}}, "rope_type None, but the torch", id="no kind"
        ),
        pytest.param({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5, but", id="half a head turns"),
    ],
)
def test_what_cannot_be_computed_is_refused(described: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as raised:
        read_config(described)
    assert str(raised.value).startswith("model.path: its config.json has ")
