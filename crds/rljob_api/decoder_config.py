"""What a causal decoder is made of: the fields of config.json that trainer and engine compute with, read and checked.

For `building`, trainers and engines. Knows no weights. transformers' own classes of configs are not used: making one
for Llama imports all of transformers' modeling code, which nothing here needs and every process would pay for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_api.config_fields import flag, misfit, number, text, whole_number
from rljob_api.rope_config import read_rope
from rljob_api.spec import Architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL_TYPES = {"llama": Architecture.LLAMA, "qwen3": Architecture.QWEN3}
"""`model_type` in config.json of the decoders that trainer and engine compute."""

_DEFAULTS: dict[Architecture, dict[str, Any]] = {
    Architecture.LLAMA: {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "eos_token_id": 2,
    },
    Architecture.QWEN3: {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
"""What transformers takes where config.json is silent. null is no silence: it is taken where a value is derived."""

_COMMON_DEFAULTS = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""The same for both."""

_FULL_ATTENTION = "full_attention"

_OLDEST_FULL_ATTENTION = "attention"
"""What transformers still reads as the same."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One Qwen3 or Llama model. Fields are named as in config.json."""

    architecture: Architecture
    """Qwen3 normalises every query and key head; Llama does not."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest sequence, prompt and response together, in tokens."""
    rms_norm_eps: float
    hidden_act: str
    attention_bias: bool
    """Whether the projections of q, k, v and o have one."""
    mlp_bias: bool
    tie_word_embeddings: bool
    rope_parameters: Mapping[str, Any]
    """`rope_type`, `rope_theta` and what that type must be told."""
    eos_token_ids: frozenset[int]
    described: Mapping[str, Any]
    """The whole config.json, for a checkpoint's own."""


def read_config(described: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes; ValueError where it is none that can be computed."""
    architecture = _architecture(described)
    fields = _fields(architecture, described)
    config = DecoderConfig(
        architecture=architecture,
        vocab_size=whole_number(fields, "vocab_size"),
        hidden_size=whole_number(fields, "hidden_size"),
        intermediate_size=whole_number(fields, "intermediate_size"),
        num_hidden_layers=whole_number(fields, "num_hidden_layers"),
        num_attention_heads=whole_number(fields, "num_attention_heads"),
        num_key_value_heads=whole_number(fields, "num_key_value_heads"),
        head_dim=whole_number(fields, "head_dim"),
        max_position_embeddings=whole_number(fields, "max_position_embeddings"),
        rms_norm_eps=float(number(fields, "rms_norm_eps", may_be_zero=True)),
        hidden_act=text(fields, "hidden_act"),
        attention_bias=flag(fields, "attention_bias"),
        mlp_bias=architecture is Architecture.LLAMA and flag(fields, "mlp_bias"),
        tie_word_embeddings=flag(fields, "tie_word_embeddings"),
        rope_parameters=read_rope(fields),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
        described=described,
    )
    _check_heads(config)
    _refuse_sliding_windows(architecture, fields, config.num_hidden_layers)
    return config


def _fields(architecture: Architecture, described: Mapping[str, Any]) -> dict[str, Any]:
    """With the defaults, and what null stands for where it stands for something."""
    fields = {**_COMMON_DEFAULTS, **_DEFAULTS[architecture], **described}
    num_heads = whole_number(fields, "num_attention_heads")
    if fields.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = num_heads
    if architecture is Architecture.LLAMA and fields.get("head_dim") is None:
        fields["head_dim"] = whole_number(fields, "hidden_size") // num_heads
    return fields


def _architecture(described: Mapping[str, Any]) -> Architecture:
    model_type = described.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise ValueError(
            f"model.path: its config.json has model_type {model_type!r}, but the torch trainer and engine know"
            f" {' and '.join(MODEL_TYPES)}. Use a model of one of these."
        )
    return MODEL_TYPES[model_type]


def _refuse_sliding_windows(architecture: Architecture, fields: Mapping[str, Any], num_layers: int) -> None:
    listed = fields.get("layer_types")
    if listed is None:
        kinds = _default_layer_types(fields, num_layers) if architecture is Architecture.QWEN3 else {_FULL_ATTENTION}
    elif isinstance(listed, list) and all(isinstance(kind, str) for kind in listed):
        kinds = {_FULL_ATTENTION if kind == _OLDEST_FULL_ATTENTION else kind for kind in listed}
    else:
        raise misfit("layer_types", listed, "a list of texts or null")
    if kinds != {_FULL_ATTENTION}:
        raise ValueError(
            f"model.path: its config.json has layer_types {sorted(kinds)}, but the torch trainer and engine know"
            f" {_FULL_ATTENTION}. Use a model without sliding windows."
        )


def _default_layer_types(fields: Mapping[str, Any], num_layers: int) -> set[str]:
    """Qwen3's rule where config.json does not list them: from layer `max_window_layers` on there is its window."""
    if not flag(fields, "use_sliding_window") or fields["sliding_window"] is None:
        return {_FULL_ATTENTION}
    first = whole_number(fields, "max_window_layers", least=0)
    return {"sliding_attention" if layer >= first else _FULL_ATTENTION for layer in range(num_layers)}


def _check_heads(config: DecoderConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"model.path: its config.json has num_key_value_heads {config.num_key_value_heads}, which does not divide"
            f" num_attention_heads {config.num_attention_heads}. Give the config.json that belongs to the weights."
        )
    if config.head_dim % 2:
        raise ValueError(
            f"model.path: its config.json has head_dim {config.head_dim}, but rotary embeddings turn pairs."
            " Use a model whose heads have an even width."
        )


def _token_ids(given: object) -> frozenset[int]:
    """A checkpoint may name several tokens that end a sequence."""
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(token) is not int for token in ids):
        raise misfit("eos_token_id", given, "the number of a token, a list of such or null")
    return frozenset(ids)
