"""Group-relative advantages."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.estimator import RowEstimator, broadcast_to_tokens
from rljob_workers.algorithms.advantages.group import group_centred, group_normalised, leave_one_out

ESTIMATORS = (group_normalised, group_centred, leave_one_out)


def all_valid(rewards: torch.Tensor, estimate: RowEstimator = group_normalised) -> torch.Tensor:
    return estimate(rewards, torch.ones_like(rewards, dtype=torch.bool))


@pytest.mark.parametrize(
    ("rewards", "normalised", "centred", "against_others"),
    [
        # mean 0.5, unbiased std sqrt(4 * 0.25 / 3) = 0.577350; the others of a 1 have mean 1/3
        pytest.param(
            [[1.0, 0.0, 1.0, 0.0]],
            [[0.866025, -0.866025, 0.866025, -0.866025]],
            [[0.5, -0.5, 0.5, -0.5]],
            [[2 / 3, -2 / 3, 2 / 3, -2 / 3]],
            id="half are right",
        ),
        # mean 0.25, std 0.5; the others of a 0 have mean 1/3
        pytest.param(
            [[1.0, 0.0, 0.0, 0.0]],
            [[1.5, -0.5, -0.5, -0.5]],
            [[0.75, -0.25, -0.25, -0.25]],
            [[1.0, -1 / 3, -1 / 3, -1 / 3]],
            id="one of four is right",
        ),
        pytest.param([[1.0, 1.0], [0.0, 0.0]], *[[[0.0, 0.0], [0.0, 0.0]]] * 3, id="equal rewards teach nothing"),
        # mean 4, std sqrt(8): groups do not see each other
        pytest.param(
            [[2.0, 6.0], [0.0, 1.0]],
            [[-0.707107, 0.707107], [-0.707107, 0.707107]],
            [[-2.0, 2.0], [-0.5, 0.5]],
            [[-4.0, 4.0], [-1.0, 1.0]],
            id="the deviation takes the scale away, and the others do not",
        ),
    ],
)
def test_advantages(
    rewards: list[list[float]],
    normalised: list[list[float]],
    centred: list[list[float]],
    against_others: list[list[float]],
) -> None:
    for estimate, expected in zip(ESTIMATORS, (normalised, centred, against_others), strict=True):
        found = all_valid(torch.tensor(rewards), estimate)
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)


REWARDS = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), min_size=1, max_size=5)


@given(REWARDS)
def test_against_the_others_is_n_over_n_less_one_of_the_centred_reward(rewards: list[list[float]]) -> None:
    found = all_valid(torch.tensor(rewards, dtype=torch.float64), leave_one_out)
    torch.testing.assert_close(found, all_valid(torch.tensor(rewards, dtype=torch.float64), group_centred) * 4 / 3)
    for row, values in zip(rewards, found.tolist(), strict=True):
        others = [reward - (sum(row) - reward) / 3 for reward in row]
        assert values == pytest.approx(others, abs=1e-9) or len(set(row)) == 1


@given(REWARDS)
def test_the_normalised_one_is_the_centred_one_by_the_deviation(rewards: list[list[float]]) -> None:
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = all_valid(values, group_centred)
    torch.testing.assert_close(all_valid(values), centred / (values.std(1, keepdim=True) + 1e-6))


@given(REWARDS, st.sampled_from(ESTIMATORS))
def test_a_group_has_mean_zero_and_keeps_its_order(rewards: list[list[float]], estimate: RowEstimator) -> None:
    advantages = all_valid(torch.tensor(rewards), estimate)
    assert bool(advantages.isfinite().all())
    assert float(advantages.mean(1).abs().max()) < 1e-3
    for row, values in zip(rewards, advantages.tolist(), strict=True):
        by_reward = [value for _, value in sorted(zip(row, values, strict=True))]
        assert by_reward == sorted(by_reward)


@given(st.floats(-1e3, 1e3, width=32), st.integers(2, 40), st.sampled_from(ESTIMATORS))
def test_equal_rewards_give_exactly_zero(reward: float, samples: int, estimate: RowEstimator) -> None:
    assert all_valid(torch.full((1, samples), reward), estimate).tolist() == [[0.0] * samples]


@st.composite
def groups_with_holes(draw: st.DrawFn) -> tuple[list[float], list[bool]]:
    rewards = draw(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
    return rewards, draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))


@given(groups_with_holes(), st.sampled_from([0.0, 1e30, float("nan"), float("-inf")]), st.sampled_from(ESTIMATORS))
def test_an_invalid_sample_is_as_if_it_were_not_there(
    group: tuple[list[float], list[bool]], unscored: float, estimate: RowEstimator
) -> None:
    rewards, valid = torch.tensor(group[0], dtype=torch.float64), torch.tensor(group[1])
    advantages = estimate(torch.where(valid, rewards, unscored)[None], valid[None])[0]
    assert advantages[~valid].tolist() == [0.0] * int((~valid).sum())
    if int(valid.sum()) < 2:
        assert advantages.tolist() == [0.0] * len(rewards)
    else:
        torch.testing.assert_close(advantages[valid], all_valid(rewards[valid][None], estimate)[0])


def test_a_group_of_one_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(ValueError, match=r"rollout\.samplesPerPrompt to at least 2"):
        all_valid(torch.ones(3, 1))


def test_every_response_token_gets_its_samples_advantage() -> None:
    tokens = broadcast_to_tokens(torch.tensor([0.5, -1.0, 2.0]), torch.tensor([2, 0, 3]))
    assert tokens.tolist() == [0.5, 0.5, 2.0, 2.0, 2.0]
