"""The shape of a decoder: what the kernels need of a Hugging Face config, and what they refuse.

Pure. Called once, when the server starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SUPPORTED = ("qwen3", "llama")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and constants of one decoder-only model."""

    has_qk_norm: bool
    """Qwen3 normalises every query and key head; Llama does not."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    """Longest prompt + output, in tokens."""
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    dtype: torch.dtype

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cell_bytes(self) -> int:
        """Bytes of KV cache that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def geometry_of(config: PretrainedConfig, dtype: torch.dtype) -> Geometry:
    """Reads the geometry; a config that the kernels would compute wrongly is refused with a sentence."""
    _refuse_unsupported(config)
    heads = int(config.num_attention_heads)
    return Geometry(
        has_qk_norm=config.model_type == "qwen3",
        num_layers=int(config.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        intermediate_size=int(config.intermediate_size),
        num_heads=heads,
        num_kv_heads=int(config.num_key_value_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocab_size=int(config.vocab_size),
        max_positions=int(config.max_position_embeddings),
        norm_eps=float(config.rms_norm_eps),
        rope_theta=float(config.rope_parameters["rope_theta"]),
        tied_embeddings=bool(config.tie_word_embeddings),
        dtype=dtype,
    )


def _refuse_unsupported(config: PretrainedConfig) -> None:
    """Raises ValueError for what would otherwise give wrong logits without a word."""
    if config.model_type not in _SUPPORTED:
        raise ValueError(
            f"model_type: {config.model_type!r} is not computed by the torch engine, only {' and '.join(_SUPPORTED)}. "
            "Choose such a model or another engine."
        )
    rope_type = config.rope_parameters.get("rope_type", "default")
    if rope_type != "default":
        raise ValueError(
            f"rope_parameters.rope_type: {rope_type!r} is not computed by the torch engine, only 'default'. "
            "Choose a model without rope scaling or another engine."
        )
    for field in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(config, field, False):
            raise ValueError(
                f"{field}: true is not computed by the torch engine. Choose a model without it or another engine."
            )
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act: {config.hidden_act!r} is not computed by the torch engine, only 'silu'.")
