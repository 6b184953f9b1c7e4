"""What is trained on: claimed rows as a trainer takes them, their masks, and the facts and sums of a rollout.

Used by the training loop and its reports. Pure: waits for nothing, and knows no trainer beyond its base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from rljob_api.spec.algorithm import Truncated
from rljob_workers import pipeline
from rljob_workers.algorithms.losses import masks_of_rows
from rljob_workers.engines.base import FINISH_LENGTH
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import OptimizerStepResult, TrainRows
from rljob_workers.transfer_queue.types import Batch


def train_rows(batch: Batch, truncated: Truncated, log_probs: Jagged | None = None) -> TrainRows:
    """The batch as a trainer takes it; `log_probs` are the proximal ones where they are no column of it.

    Rows that nothing may be learnt from stay in it, masked: what ranks are dealt is fixed.
    """
    columns = batch.columns
    return TrainRows(
        tokens=columns[pipeline.TOKENS],
        response_lengths=columns[pipeline.RESPONSE_LENGTHS].values,
        loss_masks=loss_masks(batch, truncated),
        log_probs=columns.get(pipeline.LOG_PROBS, log_probs),
        rollout_log_probs=columns[pipeline.ROLLOUT_LOG_PROBS],
        advantages=columns[pipeline.ADVANTAGES],
        ref_log_probs=columns.get(pipeline.REF_LOG_PROBS),
        row_numbers=torch.from_numpy(batch.rows.astype(np.int64)),
    )


def loss_masks(batch: Batch, truncated: Truncated) -> Jagged:
    """The masks of the batch, with 0 throughout the rows that nothing may be learnt from."""
    masks = batch.columns[pipeline.LOSS_MASKS]
    learnt = batch.columns[pipeline.VALID].values.bool()
    if truncated is Truncated.MASK:
        learnt = learnt & ~_is_truncated(batch)
    return Jagged(masks_of_rows(masks.values, masks.lengths, learnt), masks.offsets)


def _is_truncated(batch: Batch) -> torch.Tensor:
    return batch.columns[pipeline.FINISH_REASONS].values == FINISH_LENGTH


FACTS = ("row", "group", "oldest_version", "reward", "response_length", "valid", "truncated", "token_staleness")
"""Columns of `slice_facts`; float64 holds every one of them exactly. `token_staleness` is summed over the row's tokens:
rollout id minus the version that made each."""


def slice_facts(batch: Batch) -> torch.Tensor:
    """[rows, 8] float64, columns as in FACTS: what rank 0 must know of every rank's rows."""
    columns = (
        torch.from_numpy(batch.rows.astype(np.float64)),
        torch.from_numpy(batch.groups.astype(np.float64)),
        torch.from_numpy(batch.oldest_versions.astype(np.float64)),
        batch.columns[pipeline.REWARDS].values.double(),
        batch.columns[pipeline.RESPONSE_LENGTHS].values.double(),
        batch.columns[pipeline.VALID].values.double(),
        _is_truncated(batch).double(),
        _token_staleness(batch),
    )
    return torch.stack(columns, dim=1)


def _token_staleness(batch: Batch) -> torch.Tensor:
    """[rows] float64."""
    spans = batch.columns[pipeline.VERSION_SPANS]
    _, versions, starts, ends = spans.values.double().unbind(1)
    row_of_span = torch.arange(len(spans)).repeat_interleave(spans.lengths)
    of_spans = (batch.rollout_id - versions) * (ends - starts)
    return torch.zeros(len(spans), dtype=torch.float64).index_add_(0, row_of_span, of_spans)


@dataclass(slots=True)
class RolloutTally:
    """What is known of the rollout in training, summed up as its optimizer steps pass."""

    facts: list[torch.Tensor] = field(default_factory=list)
    """[rows, 8] of every first-pass slice of every rank."""
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    skipped_steps: int = 0

    def add_step(self, result: OptimizerStepResult) -> None:
        """Adds the loss of every optimizer step and the metrics of the last that was taken."""
        if result.skipped is not None:
            self.skipped_steps += 1
            return
        self.losses.append(result.loss)
        self.metrics = {**result.metrics, "grad_norm": result.grad_norm}

    def summary(self) -> RolloutSummary:
        """The rollout in numbers; all its slices must have been added."""
        facts = torch.cat(self.facts)
        _, _, oldest, rewards, lengths, valid, truncated, staleness = facts.unbind(1)
        skipped = {"skipped_steps": float(self.skipped_steps)} if self.skipped_steps else {}
        shares = {
            "response_length": float(lengths.mean()),
            "invalid_share": 1.0 - float(valid.mean()),
            "truncated_share": float(truncated.mean()),
            "token_staleness": float(staleness.sum() / lengths.sum().clamp(min=1.0)),
        }
        return RolloutSummary(
            samples=len(facts),
            tokens=int(lengths.sum()),
            reward=float((rewards * valid).sum() / valid.sum().clamp(min=1.0)),
            oldest_version=int(oldest.min()),
            loss=sum(self.losses) / max(1, len(self.losses)),
            metrics={**self.metrics, **skipped, **shares},
        )


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """One trained rollout."""

    samples: int
    tokens: int
    """Response tokens."""
    reward: float
    """Mean over the valid samples."""
    oldest_version: int
    loss: float
    """Mean over the optimizer steps that were taken; 0 where all were skipped."""
    metrics: Mapping[str, float]
