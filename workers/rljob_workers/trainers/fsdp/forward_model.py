"""Log-probs by a whole model of transformers, for actor_fwd and the reference: `ForwardModel` on one rank.

The pass is that of the trainer's sharded model, so that both see the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, no_progress
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs, rows_between
from rljob_workers.trainers.fsdp.loading import load_folder
from rljob_workers.trainers.fsdp.scoring import score
from rljob_workers.trainers.micro_batches import MicroBatchLimits, cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel


class FsdpForwardModel(ForwardModel):
    """A model that only computes log-probs; as a trainer's sharded one, with nothing sharded."""

    def __init__(self, model: PreTrainedModel, *, limits: MicroBatchLimits, packing: bool) -> None:
        """`model` is a whole one (`building.build_whole`); its weights need not be set yet."""
        self._model = model.requires_grad_(False)
        self._limits = limits
        self._inputs = joined_inputs if packing else padded_inputs

    def load(self, blob: Path) -> None:
        """Replaces all weights by those of a safetensors file or folder, or none."""
        load_folder(self._model, blob)

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
        parts = [torch.zeros(0)]
        with torch.no_grad():
            for part in cut(tokens.lengths, response_lengths, self._limits):
                chosen = rows_between(tokens, part.start, part.stop)
                inputs = self._inputs(chosen, response_lengths[part.start : part.stop], self._model.device)
                parts.append(score(self._model, inputs, temperature)[0].float().cpu())
                progress()
        return Jagged.from_lengths(torch.cat(parts), response_lengths)
