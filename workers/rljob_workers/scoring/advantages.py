"""The role advantages: claimed rows in, an advantage for each row or each response token out. It has no model.

Run by the assembly; formulas are `algorithms.advantages`, or the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rljob_workers.algorithms.advantages.estimator import AdvantageRows
from rljob_workers.algorithms.objective import MaskedRows
from rljob_workers.engines.base import FINISH_LENGTH
from rljob_workers.estimators import estimator_of
from rljob_workers.pipeline import COMPUTE_ADVANTAGES
from rljob_workers.rank_loop import Draining, RankParts, RowServer, idle_until_ordered
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged

if TYPE_CHECKING:
    from rljob_workers.estimators import JobEstimator
    from rljob_workers.transfer_queue.types import Batch


def advantages(batch: Batch, samples_per_prompt: int, estimator: JobEstimator) -> dict[str, Jagged]:
    """The columns that `put` takes, for a batch in any order of rows; as many rows as the estimator must see at once.

    Raises ValueError where a user's formula does not give [groups, samples] finite numbers.
    """
    order = np.argsort(batch.groups, kind="stable").tolist()
    found: dict[str, Jagged] = {}
    if estimator.of_tokens is not None:
        rows = _rows_of(batch, order, samples_per_prompt)
        for column, values in estimator.of_tokens(rows).items():
            found[column] = Jagged.from_lengths(values.float(), rows.response_lengths).select(_places_of(order))
    if estimator.reads_groups:
        rewards = batch.columns[Column.REWARDS].values[order].view(-1, samples_per_prompt)
        valid = batch.columns[Column.VALID].values[order].bool().view(-1, samples_per_prompt)
        for column, of_rows in estimator.of_groups(rewards, valid).items():
            found[column] = Jagged.scalars(of_rows[_places_of(order)])
    return found


def _places_of(order: list[int]) -> list[int]:
    """Where each row went that `order` has sorted."""
    return np.argsort(order).tolist()  # type: ignore[no-any-return]


def _rows_of(batch: Batch, order: list[int], samples_per_prompt: int) -> AdvantageRows:
    columns = batch.columns
    valid = columns[Column.VALID].values[order].bool()
    lengths = columns[Column.RESPONSE_LENGTHS].values[order]
    masks = columns[Column.LOSS_MASKS].select(order).values * valid.repeat_interleave(lengths)
    values = columns.get(Column.VALUES)
    return AdvantageRows(
        rewards=columns[Column.REWARDS].values[order].where(valid, 0.0),
        valid=valid,
        samples=samples_per_prompt,
        masks=MaskedRows(masks, lengths),
        cut_off=columns[Column.FINISH_REASONS].values[order] == FINISH_LENGTH,
        values=None if values is None else values.select(order).values,
    )


def run_advantages(rank: RankParts) -> None:
    """Serves the partitions of the epoch, oldest first, until all are done or the pod drains."""
    session, partitions = rank.session, rank.partitions
    estimator = estimator_of(rank.spec.algorithm)
    samples = rank.spec.rollout.samples_per_prompt

    def work(batch: Batch) -> None:
        with rank.timeline.span("advantages", r=batch.rollout_id, rows=len(batch.rows)):
            rank.queue.put(batch, advantages(batch, samples, estimator), weight=None)

    session.ready()
    rows = RowServer(session, rank.queue, COMPUTE_ADVANTAGES, rank.share, work, lambda: session.draining)
    try:
        rows.serve_partitions(partitions)
        idle_until_ordered(session, serve=lambda: rows.serve_again(partitions))
    except Draining:
        return
