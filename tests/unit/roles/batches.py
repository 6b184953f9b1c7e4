"""Claimed rows as the queue hands them out, by the numbers that a test cares about."""

from collections.abc import Sequence

import numpy as np
import torch

from rljob_api.names import RolloutId
from rljob_workers.roles import tasks
from rljob_workers.transfer_queue.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch


def make_batch(
    groups: Sequence[int],
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    oldest: Sequence[int] | None = None,
) -> Batch:
    """Rows of these groups; row numbers count up unless they are given."""
    numbers = range(len(groups)) if rows is None else rows
    return Batch(
        rollout_id=RolloutId(3),
        rows=np.array(numbers, dtype=np.uint32),
        groups=np.array(groups, dtype=np.uint32),
        oldest_versions=np.array(oldest or [3] * len(groups), dtype=np.int64),
        columns={
            tasks.REWARDS: Jagged.scalars(torch.tensor(rewards, dtype=torch.float32)),
            tasks.RESPONSE_LENGTHS: Jagged.scalars(torch.tensor(lengths, dtype=torch.int64)),
        },
    )
