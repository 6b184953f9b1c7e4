"""Log-probs by torch, for actor_fwd and the reference: `ForwardModel` on a `Decoder`.

The trainer uses the functions here for its own forward passes, so that both see the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.devices import HOST
from rljob_workers.models.blob import read_weights
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, no_progress
from rljob_workers.trainers.decoder import Decoder
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rljob_api.decoder_config import DecoderConfig


class TorchForwardModel(ForwardModel):
    """A decoder that only computes log-probs."""

    def __init__(
        self,
        model: DecoderConfig,
        *,
        dtype: torch.dtype,
        limits: MicroBatchLimits,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`head_dtype` is that of logits, where it is wider than `dtype`."""
        self._decoder = Decoder(model, storage=dtype, compute=dtype, head_dtype=head_dtype, device=device)
        self._limits = limits

    def load(self, blob: Path) -> None:
        """Replaces all weights by those of a safetensors file, or none."""
        load_weights(self._decoder, blob)

    def log_probs(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
    ) -> Jagged:
        """Log pi of every response token, micro-batch by micro-batch."""
        del num_micro_batches  # nobody is met in a forward pass
        return forward_log_probs(self._decoder, tokens, response_lengths, temperature, self._limits, progress)


def row_log_probs(
    decoder: Decoder, tokens: Jagged, response_lengths: torch.Tensor, rows: RowRange, temperature: float
) -> torch.Tensor:
    """Log pi of the response tokens of `rows`, [tokens], on the decoder's device; with a graph if gradients are on."""
    plan = pack(tokens.values, tokens.offsets[rows.start : rows.stop + 1], response_lengths[rows.start : rows.stop])
    return decoder.log_probs(tokens.values, plan, temperature)


def forward_log_probs(
    decoder: Decoder,
    tokens: Jagged,
    response_lengths: torch.Tensor,
    temperature: float,
    limits: MicroBatchLimits,
    progress: Callable[[], None] = no_progress,
) -> Jagged:
    """Log pi of every response token of a slice, on the host, without a graph."""
    parts = []
    with torch.no_grad():
        for rows in cut(tokens.lengths, response_lengths, limits):
            parts.append(row_log_probs(decoder, tokens, response_lengths, rows, temperature))
            progress()
    return Jagged.from_lengths(torch.cat(parts).cpu(), response_lengths)


def load_weights(decoder: Decoder, blob: Path) -> None:
    """Copies a file or folder of weights into the decoder; ValueError, and nothing changed, where they do not fit."""
    decoder.load(read_weights(blob), source=str(blob))
