"""The advantages stage: groups are found whatever the order of their rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.group import group_normalised
from rljob_workers.estimators import JobEstimator
from rljob_workers.scoring.advantages import advantages
from rljob_workers.tensors.columns import Column
from tests.unit.training.batches import make_batch

REWARDS = [[0.0, 1.0, 0.5], [1.0, 1.0, 1.0], [0.25, -2.0, 3.0], [0.0, 0.0, 1.0]]
GROUPS = [7, 2, 5, 0]
NUM_SAMPLES = 3
GRPO = JobEstimator(group_normalised, None, finds_variance=False)
GRPO_WITH_VARIANCE = JobEstimator(group_normalised, None, finds_variance=True)


@given(st.permutations(range(len(GROUPS) * NUM_SAMPLES)))
def test_every_row_gets_the_advantage_of_its_place_in_its_own_group(order: list[int]) -> None:
    groups = [GROUPS[row // NUM_SAMPLES] for row in order]
    rewards = [REWARDS[row // NUM_SAMPLES][row % NUM_SAMPLES] for row in order]
    lengths = [1 + row % 4 for row in order]
    rewards_of_groups = torch.tensor(REWARDS)
    expected = group_normalised(rewards_of_groups, torch.ones_like(rewards_of_groups, dtype=torch.bool)).flatten()

    column = advantages(make_batch(groups, rewards, lengths), NUM_SAMPLES, GRPO)[Column.ROW_ADVANTAGES]

    assert column.lengths.tolist() == [1] * len(order)
    assert column.values.dtype == torch.float32
    torch.testing.assert_close(column.values, expected[order])


def test_a_row_without_a_response_has_no_advantage_and_still_counts_for_its_group() -> None:
    column = advantages(make_batch([4, 4], [1.0, 0.0], [2, 0]), 2, GRPO)[Column.ROW_ADVANTAGES]
    torch.testing.assert_close(column.values, torch.tensor([2**-0.5, -(2**-0.5)]), atol=1e-4, rtol=0)


def test_a_sample_that_could_not_be_scored_moves_no_other() -> None:
    whole = advantages(make_batch([4, 4], [1.0, 0.5], [2, 1]), 2, GRPO)[Column.ROW_ADVANTAGES]
    with_hole = make_batch([4, 4, 4], [1.0, 0.0, 0.5], [2, 3, 1], valid=[1, 0, 1])
    holed = advantages(with_hole, 3, GRPO)[Column.ROW_ADVANTAGES]
    assert holed.values.tolist() == [float(whole.values[0]), 0.0, float(whole.values[1])]


@pytest.mark.parametrize(
    ("rewards", "valid", "expected"),
    [
        pytest.param([0.0, 1.0, 0.0], [1, 1, 1], 1, id="rewards that differ"),
        pytest.param([0.1, 0.1, 0.1], [1, 1, 1], 0, id="one reward"),
        pytest.param([0.5, 1.0, 0.5], [1, 0, 1], 0, id="the one that differs is not valid"),
        pytest.param([0.0, 1.0, 0.5], [0, 1, 0], 0, id="one valid sample"),
        pytest.param([0.0, 1.0, 0.5], [0, 0, 0], 0, id="none"),
        pytest.param([-1.0, 1.0, 0.5], [1, 1, 0], 1, id="two that differ"),
    ],
)
def test_a_group_has_variance_where_its_valid_rewards_differ(
    rewards: list[float], valid: list[int], expected: int
) -> None:
    others = [(2, 1.0, 1), (9, 0.0, 1), (9, 1.0, 1), (2, 1.0, 1), (9, 0.0, 1), (2, 1.0, 1)]
    rows = [row for pair in zip(zip([5] * 3, rewards, valid, strict=True), others[:3], strict=True) for row in pair]
    groups, all_rewards, all_valid = zip(*rows, *others[3:], strict=True)
    batch = make_batch(groups, all_rewards, [1] * 9, valid=all_valid)
    found = advantages(batch, 3, GRPO_WITH_VARIANCE)[Column.HAS_VARIANCE].values
    assert found.dtype == torch.uint8
    assert found.tolist() == [{5: expected, 2: 0, 9: 1}[group] for group in groups]
