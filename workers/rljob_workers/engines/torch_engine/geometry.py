"""The shape of a decoder: what the kernels need of its config, and what they refuse.

Pure. Called once, when the server starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.spec import Architecture
from rljob_workers.devices import HOST
from rljob_workers.models.layout import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rljob_api.decoder_config import DecoderConfig


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
    head_dtype: torch.dtype
    """Of logits, and of the head that makes them, which is held in it."""
    device: torch.device
    """Where weights and cache are and the passes run. Prompts and parameters come from the host, tokens go to it."""
    tensors: Mapping[str, tuple[int, ...]]
    """Hugging Face name -> shape of every tensor that a weight file must hold."""

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cell_bytes(self) -> int:
        """Bytes of KV cache that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def geometry_of(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device = HOST, head_dtype: torch.dtype | None = None
) -> Geometry:
    """Reads the geometry; a config that the kernels would compute wrongly is refused with a sentence.

    Logits are in `dtype` where there is no `head_dtype`.
    """
    _refuse_unsupported(config)
    return Geometry(
        has_qk_norm=config.architecture is Architecture.QWEN3,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        tied_embeddings=config.tie_word_embeddings,
        dtype=dtype,
        head_dtype=head_dtype or dtype,
        device=device,
        tensors=tensor_shapes(config),
    )


def _refuse_unsupported(config: DecoderConfig) -> None:
    """Raises ValueError for what would otherwise give wrong logits without a word."""
    rope_type = config.rope_parameters["rope_type"]
    if rope_type != "default":
        raise ValueError(
            f"rope_parameters.rope_type: {rope_type!r} is not computed by the torch engine, only 'default'. "
            "Choose a model without rope scaling or another engine."
        )
    for field, has_bias in (("attention_bias", config.attention_bias), ("mlp_bias", config.mlp_bias)):
        if has_bias:
            raise ValueError(
                f"{field}: true is not computed by the torch engine. Choose a model without it or another engine."
            )
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act: {config.hidden_act!r} is not computed by the torch engine, only 'silu'.")
