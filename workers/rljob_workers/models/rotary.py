"""Rotary position embeddings as Qwen3 and Llama have them: the angle by which each pair of a head turns per position.

For the trainer's forward pass (the engine computes the default kind by itself). Pure.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

if TYPE_CHECKING:
    from rljob_api.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Frequencies of one model."""

    frequencies: torch.Tensor
    """[head_dim / 2] float32, radians per position."""
    scale: float
    """What cos and sin are multiplied by; 1 but for yarn."""

    def to(self, device: torch.device) -> Rotary:
        """The same on another device."""
        return Rotary(self.frequencies.to(device), self.scale)

    def cos_and_sin(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[positions, head_dim] each; both halves of a head turn alike."""
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotary_of(config: DecoderConfig) -> Rotary:
    """theta^(-2i / head_dim) for pair i, scaled by the model's `rope_type`."""
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        return Rotary(1.0 / (rope["rope_theta"] ** exponents), 1.0)
    fields = ("rope_parameters", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings")
    described = PreTrainedConfig(**{field: deepcopy(getattr(config, field)) for field in fields})
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](described)
    return Rotary(frequencies, scale)
