"""Claimed rows as the queue hands them out, by the numbers that a test cares about."""

from collections.abc import Sequence

import numpy as np
import torch

from rljob_api.names import RolloutId
from rljob_workers.engines.base import FINISH_CODES
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch


def make_batch(
    groups: Sequence[int],
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    oldest: Sequence[int] | None = None,
    valid: Sequence[int] | None = None,
    finish_reasons: Sequence[str] | None = None,
    spans: Sequence[Sequence[tuple[int, int, int]]] | None = None,
) -> Batch:
    """Rows of these groups; row numbers count up unless they are given.

    Prompts have 2 tokens. Without `spans` (version, start, end), the oldest version made all of a row.
    """
    versions = oldest or [3] * len(groups)
    of_rows = spans or [[(version, 0, length)] for version, length in zip(versions, lengths, strict=True)]
    numbers = range(len(groups)) if rows is None else rows
    return Batch(
        rollout_id=RolloutId(3),
        rows=np.array(numbers, dtype=np.uint32),
        groups=np.array(groups, dtype=np.uint32),
        oldest_versions=np.array(versions, dtype=np.int64),
        columns={
            Column.TOKENS: Jagged.from_lengths(
                torch.zeros(sum(lengths) + 2 * len(lengths), dtype=torch.int32), torch.tensor(lengths) + 2
            ),
            Column.REWARDS: Jagged.scalars(torch.tensor(rewards, dtype=torch.float32)),
            Column.RESPONSE_LENGTHS: Jagged.scalars(torch.tensor(lengths, dtype=torch.int64)),
            Column.LOSS_MASKS: Jagged.from_lengths(torch.ones(sum(lengths), dtype=torch.uint8), torch.tensor(lengths)),
            Column.VALID: Jagged.scalars(torch.tensor(valid or [1] * len(groups), dtype=torch.uint8)),
            Column.FINISH_REASONS: Jagged.scalars(
                torch.tensor(
                    [FINISH_CODES[reason] for reason in finish_reasons or ["stop"] * len(groups)], dtype=torch.uint8
                )
            ),
            Column.VERSION_SPANS: Jagged.from_rows(
                [torch.tensor([(1, *span) for span in row], dtype=torch.int32) for row in of_rows]
            ),
        },
    )
