"""The role advantages: whole groups in, one number per response token out. The only role without a model.

Run by the assembly; formulas are `algorithms.grpo`, or the user's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rljob_api.spec.algorithm import Advantage, AlgorithmSpec, NoVariance
from rljob_workers.algorithms.grpo import GroupAdvantage, broadcast_to_tokens, group_normalised
from rljob_workers.pipeline import COMPUTE_ADVANTAGES
from rljob_workers.rank_loop import Draining, RankParts, RowServer, idle_until_ordered
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch
from rljob_workers.user_functions import Signature, load

ADVANTAGES: Mapping[str, GroupAdvantage] = {Advantage.GRPO: group_normalised}


_OWN = Signature(2, "rewards, valid", "def advantages(rewards, valid): return ...")


def advantage_of(algorithm: AlgorithmSpec) -> GroupAdvantage:
    """The job's formula. Raises ValueError where a function of the user's cannot be loaded."""
    name = algorithm.advantage
    if name in ADVANTAGES:
        return ADVANTAGES[name]
    return load("algorithm.advantage", name, "algorithm.path", algorithm.path, _OWN)  # type: ignore[no-any-return]


def advantages(batch: Batch, samples_per_prompt: int, formula: GroupAdvantage) -> dict[str, Jagged]:
    """The column that `put` takes, for a batch of whole groups in any order of rows.

    Raises ValueError where a user's formula does not give [groups, samples] finite numbers.
    """
    rewards = batch.columns[Column.REWARDS].values
    lengths = batch.columns[Column.RESPONSE_LENGTHS].values
    valid = batch.columns[Column.VALID].values.bool()
    by_group = torch.from_numpy(np.argsort(batch.groups, kind="stable"))
    scores = torch.empty_like(rewards)
    whole = (rewards[by_group].view(-1, samples_per_prompt), valid[by_group].view(-1, samples_per_prompt))
    found = formula(*whole)
    if found.shape != whole[0].shape or not bool(found.isfinite().all()):
        raise ValueError(
            f"algorithm.advantage: the function gave {list(found.shape)} for rewards {list(whole[0].shape)}, or what is"
            " not finite. Return one finite number for each reward."
        )
    scores[by_group] = found.to(scores.dtype).flatten()
    return {Column.ADVANTAGES: Jagged.from_lengths(broadcast_to_tokens(scores, lengths), lengths)}


def has_variance(batch: Batch, samples_per_prompt: int) -> dict[str, Jagged]:
    """The column that `put` takes: 1 for rows of groups whose valid rewards differ, [rows] uint8; whole groups in.

    A group of one valid sample, or of none, has no variance.
    """
    rewards = batch.columns[Column.REWARDS].values
    valid = batch.columns[Column.VALID].values.bool()
    by_group = torch.from_numpy(np.argsort(batch.groups, kind="stable"))
    lowest = rewards.masked_fill(~valid, torch.inf)[by_group].view(-1, samples_per_prompt).amin(1)
    highest = rewards.masked_fill(~valid, -torch.inf)[by_group].view(-1, samples_per_prompt).amax(1)
    found = torch.empty(len(rewards), dtype=torch.uint8)
    found[by_group] = (lowest < highest).to(torch.uint8).repeat_interleave(samples_per_prompt)
    return {Column.HAS_VARIANCE: Jagged.scalars(found)}


def run_advantages(rank: RankParts) -> None:
    """Serves the partitions of the epoch, oldest first, until all are done or the pod drains."""
    session, partitions = rank.session, rank.partitions
    formula = advantage_of(rank.spec.algorithm)
    samples = rank.spec.rollout.samples_per_prompt

    def work(batch: Batch) -> None:
        with rank.timeline.span("advantages", r=batch.rollout_id, rows=len(batch.rows)):
            columns = advantages(batch, samples, formula)
            if rank.spec.algorithm.no_variance is NoVariance.LEAVE_OUT:
                columns |= has_variance(batch, samples)
            rank.queue.put(batch, columns, weight=None)

    session.ready()
    rows = RowServer(session, rank.queue, COMPUTE_ADVANTAGES.name, rank.share, work, lambda: session.draining)
    try:
        rows.serve_partitions(partitions)
        idle_until_ordered(session, serve=lambda: rows.serve_again(partitions))
    except Draining:
        return
