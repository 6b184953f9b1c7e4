"""Truncated importance sampling."""

import math

import torch

from rljob_workers.algorithms.corrections import truncated_weights
from rljob_workers.algorithms.objective import MaskedRows


def rows(count: int) -> MaskedRows:
    return MaskedRows(torch.ones(count), torch.tensor([count]))


def test_weights_are_ratios_up_to_the_cap() -> None:
    proximal = torch.tensor([0.5, 0.4, 0.1, 0.9]).log()
    behaviour = torch.tensor([0.5, 0.2, 0.2, 0.1]).log()
    weights = truncated_weights(proximal, behaviour, rows(4), cap=2.5)
    torch.testing.assert_close(weights, torch.tensor([1.0, 2.0, 0.5, 2.5]))


def test_no_gradient_flows_through_a_weight() -> None:
    proximal = torch.tensor([-1.0], requires_grad=True)
    assert not truncated_weights(proximal, torch.tensor([-2.0]), rows(1), cap=5.0).requires_grad


def test_a_token_that_the_engine_all_but_excluded_is_capped() -> None:
    assert truncated_weights(torch.tensor([-1.0]), torch.tensor([-math.inf]), rows(1), cap=2.0).tolist() == [2.0]
