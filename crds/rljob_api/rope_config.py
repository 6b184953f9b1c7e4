"""What config.json says of the rotary embeddings: their kind, their base and what that kind must be told.

For `decoder_config`. Pure; `rotary` computes with it. Takes nulls as transformers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rljob_api.config_fields import flag, mapping, misfit, number

if TYPE_CHECKING:
    from collections.abc import Mapping

ROPE_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}
"""Kinds of rotary embeddings whose frequencies do not change with the length, and what each must be told.

Of yarn there is more to say: `_check_yarn`.
"""

_YARN_NUMBERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""What yarn may be told; it has values of its own for what is null or 0."""

_TRAINED_LENGTH = "original_max_position_embeddings"


def read_rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers 5 calls `rope_parameters`, from a config.json of any generation (`rope_scaling`)."""
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
    """Takes out both names that a kind has had. Where nothing is said of it, it is the default."""
    said = [rope.pop(name) for name in ("rope_type", "type") if name in rope]
    kind = next((name for name in said if name is not None), None) if said else "default"
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
