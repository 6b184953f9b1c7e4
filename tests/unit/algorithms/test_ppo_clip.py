"""The clipped policy-gradient objective."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.losses import ppo_clip
from rljob_workers.algorithms.objective import MaskedRows

ROW = MaskedRows(torch.ones(1), torch.tensor([1]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        pytest.param(1.0, 2.0, -2.0, 0.0, id="on policy the loss is minus the advantage"),
        pytest.param(1.2, 1.0, -1.2, 0.0, id="inside the bounds nothing is clipped"),
        pytest.param(1.5, 1.0, -1.28, 1.0, id="a good token beyond the upper bound earns no more"),
        pytest.param(1.5, -1.0, 1.5, 0.0, id="a bad token beyond the upper bound is still pushed down"),
        pytest.param(0.5, 1.0, -0.5, 0.0, id="a good token below the lower bound is still pushed up"),
        pytest.param(0.5, -1.0, 0.8, 1.0, id="a bad token below the lower bound earns no more"),
        pytest.param(3.0, 0.0, 0.0, 0.0, id="no advantage, no loss"),
    ],
)
def test_loss_of_a_token(ratio: float, advantage: float, loss: float, is_clipped: float) -> None:
    new, old = torch.tensor([math.log(ratio) - 1.0]), torch.tensor([-1.0])
    result = ppo_clip(new, old, torch.tensor([advantage]), ROW, low=0.2, high=0.28)
    torch.testing.assert_close(result.loss, torch.tensor([loss]))
    torch.testing.assert_close(result.ratio, torch.tensor([ratio]))
    assert result.is_clipped.tolist() == [is_clipped]


@given(st.floats(-2, 2), st.floats(-5, 5))
def test_the_gradient_vanishes_exactly_where_a_token_is_clipped(difference: float, advantage: float) -> None:
    new = torch.tensor([difference], requires_grad=True)
    result = ppo_clip(new, torch.zeros(1), torch.tensor([advantage]), ROW, low=0.2, high=0.28)
    result.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    expected = torch.where(result.is_clipped > 0, 0.0, -advantage * result.ratio)
    torch.testing.assert_close(new.grad, expected)
