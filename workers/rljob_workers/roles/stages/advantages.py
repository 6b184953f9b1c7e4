"""Advantages: the scores of whole groups become one number per response token."""

from __future__ import annotations

import numpy as np
import torch

from rljob_workers import pipeline
from rljob_workers.algorithms.grpo import broadcast_to_tokens, group_normalised
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch


def advantages(batch: Batch, samples_per_prompt: int) -> dict[str, Jagged]:
    """The column that `put` takes, for a batch of whole groups in any order of rows."""
    rewards = batch.columns[pipeline.REWARDS].values
    lengths = batch.columns[pipeline.RESPONSE_LENGTHS].values
    valid = batch.columns[pipeline.VALID].values.bool()
    by_group = torch.from_numpy(np.argsort(batch.groups, kind="stable"))
    scores = torch.empty_like(rewards)
    whole = (rewards[by_group].view(-1, samples_per_prompt), valid[by_group].view(-1, samples_per_prompt))
    scores[by_group] = group_normalised(*whole).flatten()
    return {pipeline.ADVANTAGES: Jagged.from_lengths(broadcast_to_tokens(scores, lengths), lengths)}
