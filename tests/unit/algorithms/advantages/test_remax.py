"""ReMax: by hand, by a loop over tokens, and what it comes to where the greedy answer is worth nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.remax import remax

NUMBERS = st.floats(-100, 100)


@pytest.mark.parametrize(
    ("rewards", "valid", "baselines", "expected"),
    [
        pytest.param([1.0, 0.0, 0.5], [1, 1, 1], [0.5] * 3, [0.5, -0.5, 0.0], id="above, below and as the greedy one"),
        pytest.param([1.0, 1.0], [1, 1], [0.0, 0.0], [1.0, 1.0], id="equal rewards teach where the greedy one differs"),
        pytest.param([1.0, 1.0], [1, 1], [1.0, 1.0], [0.0, 0.0], id="and nothing where it does not"),
        pytest.param([2.0, 2.0], [1, 1], [0.5, -1.0], [1.5, 3.0], id="prompts do not see each other"),
        pytest.param([0.25], [1], [1.0], [-0.75], id="one sample"),
        pytest.param([float("nan"), 3.0], [0, 1], [1.0, 1.0], [0.0, 2.0], id="a sample that was not scored"),
    ],
)
def test_by_hand(rewards: list[float], valid: list[int], baselines: list[float], expected: list[float]) -> None:
    found = remax(torch.tensor(rewards), torch.tensor(valid, dtype=torch.bool), torch.tensor(baselines))
    assert found.dtype == torch.float32
    assert found.tolist() == expected


@st.composite
def some_rows(draw: st.DrawFn) -> list[tuple[list[float], bool, float]]:
    """Of each the rewards of its tokens, whether it is valid, and its baseline."""
    of_tokens = st.lists(NUMBERS, min_size=1, max_size=8)
    return draw(st.lists(st.tuples(of_tokens, st.booleans(), NUMBERS), min_size=1, max_size=6))


@given(some_rows())
def test_it_is_the_return_of_the_first_token_less_the_baseline(rows: list[tuple[list[float], bool, float]]) -> None:
    """As verl has it, token by token in float64; a row that is not valid has no token that counts."""
    expected = []
    for rewards, is_valid, baseline in rows:
        following, returns = 0.0, []
        for reward in reversed(rewards):
            following += reward
            returns.append(following)
        expected.append(returns[-1] - baseline if is_valid else 0.0)
    sums = torch.tensor([sum(reversed(rewards)) for rewards, _, _ in rows], dtype=torch.float64)
    valid = torch.tensor([is_valid for _, is_valid, _ in rows])
    baselines = torch.tensor([baseline for _, _, baseline in rows], dtype=torch.float64)
    found = remax(sums, valid, baselines)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@given(st.lists(NUMBERS, min_size=1, max_size=12))
def test_against_a_greedy_answer_of_no_worth_it_is_the_reward(rewards: list[float]) -> None:
    values = torch.tensor(rewards, dtype=torch.float64)
    everything = torch.ones_like(values, dtype=torch.bool)
    assert torch.equal(remax(values, everything, torch.zeros_like(values)), values)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), NUMBERS)
def test_what_is_added_to_all_rewards_of_a_prompt_changes_nothing(rows: list[tuple[float, float]], more: float) -> None:
    rewards, baselines = torch.tensor(rows, dtype=torch.float64).unbind(1)
    valid = torch.ones_like(rewards, dtype=torch.bool)
    torch.testing.assert_close(remax(rewards + more, valid, baselines + more), remax(rewards, valid, baselines))
