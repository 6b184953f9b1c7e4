"""Importance corrections."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.corrections import ice_pop, truncated_weights
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


def test_tokens_that_are_too_far_have_no_weight() -> None:
    proximal = torch.tensor([0.5, 0.4, 0.1, 0.9, 0.2]).log()
    behaviour = torch.tensor([0.5, 0.2, 0.25, 0.1, 0.3]).log()
    weights = ice_pop(proximal, behaviour, rows(5), floor=0.5, cap=2.5)
    torch.testing.assert_close(weights, torch.tensor([1.0, 2.0, 0.0, 0.0, 2 / 3]), atol=1e-5, rtol=0)
    assert not ice_pop(proximal.requires_grad_(), behaviour, rows(5), floor=0.5, cap=2.5).requires_grad


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_between_wide_bounds_it_is_an_importance_weight(differences: list[float]) -> None:
    proximal = torch.tensor(differences)
    behaviour, own = torch.zeros_like(proximal), rows(len(differences))
    wide = ice_pop(proximal, behaviour, own, floor=0.0, cap=1e6)
    torch.testing.assert_close(wide, truncated_weights(proximal, behaviour, own, cap=1e6))
    torch.testing.assert_close(wide, proximal.exp())
