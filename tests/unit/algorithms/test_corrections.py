"""Importance corrections."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.corrections import (
    Correction,
    RatioMask,
    RatioOf,
    ice_pop,
    importance_weights,
    masked_weights,
    of_geometric_mean,
    of_sequence,
    of_token,
    truncated_weights,
)
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


RATIOS: tuple[RatioOf, ...] = (of_token, of_sequence, of_geometric_mean)
# Responses of 3 tokens, one of them masked, of 2 and of 1.
ROWS = MaskedRows(torch.tensor([1, 0, 1, 1, 1, 1]), torch.tensor([3, 2, 1]))
PROXIMAL = torch.tensor([2.0, 1.0, 8.0, 0.5, 0.5, 3.0]).log()
BEHAVIOUR = torch.zeros(6)
LEFT = [0, 2, 3, 4, 5]
"""Tokens that count."""


@pytest.mark.parametrize(
    ("correct", "weights"),
    [
        pytest.param(importance_weights, [2, 8, 0.5, 0.5, 3], id="the ratio itself"),
        pytest.param(partial(importance_weights, ratio=of_sequence), [16, 16, 0.25, 0.25, 3], id="its product"),
        pytest.param(partial(importance_weights, ratio=of_geometric_mean), [4, 4, 0.5, 0.5, 3], id="the root of that"),
        pytest.param(partial(truncated_weights, cap=3.5), [2, 3.5, 0.5, 0.5, 3], id="truncated by token"),
        pytest.param(
            partial(truncated_weights, cap=3.5, ratio=of_sequence), [3.5, 3.5, 0.25, 0.25, 3], id="by the product"
        ),
        pytest.param(
            partial(truncated_weights, cap=3.5, ratio=of_geometric_mean), [3.5, 3.5, 0.5, 0.5, 3], id="by its root"
        ),
        pytest.param(partial(ice_pop, floor=0.4, cap=5), [2, 0, 0.5, 0.5, 3], id="masked by token"),
        pytest.param(partial(ice_pop, floor=0.4, cap=5, ratio=of_sequence), [0, 0, 0, 0, 3], id="by the product, both"),
        pytest.param(
            partial(ice_pop, floor=0.4, cap=5, ratio=of_geometric_mean), [4, 4, 0.5, 0.5, 3], id="by the root, neither"
        ),
        pytest.param(
            partial(masked_weights, mask=RatioMask(0.4, math.inf, of_sequence), weigh=None),
            [1, 1, 0, 0, 1],
            id="a mask of responses alone",
        ),
        pytest.param(
            partial(masked_weights, mask=RatioMask(0.0, 3.5, of_geometric_mean), weigh=importance_weights),
            [0, 0, 0.5, 0.5, 3],
            id="weights of tokens, a mask of responses",
        ),
        pytest.param(
            partial(masked_weights, mask=RatioMask(0.0, 3.5), weigh=partial(truncated_weights, cap=2.5)),
            [2, 0, 0.5, 0.5, 2.5],
            id="truncated weights, a mask of tokens",
        ),
    ],
)
def test_weights_by_hand(correct: Correction, weights: list[float]) -> None:
    found = correct(PROXIMAL.clone().requires_grad_(), BEHAVIOUR, ROWS)
    assert not found.requires_grad
    torch.testing.assert_close(found[LEFT], torch.tensor(weights, dtype=torch.float32))


LOG_RATIOS = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=5), min_size=1, max_size=4)


def given_rows(log_ratios: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor, MaskedRows]:
    values = torch.tensor([value for row in log_ratios for value in row], dtype=torch.float64)
    return values, torch.zeros_like(values), MaskedRows(torch.ones(len(values)), torch.tensor([*map(len, log_ratios)]))


@given(LOG_RATIOS)
def test_bounds_that_no_ratio_reaches_change_nothing(log_ratios: list[list[float]]) -> None:
    proximal, behaviour, own = given_rows(log_ratios)
    for ratio in RATIOS:
        plain = importance_weights(proximal, behaviour, own, ratio=ratio)
        mask = RatioMask(0.0, math.inf, ratio)
        torch.testing.assert_close(truncated_weights(proximal, behaviour, own, cap=1e9, ratio=ratio), plain)
        torch.testing.assert_close(ice_pop(proximal, behaviour, own, floor=0.0, cap=1e9, ratio=ratio), plain)
        for weigh in (importance_weights, partial(truncated_weights, cap=1.1, ratio=ratio)):
            found = masked_weights(proximal, behaviour, own, mask=mask, weigh=weigh)
            torch.testing.assert_close(found, weigh(proximal, behaviour, own))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6))
def test_with_a_token_in_each_response_all_levels_are_one(log_ratios: list[float]) -> None:
    proximal, behaviour, own = given_rows([[value] for value in log_ratios])
    for ratio in RATIOS:
        torch.testing.assert_close(importance_weights(proximal, behaviour, own, ratio=ratio), proximal.exp())


@settings(max_examples=30)  # of whole batches each
@given(LOG_RATIOS, st.floats(0.2, 0.9), st.floats(1.1, 3))
def test_a_mask_of_weights_by_their_own_ratio_is_icepop(
    log_ratios: list[list[float]], floor: float, cap: float
) -> None:
    proximal, behaviour, own = given_rows(log_ratios)
    for ratio in RATIOS:
        weigh = partial(importance_weights, ratio=ratio)
        found = masked_weights(proximal, behaviour, own, mask=RatioMask(floor, cap, ratio), weigh=weigh)
        torch.testing.assert_close(found, ice_pop(proximal, behaviour, own, floor=floor, cap=cap, ratio=ratio))


def test_where_the_engine_is_the_trainer_every_weight_is_1() -> None:
    log_probs = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.0, -0.1])
    for ratio in RATIOS:
        for correct in (
            partial(importance_weights, ratio=ratio),
            partial(truncated_weights, cap=2.0, ratio=ratio),
            partial(ice_pop, floor=0.5, cap=5.0, ratio=ratio),
            partial(masked_weights, mask=RatioMask(0.999, 1.001, ratio), weigh=None),
        ):
            assert correct(log_probs, log_probs, ROWS).tolist() == [1.0] * 6


def test_a_ratio_of_a_long_response_stays_finite() -> None:
    far = torch.full((4000,), 5.0)
    assert math.isfinite(float(importance_weights(far, -far, rows(4000), ratio=of_sequence).max()))
