"""What the queue admin says went to make room."""

from __future__ import annotations

import pytest

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.upkeep import Dropped, DropReason, in_one_sentence


def dropped(given: DropReason, *rollout_ids: int, groups: int = 2, samples: int = 4) -> list[Dropped]:
    return [Dropped(given, RolloutId(one), groups, groups * samples, 0) for one in rollout_ids]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param(
            dropped(DropReason.RETAINED, 3),
            "8 rows (2 groups) of train_3, kept for a restore, were dropped",
            id="rows of one partition",
        ),
        pytest.param(
            dropped(DropReason.UNCLAIMED, 6, 5, 6),
            "24 rows (6 groups) of train_5, train_6 were dropped and are generated again",
            id="a partition that was dropped twice is named once",
        ),
        pytest.param(
            dropped(DropReason.UNCLAIMED, 9) + dropped(DropReason.RETAINED, *range(2, 8)),
            "48 rows (12 groups) of 6 partitions from train_2 to train_7, kept for a restore, were dropped;"
            " 8 rows (2 groups) of train_9 were dropped and are generated again",
            id="of both kinds, those kept for a restore first, and of many partitions the first and the last",
        ),
    ],
)
def test_what_went_is_one_sentence(listed: list[Dropped], expected: str) -> None:
    assert in_one_sentence(listed) == expected
