"""The role advantages: whole groups in, one number per response token out. The only role without a model.

Run by the assembly; the formula is `algorithms.grpo`.
"""

from __future__ import annotations

import numpy as np
import torch

from rljob_workers.algorithms.grpo import broadcast_to_tokens, group_normalised
from rljob_workers.pipeline import COMPUTE_ADVANTAGES
from rljob_workers.rank_loop import Draining, RankParts, RowServer, idle_until_ordered
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch


def advantages(batch: Batch, samples_per_prompt: int) -> dict[str, Jagged]:
    """The column that `put` takes, for a batch of whole groups in any order of rows."""
    rewards = batch.columns[Column.REWARDS].values
    lengths = batch.columns[Column.RESPONSE_LENGTHS].values
    valid = batch.columns[Column.VALID].values.bool()
    by_group = torch.from_numpy(np.argsort(batch.groups, kind="stable"))
    scores = torch.empty_like(rewards)
    whole = (rewards[by_group].view(-1, samples_per_prompt), valid[by_group].view(-1, samples_per_prompt))
    scores[by_group] = group_normalised(*whole).flatten()
    return {Column.ADVANTAGES: Jagged.from_lengths(broadcast_to_tokens(scores, lengths), lengths)}


def run_advantages(rank: RankParts) -> None:
    """Serves the partitions of the epoch, oldest first, until all are done or the pod drains."""
    session, partitions = rank.session, rank.partitions

    def work(batch: Batch) -> None:
        with rank.timeline.span("advantages", r=batch.rollout_id, rows=len(batch.rows)):
            rank.queue.put(batch, advantages(batch, rank.spec.rollout.samples_per_prompt), weight=None)

    session.ready()
    rows = RowServer(session, rank.queue, COMPUTE_ADVANTAGES.name, rank.share, work)
    try:
        rows.serve_partitions(partitions)
        idle_until_ordered(session, serve=lambda: rows.serve_again(partitions))
    except Draining:
        return
