"""Log-probs: the response tokens of a batch under the weights that a forward model holds.

Called by the actor_fwd loop (current policy) and the reference loop (reference policy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rljob_workers import pipeline
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, no_progress
from rljob_workers.transfer_queue.types import Batch


@dataclass(frozen=True, slots=True)
class LogProbsStage:
    """Writes `field` for each row of a batch."""

    model: ForwardModel
    field: str
    temperature: float
    """That of sampling, so that ratios compare the same distribution."""

    def run(self, batch: Batch, progress: Callable[[], None] = no_progress) -> dict[str, Jagged]:
        """The column that `put` takes: float32 over response tokens. `progress` is called after every micro-batch."""
        tokens, response_lengths = batch.columns[pipeline.TOKENS], batch.columns[pipeline.RESPONSE_LENGTHS].values
        return {self.field: self.model.log_probs(tokens, response_lengths, self.temperature, progress)}
