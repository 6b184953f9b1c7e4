"""Log-probs of a simulated policy, micro-batch by micro-batch; for actor_fwd, the reference, and the trainer's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rljob_workers.simulation.policy import fingerprint, log_probs, places, read_simulated
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, no_progress
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rljob_workers.simulation.pace import SimulatedPace
    from rljob_workers.simulation.policy import Words


@dataclass(frozen=True, slots=True)
class SimForward:
    """A forward pass: what it is of, how it is cut, and what it takes."""

    vocab_size: int
    limits: MicroBatchLimits
    pace: SimulatedPace

    def log_probs(
        self,
        weights: Words,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None],
    ) -> Jagged:
        """Of every response token."""
        parts = []
        for rows in cut(tokens.lengths, response_lengths, self.limits):
            self.pace.spend(tokens=num_tokens(tokens, rows), rows=rows.stop - rows.start, progress=progress)
            parts.append(self._of(weights, tokens, response_lengths, rows, temperature))
            progress()
        found = np.concatenate(parts) if parts else np.zeros(0)
        return Jagged.from_lengths(torch.from_numpy(found.astype(np.float32)), response_lengths)

    def _of(
        self, weights: Words, tokens: Jagged, response_lengths: torch.Tensor, rows: RowRange, temperature: float
    ) -> np.typing.NDArray[np.float64]:
        ends = tokens.offsets[rows.start + 1 : rows.stop + 1].numpy()
        begins = tokens.offsets[rows.start : rows.stop].numpy()
        responses = response_lengths[rows.start : rows.stop].numpy()
        # Where each response token stands, in the column and in its row.
        within = np.arange(responses.sum()) - np.repeat(responses.cumsum() - responses, responses)
        at = np.repeat(ends - responses, responses) + within
        positions = at - np.repeat(begins, responses)
        values = tokens.values.numpy().astype(np.int64)
        found = places(fingerprint(weights), values[at - 1], positions - 1, self.vocab_size)
        return log_probs(found, values[at], np.full(len(at), temperature))


def num_tokens(tokens: Jagged, rows: RowRange) -> int:
    """Prompts and responses of some rows."""
    return int(tokens.offsets[rows.stop] - tokens.offsets[rows.start])


class SimForwardModel(ForwardModel):
    """A policy that is asked only."""

    def __init__(self, forward: SimForward, weights: Words) -> None:
        self._forward = forward
        self._weights = weights

    def load(self, blob: Path) -> None:
        """Replaces the weights; ValueError, and nothing changed, where they do not fit."""
        self._weights = read_simulated(blob)

    def log_probs(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
    ) -> Jagged:
        """See the base."""
        del num_micro_batches  # nobody is met in it
        return self._forward.log_probs(self._weights, tokens, response_lengths, temperature, progress)
