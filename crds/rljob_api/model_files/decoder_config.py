"""The fields of config.json that trainer and engine compute with, read and checked: decoder and rotary embeddings.

Model building, trainers, engines and the command line call it. Knows no weights. It does not use the config classes of
transformers: making one for Llama imports all of its modeling code, at a cost in every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.spec.model import Architecture


def whole_number(fields: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A whole number of at least `least`, which is 0 or 1."""
    value = fields.get(name)
    if type(value) is not int or value < least:
        raise misfit(name, value, f"a whole number {'above 0' if least else 'of at least 0'}")
    return value


def number(fields: Mapping[str, Any], name: str, *, may_be_zero: bool = False, purpose: str = "") -> int | float:
    """A finite number above 0, as it is written; `purpose` names in the sentence what it is needed for."""
    value = fields.get(name)
    is_zero = may_be_zero and value == 0
    # Asked for what is right, since nothing is above or below NaN, which Python reads from JSON as a number.
    if isinstance(value, int | float) and not isinstance(value, bool) and (is_zero or 0 < value < math.inf):
        return value
    raise misfit(name, value, f"a number {'of at least 0' if may_be_zero else 'above 0'}{purpose}")


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    value = fields.get(name)
    if not isinstance(value, bool):
        raise misfit(name, value, "true or false")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """A text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise misfit(name, value, "a text")
    return value


def mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A JSON object; null is an empty one."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise misfit(name, value, "an object or null")
    return value


def misfit(name: str, value: object, wanted: str) -> ValueError:
    """The error for a field whose value is not `wanted`."""
    return ValueError(
        f"model.path: its config.json has {name} {value!r}, which must be {wanted}."
        " Give the config.json that belongs to the weights."
    )


ROPE_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}
"""Kinds of rotary embeddings whose frequencies do not change with the length, and the parameters that each needs.

`_check_yarn` has the rest of yarn.
"""


_YARN_NUMBERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Optional parameters of yarn; it has values of its own for what is null or 0."""


_TRAINED_LENGTH = "original_max_position_embeddings"


def read_rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Makes `rope_parameters`, as transformers 5 names them, from a config.json of any generation (`rope_scaling`)."""
    given = mapping(fields, "rope_scaling") or mapping(fields, "rope_parameters")
    rope = {"rope_theta": fields.get("rope_theta", 10000.0), **given}
    kind = rope["rope_type"] = _take_kind(rope)
    _refuse_partial(rope.pop("partial_rotary_factor", None), fields.get("partial_rotary_factor"))
    for name in ("rope_theta", *ROPE_FACTORS[kind]):
        number(rope, name, purpose=f" for rope_type {kind!r}")
    if kind in ("llama3", "yarn"):
        length = fields if _TRAINED_LENGTH in fields else {_TRAINED_LENGTH: fields["max_position_embeddings"], **rope}
        rope[_TRAINED_LENGTH] = number(length, _TRAINED_LENGTH, purpose=f" for rope_type {kind!r}")
    if kind == "yarn":
        _check_yarn(rope)
    return rope


def _take_kind(rope: dict[str, Any]) -> str:
    """Takes out both names that a kind has had. Without either, it is the default."""
    given = [rope.pop(name) for name in ("rope_type", "type") if name in rope]
    kind = next((name for name in given if name is not None), None) if given else "default"
    if not isinstance(kind, str) or kind not in ROPE_FACTORS:
        raise ValueError(
            f"model.path: its config.json has rope_type {kind!r}, but the torch trainer knows"
            f" {', '.join(ROPE_FACTORS)}. Use a model with one of these."
        )
    return kind


def _refuse_partial(*factors: object) -> None:
    for factor in factors:
        if factor is not None and factor != 1.0:
            raise ValueError(
                f"model.path: its config.json has partial_rotary_factor {factor!r}, but the torch trainer and engine"
                " turn whole heads. Use a model whose factor is 1."
            )


def _check_yarn(rope: Mapping[str, Any]) -> None:
    """Its factor must be written, but null is one: the ratio of the longest sequence to the length it is trained for.

    transformers reads no file where it is not written, so a checkpoint of such a model could not be loaded by it.
    """
    if "factor" not in rope:
        raise misfit("rope_type", "yarn", "said with a factor, a number above 0 or null")
    if rope["factor"] is not None:
        number(rope, "factor", purpose=" or null for rope_type 'yarn'")
    for name in _YARN_NUMBERS:
        if rope.get(name) is not None:
            number(rope, name, may_be_zero=True, purpose=" or null for rope_type 'yarn'")
    if rope.get("truncate") is not None:
        flag(rope, "truncate")


MODEL_TYPES = {"llama": Architecture.LLAMA, "qwen3": Architecture.QWEN3}
"""`model_type` in config.json of the decoders that trainer and engine compute."""


_DEFAULTS: dict[Architecture, dict[str, Any]] = {
    Architecture.LLAMA: {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
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
"""Values of transformers where config.json is silent. null is no silence: it is taken where a value is derived."""


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
"""An old name, which transformers reads as the same."""


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
    """`rope_type`, `rope_theta` and the parameters that this type needs."""
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
