"""Which models the backend Fsdp computes: families that were held against transformers' own numbers, packed.

A row of the table is there because tests have it. What is not in it may be right or wrong without an error, so it is
refused, or runs padded, with nothing of this project in its forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES: Mapping[str, str] = {
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3 with experts; its files have a tensor for each expert",
    "llama": "Llama 2 and 3, with 3's scaled rotary embedding",
    "mistral": "Mistral, with its sliding window",
    "gemma2": "Gemma 2, with capped scores and logits",
    "gemma3_text": "Gemma 3, the models of text alone",
}
"""model_type -> what it is."""

_ROTARY_BY_LONGEST_ROW = ("dynamic", "longrope")
"""Rotary embeddings whose angles depend on the longest row of a batch."""


def check_config(config: PretrainedConfig, *, packing: bool) -> None:
    """ValueError, with the field that can be changed, where nothing here computes this model right."""
    if packing and config.model_type not in FAMILIES:
        raise ValueError(
            f"model.path: its config.json has model_type {config.model_type!r}, and packed rows are known to be right"
            f" for {', '.join(FAMILIES)} only. Set training.packing: Off, which computes its rows padded instead."
        )
    if getattr(config, "use_bidirectional_attention", None):
        raise ValueError(
            "model.path: its config.json has use_bidirectional_attention, but a policy is asked for each next token"
            " by what stands before it. Give a causal language model."
        )
    for kind in _rotary_kinds(getattr(config, "rope_parameters", None)):
        if kind in _ROTARY_BY_LONGEST_ROW:
            raise ValueError(
                f"model.path: its config.json has rope_type {kind!r}, whose angles depend on the longest row of a"
                " batch, so that a row's log-probs would depend on its neighbours. Give a model with another one."
            )


def _rotary_kinds(parameters: Any) -> Iterator[str]:  # noqa: ANN401 -- as config.json has it
    """Of a model, or of each kind of its layers."""
    if isinstance(parameters, Mapping):
        kind = parameters.get("rope_type")
        if isinstance(kind, str):
            yield kind
        for inner in parameters.values():
            yield from _rotary_kinds(inner)
