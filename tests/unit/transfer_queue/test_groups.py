"""Groups on their way into a commit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from rljob_api.names import RolloutId
from rljob_api.spec.rollout import GroupOrder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.group_columns import (
    by_partition,
    check_group,
    joined_columns,
    pack_group_weights,
    pack_tickets,
)
from rljob_workers.transfer_queue.row_format import WEIGHTS
from rljob_workers.transfer_queue.types import GroupRows, QueueShape, Ticket
from tests.weights import weight

SHAPE = QueueShape(2, 2, 1, 5, 3, 8, ("rewards",), ())


def scalars(*values: float) -> Jagged:
    return Jagged.scalars(torch.tensor(values))


def group(
    rollout: int = 0,
    place: int = 0,
    columns: Mapping[str, Jagged] | None = None,
    oldest: tuple[int, ...] = (3, 3),
    newest: tuple[int, ...] = (4, 5),
) -> GroupRows:
    ticket = Ticket(100 * rollout + place, RolloutId(rollout), place, 0, 7, False)
    rewards = {"rewards": scalars(rollout, place)} if columns is None else columns
    return GroupRows(ticket, rewards, [weight(each) for each in oldest], [weight(each) for each in newest])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(group(columns={}), r"fields \[\] were given, \['rewards'\] are needed", id="a field is missing"),
        pytest.param(
            group(columns={"rewards": scalars(1, 2), "other": scalars(1, 2)}),
            r"fields \['other', 'rewards'\] were given, \['rewards'\] are needed",
            id="a field is too many",
        ),
        pytest.param(
            group(columns={"rewards": scalars(1, 2, 3)}), "rewards has 3 rows, a group has 2", id="a column is too long"
        ),
        pytest.param(group(oldest=(3,)), "oldest has 1 rows, a group has 2", id="a row has no oldest weight"),
        pytest.param(group(newest=(3, 4, 5)), "newest has 3 rows, a group has 2", id="a weight has no row"),
    ],
)
def test_a_group_that_is_not_whole_is_refused(wrong: GroupRows, message: str) -> None:
    with pytest.raises(ValueError, match=f"^put_groups: {message}"):
        check_group(wrong, SHAPE)


def test_a_whole_group_is_taken() -> None:
    check_group(group(), SHAPE)


@pytest.mark.parametrize(
    ("order", "together"),
    [(GroupOrder.BOUND, [[1], [0, 2]]), (GroupOrder.SWAP, [[0], [1], [2]])],
    ids=["of one partition", "each by itself: its partition is found by the put"],
)
def test_groups_of_a_partition_are_stored_together(order: GroupOrder, together: list[list[int]]) -> None:
    assert by_partition([group(1, 1), group(0, 0), group(1, 0)], order) == together


def test_columns_places_and_weights_have_the_groups_in_one_order() -> None:
    groups = [group(0, 1), group(0, 0, oldest=(1, 2), newest=(2, 2))]
    column = joined_columns(groups, ["rewards"])["rewards"]
    assert isinstance(column, Jagged)
    assert column.values.tolist() == [0, 1, 0, 0]
    assert np.frombuffer(pack_tickets(groups), "<u4").tolist() == [1, 0]
    weights = np.frombuffer(pack_group_weights(groups), WEIGHTS)
    assert (weights["oldest"].tolist(), weights["newest"].tolist()) == ([3, 3, 1, 2], [4, 5, 2, 2])
