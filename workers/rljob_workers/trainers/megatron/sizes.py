"""The sizes of a decoder, as its config.json has them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Of the whole model."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    """Of keys and values; each serves `heads` / `key_heads` of the queries, its group."""
    head_width: int
    inner: int
    """Width of the feed-forward part of a layer without experts."""
    vocabulary: int
    is_tied: bool
    """Whether the head is the embedding."""
    has_value_head: bool = False
    """Whether it gives one value for each token, in place of logits."""
    experts: int = 0
    """Of each layer; 0: one feed-forward part."""
    expert_inner: int = 0


def sizes_of(config: PretrainedConfig, *, has_value_head: bool = False) -> DecoderSizes:
    """Of transformers' config of a policy, or of a critic with its backbone."""
    return DecoderSizes(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        is_tied=bool(config.tie_word_embeddings) and not has_value_head,
        has_value_head=has_value_head,
        experts=getattr(config, "num_experts", 0) or 0,
        expert_inner=getattr(config, "moe_intermediate_size", 0) or 0,
    )


def padded_vocabulary(vocabulary: int, tensor: int) -> int:
    """Rows of an embedding that `tensor` ranks hold, equally many each."""
    return -(-vocabulary // tensor) * tensor
