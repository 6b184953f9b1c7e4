"""Losses that do not clip: CISPO, SAPO and the plain policy gradient."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.losses import (
    ClipBounds,
    PolicyLoss,
    Temperatures,
    TokenLosses,
    cispo,
    ppo_clip,
    reinforce,
    sapo,
)
from rljob_workers.algorithms.objective import MaskedRows

CISPO: PolicyLoss = partial(cispo, high=1.0)
SAPO: PolicyLoss = partial(sapo, temperatures=Temperatures(1.0, 2.0))
UNCLIPPED: PolicyLoss = partial(ppo_clip, bounds=ClipBounds(1.0, 1e9))
OLD = -1.0


def of_token(loss: PolicyLoss, ratio: float, advantage: float) -> tuple[TokenLosses, float]:
    """The losses of one token, and the gradient of its log-prob."""
    new = torch.tensor([OLD + math.log(ratio)], dtype=torch.float64, requires_grad=True)
    row = MaskedRows(torch.ones(1), torch.tensor([1]))
    result = loss(new, torch.tensor([OLD], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64), row)
    return result, float(torch.autograd.grad(result.loss.sum(), new)[0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("loss", "ratio", "advantage", "value", "gradient", "is_clipped"),
    [
        pytest.param(CISPO, 1.0, 2.0, 2.0, -2.0, 0, id="CISPO on policy: A log pi, with log pi = -1"),
        pytest.param(CISPO, 1.5, 1.0, 1.5 * (1 - math.log(1.5)), -1.5, 0, id="CISPO below its bound: the ratio weighs"),
        pytest.param(CISPO, 4.0, 1.0, 2 * (1 - math.log(4)), -2.0, 1, id="CISPO above it: the bound does"),
        pytest.param(CISPO, 4.0, -1.0, -2 * (1 - math.log(4)), 2.0, 1, id="CISPO bounds a bad token alike"),
        pytest.param(CISPO, 0.1, -1.0, -0.1 * (1 - math.log(0.1)), 0.1, 0, id="CISPO has no lower bound"),
        pytest.param(SAPO, 1.0, 3.0, -6.0, -3.0, 0, id="SAPO on policy: -A 4/1 sigmoid(0), and the gradient of PPO"),
        pytest.param(SAPO, 1.0, -3.0, 3.0, 3.0, 0, id="SAPO on policy, a bad token: -A 4/2 sigmoid(0)"),
        pytest.param(
            SAPO, 2.0, 1.0, -4 * sigmoid(1), -2 * 4 * sigmoid(1) * sigmoid(-1), 0, id="SAPO fades above 1 by tau 1"
        ),
        pytest.param(
            SAPO, 2.0, -1.0, 2 * sigmoid(2), 2 * 4 * sigmoid(2) * sigmoid(-2), 0, id="SAPO, a bad token, by tau 2"
        ),
        pytest.param(
            SAPO, 0.5, 1.0, -4 * sigmoid(-0.5), -0.5 * 4 * sigmoid(0.5) * sigmoid(-0.5), 0, id="SAPO fades below 1"
        ),
        pytest.param(SAPO, 2.0, 0.0, 0.0, 0.0, 0, id="SAPO without an advantage"),
        pytest.param(reinforce, 1.0, 2.0, 2.0, -2.0, 0, id="REINFORCE: -A log pi"),
        pytest.param(reinforce, 5.0, -2.0, -2 * (1 - math.log(5)), 2.0, 0, id="REINFORCE does not weigh by the ratio"),
    ],
)
def test_a_token(
    loss: PolicyLoss, ratio: float, advantage: float, value: float, gradient: float, is_clipped: float
) -> None:
    result, found = of_token(loss, ratio, advantage)
    assert float(result.loss.detach()) == pytest.approx(value)
    assert found == pytest.approx(gradient)
    assert float(result.ratio) == pytest.approx(ratio)
    assert not result.ratio.requires_grad
    assert float(result.is_clipped) == is_clipped


RATIOS, ADVANTAGES = st.floats(0.05, 20), st.floats(-5, 5)


@given(RATIOS, ADVANTAGES)
def test_cispo_below_its_bound_has_the_gradient_of_the_ratio(ratio: float, advantage: float) -> None:
    assert of_token(partial(cispo, high=20.0), ratio, advantage)[1] == pytest.approx(
        of_token(UNCLIPPED, ratio, advantage)[1]
    )


@given(RATIOS, ADVANTAGES)
def test_sapo_whose_temperature_goes_to_0_has_the_gradient_of_the_ratio(ratio: float, advantage: float) -> None:
    open_gate = partial(sapo, temperatures=Temperatures(1e-5, 1e-5))
    assert of_token(open_gate, ratio, advantage)[1] == pytest.approx(of_token(UNCLIPPED, ratio, advantage)[1], rel=1e-6)


@given(RATIOS, ADVANTAGES.filter(lambda advantage: abs(advantage) > 1e-3), st.floats(0.1, 5))
def test_sapo_never_pulls_more_than_the_ratio_does(ratio: float, advantage: float, tau: float) -> None:
    gated = of_token(partial(sapo, temperatures=Temperatures(tau, tau)), ratio, advantage)[1]
    assert abs(gated) <= abs(of_token(UNCLIPPED, ratio, advantage)[1]) * (1 + 1e-9)


@settings(max_examples=30)  # of whole batches each
@given(ADVANTAGES)
def test_on_policy_all_have_the_gradient_of_ppo(advantage: float) -> None:
    for loss in (CISPO, SAPO, reinforce):
        assert of_token(loss, 1.0, advantage)[1] == pytest.approx(of_token(UNCLIPPED, 1.0, advantage)[1])


@pytest.mark.parametrize("far", [30.0, 1000.0, math.inf])
@pytest.mark.parametrize("loss", [CISPO, SAPO, reinforce])
def test_gradients_stay_finite_however_far_a_token_is(loss: PolicyLoss, far: float) -> None:
    row = MaskedRows(torch.ones(1), torch.tensor([1]))
    new = torch.tensor([0.0], requires_grad=True)
    for advantage in (1.0, -1.0):
        result = loss(new, torch.tensor([-far]), torch.tensor([advantage]), row)
        assert float(result.ratio) == pytest.approx(math.exp(20), rel=1e-5)
        assert bool(torch.autograd.grad(result.loss.sum(), new)[0].isfinite().all())
