"""Which models the backend Fsdp computes: families that were held against transformers' own numbers, packed.

A row of the table is there because tests of the workers have it. What is not in it may be right or wrong without an
error, so it is shown right on a small twin before it trains (`family_proofs`), or refused. Pure: asked by the command
line before a start, and by who builds the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FAMILIES: Mapping[str, str] = {
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3 with experts; its files have a tensor for each expert",
    "llama": "Llama 2 and 3, with 3's scaled rotary embedding",
    "mistral": "Mistral, with its sliding window",
    "gemma2": "Gemma 2, with capped scores and logits",
    "gemma3_text": "Gemma 3, the models of text alone",
}
"""model_type in config.json -> what it is."""

_ROTARY_BY_LONGEST_ROW = ("dynamic", "longrope")
"""Rotary embeddings whose angles depend on the longest row of a batch."""


def family_problem(described: Mapping[str, Any]) -> str | None:
    """Why nothing here computes the model of this config.json right, whatever its family; else None."""
    if not isinstance(described.get("model_type"), str):
        return (
            f"model.path: its config.json has model_type {described.get('model_type')!r}, which is no name of a family."
            " Give a causal language model as transformers saves it."
        )
    if described.get("use_bidirectional_attention"):
        return (
            "model.path: its config.json has use_bidirectional_attention, but a policy is asked for each next token"
            " by what stands before it. Give a causal language model."
        )
    for field in ("rope_parameters", "rope_scaling"):
        for rotary in _rotary_kinds(described.get(field)):
            if rotary in _ROTARY_BY_LONGEST_ROW:
                return (
                    f"model.path: its config.json has the rotary embedding {rotary!r}, whose angles depend on the"
                    " longest row of a batch, so that a row's log-probs would depend on its neighbours. Give a model"
                    " with another one."
                )
    return None


def _rotary_kinds(parameters: object) -> Iterator[str]:
    """Of a model, or of each kind of its layers; older files call it `type`."""
    if isinstance(parameters, Mapping):
        for name in ("rope_type", "type"):
            if isinstance(parameters.get(name), str):
                yield parameters[name]
        for inner in parameters.values():
            yield from _rotary_kinds(inner)
