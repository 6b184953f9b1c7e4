"""Whether the backend Megatron computes the model of a config.json, and whether its sizes can be laid out as wanted.

Pure. `rljob validate` asks it of each role with that backend, and a rank when it builds its part. Of `model.config` the
rules in `rljob_api.spec.laid_out_roles` say the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.training import RecomputedModule

MEGATRON_FAMILIES: Mapping[str, str] = {
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "llama": "Llama 2 and 3, with 3's scaled rotary embedding",
    "qwen3_moe": "Qwen3 with experts",
}
"""model_type in config.json -> what it is."""


_WITH_EXPERTS = "qwen3_moe"


_ROPE_TYPES = ("default", "linear", "llama3")
"""They change frequencies alone: others scale scores too, or follow the length of a row."""


_FULL_ATTENTION = ("full_attention", "attention")
"""`layer_types` of a model without windows; the second is what older files call it."""


_WANTED: Mapping[str, Mapping[str, object]] = {
    # Its projections of queries, keys and values always have a bias, and no field says so.
    "qwen2": {},
    "qwen3": {"attention_bias": False},
    "llama": {"attention_bias": False, "mlp_bias": False},
    _WITH_EXPERTS: {"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
}
"""model_type -> fields and the one value that is computed; absent or null is that value."""


_OF_ALL = {"hidden_act": "silu", "use_sliding_window": False, "partial_rotary_factor": 1.0}
"""The same for each family."""


def layout_problem(described: Mapping[str, Any], parallelism: ParallelismSpec) -> str | None:
    """Why a model cannot be computed as laid out: `backend: ...` or `parallelism.tensor: ...`; None where it can be.

    The sentence names the field below a role; the caller puts `roles.<role>.` before it. `described` is the config.json
    of a policy or of a reward model.
    """
    reason = _not_computed(described)
    if reason is not None:
        return f"backend: Megatron does not compute a model whose config.json has {reason}. Set backend to Fsdp."
    try:
        return next(_misfits(described, parallelism), None)
    except _NoSizeError as error:
        return (
            f"backend: Megatron does not compute a model whose config.json has {error}, where it needs a whole number"
            " above 0. Give the config.json that belongs to the weights."
        )


def experts_problem(described: Mapping[str, Any]) -> str | None:
    """Why `training.experts` is not for the model of this config.json; None where it has experts. Of `training`."""
    if described.get("model_type") == _WITH_EXPERTS:
        return None
    return (
        f"training.experts: needs a model with experts, and that of its config.json ({described.get('model_type')})"
        " has none. Leave experts out."
    )


def recomputed_problem(described: Mapping[str, Any], modules: Collection[RecomputedModule]) -> str | None:
    """Which of `training.recomputeModules` no layer of this config.json has; None where each is there."""
    has_experts = described.get("model_type") == _WITH_EXPERTS
    absent, other = RecomputedModule.MLP, RecomputedModule.MOE
    if not has_experts:
        absent, other = other, absent
    if absent not in modules:
        return None
    return (
        f"training.recomputeModules: has {absent}, and the layers of its config.json have"
        f" {'experts' if has_experts else 'no experts'}. Give {other} in its place."
    )


def _not_computed(described: Mapping[str, Any]) -> str | None:
    """Names the feature that is not computed, and what is, as part of a sentence."""
    family = described.get("model_type")
    if not isinstance(family, str) or family not in MEGATRON_FAMILIES:
        return f"model_type {family!r}, but those of {', '.join(MEGATRON_FAMILIES)}"
    given = described.get("rope_scaling") or described.get("rope_parameters")
    rope = given if isinstance(given, Mapping) else {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _ROPE_TYPES:
        return f"rope_type {kind!r}, but those of {', '.join(_ROPE_TYPES)}"
    fields = {**described, **{name: rope[name] for name in ("partial_rotary_factor",) if name in rope}}
    for name, wanted in {**_OF_ALL, **_WANTED[family]}.items():
        if fields.get(name) not in (None, wanted):
            return f"{name} {fields[name]!r}, but only {wanted!r}"
    layers = described.get("layer_types")
    if layers is not None and (not isinstance(layers, list) or any(one not in _FULL_ATTENTION for one in layers)):
        return f"other layer_types than {_FULL_ATTENTION[0]}"
    return None


def _misfits(described: Mapping[str, Any], own: ParallelismSpec) -> Iterator[str]:
    heads = _size(described, "num_attention_heads")
    keys = heads if described.get("num_key_value_heads") is None else _size(described, "num_key_value_heads")
    # A group of queries stays with its keys, so that tensor ranks are at most as many as these heads.
    yield from _remainder("tensor", own.tensor, "num_key_value_heads", keys)
    yield from _remainder("tensor", own.tensor, "num_attention_heads", heads)
    vocabulary = _size(described, "vocab_size")
    if own.tensor > 1 and -(-vocabulary // own.tensor) * (own.tensor - 1) >= vocabulary:
        yield (
            f"parallelism.tensor: {own.tensor} ranks leave one of them without a word of vocab_size {vocabulary} of its"
            " config.json. Give fewer."
        )
    layers, pieces = _size(described, "num_hidden_layers"), own.pipeline * own.virtual_pipeline
    if layers % pieces:
        yield (
            f"parallelism.pipeline: {own.pipeline} x virtualPipeline {own.virtual_pipeline} does not divide"
            f" num_hidden_layers {layers} of its config.json. Give numbers whose product is a divisor of {layers}."
        )
    if described["model_type"] != _WITH_EXPERTS:
        yield from _remainder("tensor", own.tensor, "intermediate_size", _size(described, "intermediate_size"))
        if own.expert * own.expert_tensor > 1:
            yield (
                f"parallelism.expert: {own.expert} x expertTensor {own.expert_tensor} needs a model with experts, and"
                f" that of its config.json ({described['model_type']}) has none. Leave both out."
            )
        return
    if own.tensor > 1 and not own.cuts_sequence:
        yield (
            f"parallelism.sequence: false has each of the tensor ranks ({own.tensor}) send all tokens to the experts of"
            f" its config.json, so that each token would come {own.tensor} times. Leave sequence out, or set tensor to"
            " 1."
        )
    # transformers 5 writes the second name.
    name = "num_experts" if described.get("num_experts") is not None else "num_local_experts"
    yield from _remainder("expert", own.expert, name, _size(described, name))
    inner = "moe_intermediate_size"
    yield from _remainder("expertTensor", own.expert_tensor, inner, _size(described, inner))


def _remainder(field: str, ranks: int, name: str, size: int) -> Iterator[str]:
    if size % ranks:
        yield (
            f"parallelism.{field}: {ranks} does not divide {name} {size} of its config.json. Give a divisor of {size}."
        )


class _NoSizeError(Exception):
    """A field is no size; its text is the field and what it has."""


def _size(described: Mapping[str, Any], name: str) -> int:
    value = described.get(name)
    if type(value) is not int or value < 1:
        raise _NoSizeError(f"{name} {value!r}")
    return value
