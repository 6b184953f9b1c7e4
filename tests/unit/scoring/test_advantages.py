"""The advantages stage: groups are found whatever the order of their rows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_workers.algorithms.advantages.group import group_normalised
from rljob_workers.estimators import JobEstimator, estimator_of
from rljob_workers.scoring.advantages import advantages
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch
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


def with_tokens(batch: Batch, order: list[int], **columns: list[list[float]]) -> Batch:
    """With such columns of the rows, which stand in `order`."""
    named: dict[str, Jagged] = {
        name: Jagged.from_rows([torch.tensor(rows[row]) for row in order]) for name, rows in columns.items()
    }
    return replace(batch, columns={**batch.columns, **named})


LENGTHS = [2, 1, 3, 1]
LOG_PROBS = [[-1.0, -2.0], [-1.0], [-0.5, -0.5, -0.5], [-3.0]]
REFERENCE = [[-2.0, -2.0], [-2.0], [-1.5, 9.0, -0.5], [-9.0]]
MASKS: list[list[float]] = [[1, 1], [1], [1, 0, 1], [1]]


@given(st.permutations(range(4)), st.booleans())
def test_what_the_policy_moved_from_the_reference_is_taken_off_the_rewards(order: list[int], of_engine: bool) -> None:
    """K1 at 0.5: 0.5, 0.5 and 0.5 off the first three samples; a tool wrote the token where it would be most.

    The KL goes on with the row, without its coefficient.
    """
    spec = {"advantage": "DrGrpo", "kl": {"coefficient": 0.5, "placement": "Reward", "estimator": "K1"}}
    estimator = estimator_of(AlgorithmSpec.model_validate(spec))
    batch = make_batch(
        [order_of // 2 for order_of in order],
        [[1.0, 0.0, 0.0, 5.0][row] for row in order],
        [LENGTHS[row] for row in order],
        valid=[[1, 1, 1, 1][row] for row in order],
    )
    own = {"rollout_log_probs" if of_engine else "log_probs": LOG_PROBS}
    found = advantages(with_tokens(batch, order, loss_masks=MASKS, ref_log_probs=REFERENCE, **own), 2, estimator)
    # Rewards 0.5 and -0.5; -0.5 and 5 - 3 = 2.
    expected = torch.tensor([0.5, -0.5, -1.25, 1.25])
    torch.testing.assert_close(found[Column.ROW_ADVANTAGES].values, expected[order])
    torch.testing.assert_close(found[Column.REWARD_KL].values, torch.tensor([1.0, 1.0, 1.0, 6.0])[order])


@pytest.mark.parametrize(
    ("advantage", "estimator", "expected"),
    [
        pytest.param("Gae", "K1", [1.0, 1.0, 1.0, 0.0], id="K1, and a sample without a score"),
        pytest.param("ReinforcePlusPlus", "K2", [0.5, 0.5, 0.5, 0.0], id="K2"),
        pytest.param("Grpo", "K3", [0.367879, 0.367879, 0.367879, 0.0], id="K3: exp(-1) - 1 + 1"),
    ],
)
def test_every_kind_of_estimator_gives_the_kl_that_was_taken_off(
    advantage: str, estimator: str, expected: list[float]
) -> None:
    spec = {"advantage": advantage, "kl": {"coefficient": 0.02, "placement": "Reward", "estimator": estimator}}
    batch = make_batch([0, 0, 1, 1], [1.0, 0.0, 0.0, 5.0], LENGTHS, valid=[1, 1, 1, 0])
    batch = with_tokens(batch, [0, 1, 2, 3], loss_masks=MASKS, ref_log_probs=REFERENCE, log_probs=LOG_PROBS)
    batch = with_tokens(batch, [0, 1, 2, 3], values=LOG_PROBS)
    found = advantages(batch, 2, estimator_of(AlgorithmSpec.model_validate(spec)))
    torch.testing.assert_close(found[Column.REWARD_KL].values, torch.tensor(expected), atol=1e-6, rtol=0)


@given(st.permutations(range(4)), st.integers(1, 4))
def test_rows_are_measured_against_their_greedy_answer_whichever_come_together(order: list[int], count: int) -> None:
    """K1 at 0.5 takes 0.5 off the first three samples, and nothing off the baselines."""
    spec = {"advantage": "ReMax", "kl": {"coefficient": 0.5, "placement": "Reward", "estimator": "K1"}}
    rows = order[:count]
    batch = make_batch(
        [row // 2 for row in rows],
        [[1.0, 0.0, 0.0, 5.0][row] for row in rows],
        [LENGTHS[row] for row in rows],
        valid=[[1, 1, 1, 0][row] for row in rows],
    )
    of_rows = with_tokens(
        batch,
        rows,
        loss_masks=MASKS,
        ref_log_probs=REFERENCE,
        log_probs=LOG_PROBS,
        baselines=[[0.25], [0.25], [1.0], [1.0]],
    )
    found = advantages(of_rows, 2, estimator_of(AlgorithmSpec.model_validate(spec)))
    expected = torch.tensor([0.25, -0.75, -1.5, 0.0])
    torch.testing.assert_close(found[Column.ROW_ADVANTAGES].values, expected[rows])


@given(st.permutations(range(8)))
def test_a_greedy_answer_that_is_worth_something_else_is_variance(order: list[int]) -> None:
    """Groups: one reward and that of the greedy answer; the same, not of it; two rewards; none that is valid."""
    estimator = estimator_of(AlgorithmSpec.model_validate({"advantage": "ReMax", "noVariance": "LeaveOut"}))
    rewards, baselines = [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    batch = make_batch(
        [row // 2 for row in order],
        [rewards[row] for row in order],
        [1] * 8,
        valid=[int(row < 6) for row in order],
    )
    found = advantages(with_tokens(batch, order, baselines=[[one] for one in baselines]), 2, estimator)
    assert found[Column.HAS_VARIANCE].values.tolist() == [int(row // 2 in (1, 2)) for row in order]


@given(st.permutations(range(4)), st.booleans())
def test_a_teacher_grades_each_token_whatever_the_order_of_rows(order: list[int], of_engine: bool) -> None:
    """Against actor_fwd's log-probs, else the engine's; a tool wrote the token where the gap would be largest."""
    estimator = estimator_of(AlgorithmSpec.model_validate({"advantage": "Distillation"}))
    batch = make_batch([row // 2 for row in order], [0.0] * 4, [LENGTHS[row] for row in order])
    own = {"rollout_log_probs" if of_engine else "log_probs": LOG_PROBS}
    found = advantages(with_tokens(batch, order, loss_masks=MASKS, ref_log_probs=REFERENCE, **own), 2, estimator)
    expected = [[-1.0, 0.0], [-1.0], [-1.0, 0.0, 0.0], [-6.0]]
    assert [row.tolist() for row in found[Column.ADVANTAGES].rows()] == [expected[row] for row in order]


@given(st.permutations(range(4)))
def test_tokens_get_the_advantages_of_their_place_whatever_the_order_of_rows(order: list[int]) -> None:
    estimator = estimator_of(AlgorithmSpec.model_validate({"advantage": "Gae", "gae": {"lambda": 0.5, "gamma": 0.5}}))
    values = [[0.1, 0.2], [0.3], [0.4, 9.0, 0.5], [0.6]]

    def found(rows: list[int]) -> dict[str, Jagged]:
        of_rows = make_batch(
            [row // 2 for row in rows],
            [[1.0, 0.0, 0.5, 5.0][row] for row in rows],
            [LENGTHS[row] for row in rows],
            valid=[[1, 1, 1, 0][row] for row in rows],
        )
        return advantages(with_tokens(of_rows, rows, loss_masks=MASKS, values=values), 2, estimator)

    expected = found([0, 1, 2, 3])
    # 0.5 - 0.5 at the last, 0.5 x 0.5 - 0.4 before it, and nothing of the row that was not scored.
    torch.testing.assert_close(expected[Column.ADVANTAGES].row(2), torch.tensor([-0.15, 0.0, 0.0]))
    torch.testing.assert_close(expected[Column.RETURNS].row(2), torch.tensor([0.25, 0.0, 0.5]))
    assert expected[Column.ADVANTAGES].row(3).tolist() == [0.0]
    for column, of_tokens in found(order).items():
        assert [row.tolist() for row in of_tokens.rows()] == [expected[column].row(row).tolist() for row in order]


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
