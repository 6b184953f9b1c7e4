"""The role advantages: claimed rows in, an advantage for each row or each response token out. It has no model.

Run by the assembly; formulas are `algorithms.advantages`, or the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rljob_workers.algorithms.advantages.estimator import AdvantageRows
from rljob_workers.algorithms.objective import MaskedRows
from rljob_workers.engines.base import FINISH_LENGTH
from rljob_workers.estimators import estimator_of, has_variance
from rljob_workers.pipeline import COMPUTE_ADVANTAGES
from rljob_workers.rank_loop import Draining, RankParts, RowServer, idle_until_ordered
from rljob_workers.run_inputs import report_inputs
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged

if TYPE_CHECKING:
    import torch

    from rljob_workers.estimators import JobEstimator, KlPenalty
    from rljob_workers.transfer_queue.types import Batch


def advantages(batch: Batch, samples_per_prompt: int, estimator: JobEstimator) -> dict[str, Jagged]:
    """The columns that `put` takes, for a batch in any order of rows; as many rows as the estimator must see at once.

    Raises ValueError where a user's formula does not give [groups, samples] finite numbers.
    """
    order = np.argsort(batch.groups, kind="stable").tolist()
    places = np.argsort(order).tolist()  # where each row went
    rewards = batch.columns[Column.REWARDS].values[order]
    valid = batch.columns[Column.VALID].values[order].bool()
    baselines = None if estimator.of_baselines is None else batch.columns[Column.BASELINES].values[order]
    found: dict[str, Jagged] = {}
    if estimator.finds_variance:
        of_rows = has_variance(rewards, valid, samples_per_prompt, baselines)
        found[Column.HAS_VARIANCE] = Jagged.scalars(of_rows[places])
    rows = None
    if estimator.of_tokens is not None or estimator.penalty is not None:
        rows = _rows_of(batch, order, samples_per_prompt, estimator.penalty)
    if estimator.penalty is not None:
        assert rows is not None, "made above"
        penalties = rows.penalty_sums()
        found[Column.REWARD_KL] = Jagged.scalars((penalties / estimator.penalty.coefficient)[places])
        rewards = rows.rewards - penalties
    if estimator.of_tokens is None:
        of_rows = estimator.of_samples(rewards, valid, samples_per_prompt, baselines)
        found[Column.ROW_ADVANTAGES] = Jagged.scalars(of_rows[places])
    else:
        assert rows is not None, "made above"
        for column, values in estimator.of_tokens(rows).items():
            found[column] = Jagged.from_lengths(values.float(), rows.response_lengths).select(places)
    return found


def _rows_of(batch: Batch, order: list[int], samples_per_prompt: int, penalty: KlPenalty | None) -> AdvantageRows:
    columns = batch.columns
    valid = columns[Column.VALID].values[order].bool()
    lengths = columns[Column.RESPONSE_LENGTHS].values[order]

    def sorted_values(column: Column) -> torch.Tensor:
        return columns[column].select(order).values

    log_probs = ref_log_probs = penalties = None
    if Column.REF_LOG_PROBS in columns:
        before = Column.LOG_PROBS if Column.LOG_PROBS in columns else Column.ROLLOUT_LOG_PROBS
        log_probs, ref_log_probs = sorted_values(before), sorted_values(Column.REF_LOG_PROBS)
        if penalty is not None:
            penalties = penalty.coefficient * penalty.estimate(log_probs, ref_log_probs)
    return AdvantageRows(
        rewards=columns[Column.REWARDS].values[order].where(valid, 0.0),
        valid=valid,
        samples=samples_per_prompt,
        masks=MaskedRows(sorted_values(Column.LOSS_MASKS) * valid.repeat_interleave(lengths), lengths),
        cut_off=columns[Column.FINISH_REASONS].values[order] == FINISH_LENGTH,
        values=sorted_values(Column.VALUES) if Column.VALUES in columns else None,
        log_probs=log_probs,
        ref_log_probs=ref_log_probs,
        penalties=penalties,
    )


def run_advantages(rank: RankParts) -> None:
    """Serves the partitions of the epoch, oldest first, until all are done or the pod drains."""
    session, partitions = rank.session, rank.partitions
    estimator = estimator_of(rank.spec.algorithm)
    samples = rank.spec.rollout.samples_per_prompt
    report_inputs(rank)

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
