"""Which rows and tokens of a batch are learnt from, and the batch as the trainers of policy and critic take it.

For the loops that train. Pure. Rows that nothing is learnt from stay in the batch, masked: what ranks are dealt is
fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Truncated
from rljob_workers.algorithms.advantages.estimator import broadcast_to_tokens
from rljob_workers.algorithms.losses import masks_of_rows
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows
from rljob_workers.training.step_metrics import is_truncated
from rljob_workers.transfer_queue.types import Batch


@dataclass(frozen=True, slots=True)
class LearntTokens:
    """The part of its rows that a job learns from; `critic_rows` says which of it a critic takes."""

    truncated: Truncated
    """Whether anything is learnt from samples that were cut off."""
    max_age: int | None
    """Tokens whose version is further behind the rollout than this are context alone. None: the queue takes no sample
    that has one."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> LearntTokens:
        """Of a job: where groups are carried on, a sample may have tokens that are older than the bound."""
        return cls(spec.algorithm.truncated, spec.rollout.max_staleness if spec.rollout.carries else None)

    def rows(self, batch: Batch) -> torch.Tensor:
        """Which rows have a token that is learnt from, [rows] bool."""
        masks = self.masks(batch)
        learnt_before = torch.cat((torch.zeros(1, dtype=torch.int64), masks.values.cumsum(0)))
        return learnt_before[masks.offsets].diff() > 0

    def masks(self, batch: Batch, passed: torch.Tensor | None = None) -> Jagged:
        """The loss masks of the batch without what nothing is learnt from; `passed`: see `train_rows`."""
        learnt = self._samples(batch)
        return self.of_samples(batch, learnt if passed is None else learnt & passed)

    def of_samples(self, batch: Batch, chosen: torch.Tensor) -> Jagged:
        """The loss masks of the chosen samples, [rows] bool, without tokens that are too old."""
        masks = batch.columns[Column.LOSS_MASKS]
        values = masks_of_rows(masks.values, masks.offsets.diff(), chosen)
        if self.max_age is not None:
            values = values * made_since(batch, batch.rollout_id - self.max_age).values
        return Jagged(values, masks.offsets)

    def _samples(self, batch: Batch) -> torch.Tensor:
        """From which something may be learnt, whatever the age of their tokens, [rows] bool."""
        learnt = batch.columns[Column.VALID].values.bool()
        if self.truncated is Truncated.MASK:
            learnt = learnt & ~is_truncated(batch)
        if Column.HAS_VARIANCE in batch.columns:  # only in jobs that leave groups without it out
            learnt = learnt & batch.columns[Column.HAS_VARIANCE].values.bool()
        return learnt


def train_rows(
    batch: Batch, learnt: LearntTokens, log_probs: Jagged | None = None, passed: torch.Tensor | None = None
) -> TrainRows:
    """The batch as a trainer takes it; `log_probs` are the proximal ones where they are no column of it.

    `passed`, [rows] bool: not those that the job's filter leaves out; None: it has none.
    Of what has one advantage a row each token gets it: an objective knows those of tokens alone.
    """
    columns = {column: batch.columns[column] for column in Column if column in batch.columns}
    if (of_rows := columns.pop(Column.ROW_ADVANTAGES, None)) is not None:
        lengths = columns[Column.RESPONSE_LENGTHS].values
        columns[Column.ADVANTAGES] = Jagged.from_lengths(broadcast_to_tokens(of_rows.values, lengths), lengths)
    if log_probs is not None:
        columns.setdefault(Column.LOG_PROBS, log_probs)
    columns[Column.LOSS_MASKS] = learnt.masks(batch, passed)
    # No version is newer than that of the rollout.
    columns[Column.IS_CURRENT] = made_since(batch, batch.rollout_id)
    return TrainRows(columns, torch.from_numpy(batch.rows.astype(np.int64)))


def critic_rows(batch: Batch, learnt: LearntTokens) -> TrainRows:
    """The batch as a critic takes it: it learns from each token within the bound, drawn in a sample with a score.

    Samples that the policy leaves out (answers that were cut off, groups without variance) have returns all the same.
    Left out here, the value of a beginning would be expected of those answers alone that the policy learns from: of a
    beginning that mostly runs to the limit, what the few that ended have got.
    """
    columns = {column: batch.columns[column] for column in Column if column in batch.columns}
    columns[Column.LOSS_MASKS] = learnt.of_samples(batch, batch.columns[Column.VALID].values.bool())
    return TrainRows(columns, torch.from_numpy(batch.rows.astype(np.int64)))


def made_since(batch: Batch, version: int) -> Jagged:
    """Which response tokens were drawn by this version or a later one: [tokens] uint8."""
    spans, lengths = batch.columns[Column.VERSION_SPANS], batch.columns[Column.RESPONSE_LENGTHS].values
    first_of_row = (lengths.cumsum(0) - lengths).repeat_interleave(spans.lengths)
    _, versions, starts, ends = spans.values.long().unbind(1)
    chosen = versions >= version
    borders = torch.zeros(int(lengths.sum()) + 1, dtype=torch.int64)
    borders.index_add_(0, (first_of_row + starts)[chosen], torch.ones(int(chosen.sum()), dtype=torch.int64))
    borders.index_add_(0, (first_of_row + ends)[chosen], -torch.ones(int(chosen.sum()), dtype=torch.int64))
    return Jagged.from_lengths(borders.cumsum(0)[:-1].to(torch.uint8), lengths)
