"""Estimators of the KL divergence."""

import math
from collections.abc import Callable

import pytest
import torch

from rljob_workers.algorithms.kl import k1, k2, k3

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        pytest.param(k1, [math.log(2), -math.log(2), 0.0], id="K1"),
        pytest.param(k2, [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2, 0.0], id="K2"),
        # exp(-d) - 1 + d for d = log 2, -log 2, 0
        pytest.param(k3, [0.5 - 1 + math.log(2), 2 - 1 - math.log(2), 0.0], id="K3"),
    ],
)
def test_values(estimator: Estimator, expected: list[float]) -> None:
    policy, reference = torch.tensor([0.5, 0.25, 0.3]).log(), torch.tensor([0.25, 0.5, 0.3]).log()
    torch.testing.assert_close(estimator(policy, reference), torch.tensor(expected))


@pytest.mark.parametrize("estimator", [k1, k3])
def test_the_mean_under_the_policy_is_the_divergence(estimator: Estimator) -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    exact = (policy * (policy / reference).log()).sum()
    torch.testing.assert_close((policy * estimator(policy.log(), reference.log())).sum(), exact)


def test_the_gradient_of_k2_is_that_of_the_divergence() -> None:
    logits = torch.tensor([0.3, -0.2, 1.0], requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3]).log()
    policy = torch.log_softmax(logits, 0)
    exact = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)[0]
    estimate = torch.autograd.grad((policy.exp().detach() * k2(policy, reference)).sum(), logits)[0]
    torch.testing.assert_close(estimate, exact)
