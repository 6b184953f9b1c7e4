"""What a causal decoder is made of: the fields of config.json that trainer and engine compute with, read and checked.

For `building`, trainers and engines. Knows no weights. transformers' own classes of configs are not used: making one
for Llama imports all of transformers' modeling code, which nothing here needs and every process would pay for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.spec import Architecture

MODEL_TYPES = {"llama": Architecture.LLAMA, "qwen3": Architecture.QWEN3}
"""`model_type` in config.json of the decoders that trainer and engine compute."""

_DEFAULTS: dict[Architecture, dict[str, Any]] = {
    Architecture.LLAMA: {"max_position_embeddings": 2048},
    Architecture.QWEN3: {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
"""What transformers takes where config.json is silent, beyond what is the same for both."""

ROPE_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Kinds of rotary embeddings whose frequencies do not change with the length, and what each must be told."""

_FULL_ATTENTION = "full_attention"


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
    fields = {**_DEFAULTS[architecture], **{name: value for name, value in described.items() if value is not None}}
    hidden_size, num_heads = _size(fields, "hidden_size"), _size(fields, "num_attention_heads")
    config = DecoderConfig(
        architecture=architecture,
        vocab_size=_size(fields, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(fields, "intermediate_size"),
        num_hidden_layers=_size(fields, "num_hidden_layers"),
        num_attention_heads=num_heads,
        num_key_value_heads=_size(fields, "num_key_value_heads", num_heads),
        head_dim=_size(fields, "head_dim", hidden_size // num_heads),
        max_position_embeddings=_size(fields, "max_position_embeddings"),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        hidden_act=str(fields.get("hidden_act", "silu")),
        attention_bias=bool(fields.get("attention_bias", False)),
        mlp_bias=architecture is Architecture.LLAMA and bool(fields.get("mlp_bias", False)),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        rope_parameters=_rope(fields),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
        described=described,
    )
    _check_heads(config)
    _refuse_sliding_windows(fields, config.num_hidden_layers)
    return config


def _architecture(described: Mapping[str, Any]) -> Architecture:
    model_type = described.get("model_type")
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"model.path: its config.json has model_type {model_type!r}, but the torch trainer and engine know"
            f" {' and '.join(MODEL_TYPES)}. Use a model of one of these."
        )
    return MODEL_TYPES[model_type]


def _refuse_sliding_windows(fields: Mapping[str, Any], num_layers: int) -> None:
    kinds = set(fields.get("layer_types") or _default_layer_types(fields, num_layers))
    if kinds != {_FULL_ATTENTION}:
        raise ValueError(
            f"model.path: its config.json has layer_types {sorted(kinds)}, but the torch trainer and engine know"
            f" {_FULL_ATTENTION}. Use a model without sliding windows."
        )


def _default_layer_types(fields: Mapping[str, Any], num_layers: int) -> list[str]:
    """Qwen3's rule where config.json does not list them: from layer `max_window_layers` on there is a window."""
    first = int(fields.get("max_window_layers", 28)) if fields.get("use_sliding_window") else num_layers
    return [_FULL_ATTENTION] * min(first, num_layers) + ["sliding_attention"] * max(num_layers - first, 0)


def _size(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or value < 1:
        raise ValueError(
            f"model.path: its config.json has {name} {value!r}, which must be a whole number above 0."
            " Give the folder of a whole Hugging Face checkpoint."
        )
    return value


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


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers 5 calls `rope_parameters`, from a config.json of any generation (`rope_scaling`)."""
    rope = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    rope.setdefault("rope_theta", fields.get("rope_theta", 10000.0))
    kind = rope.setdefault("rope_type", rope.pop("type", "default"))
    if kind not in ROPE_FACTORS:
        raise ValueError(
            f"model.path: its config.json has rope_type {kind!r}, but the torch trainer knows"
            f" {', '.join(ROPE_FACTORS)}. Use a model with one of these."
        )
    partial = rope.pop("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ValueError(
            f"model.path: its config.json has partial_rotary_factor {partial!r}, but the torch trainer and engine turn"
            " whole heads. Use a model whose factor is 1."
        )
    for name in ("rope_theta", *ROPE_FACTORS[kind]):
        if not isinstance(rope.get(name), int | float):
            raise ValueError(
                f"model.path: its config.json has {name} {rope.get(name)!r}, which rope_type {kind!r} needs as a"
                " number. Give the config.json that belongs to the weights."
            )
    if kind in ("llama3", "yarn"):
        trained = rope.get("original_max_position_embeddings", fields["max_position_embeddings"])
        rope["original_max_position_embeddings"] = fields.get("original_max_position_embeddings", trained)
    return rope


def _token_ids(given: int | list[int] | None) -> frozenset[int]:
    """A checkpoint may name several tokens that end a sequence."""
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, list) else [given])
