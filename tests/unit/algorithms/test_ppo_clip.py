"""The clipped policy-gradient objective."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.losses import ClipBounds, gspo, ppo_clip
from rljob_workers.algorithms.objective import MaskedRows

ROW = MaskedRows(torch.ones(1), torch.tensor([1]))
BOUNDS = ClipBounds(0.2, 0.28)


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
    result = ppo_clip(new, old, torch.tensor([advantage]), ROW, bounds=BOUNDS)
    torch.testing.assert_close(result.loss, torch.tensor([loss]))
    torch.testing.assert_close(result.ratio, torch.tensor([ratio]))
    assert result.is_clipped.tolist() == [is_clipped]


@given(st.floats(-2, 2), st.floats(-5, 5))
def test_the_gradient_vanishes_exactly_where_a_token_is_clipped(difference: float, advantage: float) -> None:
    new = torch.tensor([difference], requires_grad=True)
    result = ppo_clip(new, torch.zeros(1), torch.tensor([advantage]), ROW, bounds=BOUNDS)
    result.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    expected = torch.where(result.is_clipped > 0, 0.0, -advantage * result.ratio)
    torch.testing.assert_close(new.grad, expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        pytest.param(1.5, -1.0, 1.5, 0.0, id="below the dual clip nothing changes"),
        pytest.param(4.0, -1.0, 3.0, 1.0, id="a bad token that is far too likely is pushed down no further"),
        pytest.param(4.0, 1.0, -1.28, 1.0, id="a good one is clipped as before"),
        pytest.param(0.5, -1.0, 0.8, 1.0, id="and so is a bad one below the lower bound"),
    ],
)
def test_a_dual_clip_bounds_the_loss_of_bad_tokens(
    ratio: float, advantage: float, loss: float, is_clipped: float
) -> None:
    new, old = torch.tensor([math.log(ratio) - 1.0], requires_grad=True), torch.tensor([-1.0])
    result = ppo_clip(new, old, torch.tensor([advantage]), ROW, bounds=ClipBounds(0.2, 0.28, dual=3.0))
    torch.testing.assert_close(result.loss.detach(), torch.tensor([loss]))
    assert result.is_clipped.tolist() == [is_clipped]
    result.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert (float(new.grad) == 0.0) == bool(is_clipped)


@pytest.mark.parametrize("far", [30.0, 1000.0, math.inf])
def test_a_ratio_stays_finite_however_far_a_token_is(far: float) -> None:
    new = torch.tensor([0.0], requires_grad=True)
    for advantage in (1.0, -1.0):
        result = ppo_clip(new, torch.tensor([-far]), torch.tensor([advantage]), ROW, bounds=BOUNDS)
        assert float(result.ratio) == pytest.approx(math.exp(20), rel=1e-5)
        assert bool(torch.autograd.grad(result.loss.sum(), new)[0].isfinite().all())


ROWS = MaskedRows(torch.tensor([1, 1, 0, 1, 1]), torch.tensor([3, 2]))
OLD = torch.tensor([-1.0, -2.0, 0.0, -1.0, -1.0])


def test_a_sequence_has_the_ratio_of_its_mean() -> None:
    new = (OLD + torch.tensor([0.2, -0.1, 9.0, 0.3, 0.3])).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
    result = gspo(new, OLD, advantages, ROWS, bounds=ClipBounds(0.1, 0.2))
    first, second = math.exp(0.05), math.exp(0.3)  # the masked token has no part in the mean
    torch.testing.assert_close(result.ratio[[0, 1, 3, 4]], torch.tensor([first, first, second, second]))
    torch.testing.assert_close(result.loss[[0, 1, 3, 4]].detach(), torch.tensor([-first, -first, second, second]))
    result.loss[[0, 1, 3, 4]].sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([-first, -first, 0.0, second, second]))


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-3, 3)), min_size=1, max_size=5))
def test_with_a_token_in_each_row_it_is_ppo(tokens: list[tuple[float, float]]) -> None:
    difference, advantages = torch.tensor(tokens).unbind(1)
    rows = MaskedRows(torch.ones(len(tokens)), torch.ones(len(tokens), dtype=torch.int64))
    gradients = []
    for loss in (ppo_clip, gspo):
        new = difference.clone().requires_grad_()
        result = loss(new, torch.zeros(len(tokens)), advantages, rows, bounds=BOUNDS)
        gradients.append((result.loss.detach(), *torch.autograd.grad(result.loss.sum(), new)))
    torch.testing.assert_close(gradients[0], gradients[1])


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(-2, 2))
def test_with_one_advantage_a_row_has_the_gradient_of_its_own_ratio(differences: list[float], advantage: float) -> None:
    rows = MaskedRows(torch.ones(len(differences)), torch.tensor([len(differences)]))
    new = torch.tensor(differences, dtype=torch.float64, requires_grad=True)
    advantages = torch.full((len(differences),), advantage, dtype=torch.float64)
    wide = ClipBounds(0.999, 10.0)
    result = gspo(new, torch.zeros_like(new), advantages, rows, bounds=wide)
    (found,) = torch.autograd.grad(result.loss.mean(), new)
    (expected,) = torch.autograd.grad(-advantage * new.mean().exp(), new)
    torch.testing.assert_close(found, expected)
