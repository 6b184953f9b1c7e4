"""Losses that balance experts, and what is said of their load, by hand; shares of ranks add up to the whole."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.metric_totals import merged, values_of
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.megatron.balance import Balance, RoutedTokens, routed_tokens
from rljob_workers.trainers.megatron.expert_load import EXPERT_METRICS, load_totals
from rljob_workers.trainers.megatron.inputs import Context, packed_inputs
from rljob_workers.trainers.micro_batches import RowRange

HOST = torch.device("cpu")
BY_ROW = Balance(by_row=True, aux_coefficient=1.0, z_coefficient=1.0)


def tokens_of(groups: list[int], num_groups: int) -> RoutedTokens:
    """Of groups that are on this rank alone."""
    counts = torch.bincount(torch.tensor(groups), minlength=num_groups + 1)[:num_groups].float()
    return RoutedTokens(torch.tensor(groups), counts, torch.ones(num_groups), BY_ROW)


def test_losses_by_hand() -> None:
    """Two tokens of one group, one of another, and padding, over two experts, one for each token."""
    passing = tokens_of([0, 2, 0, 1], 2)
    chosen = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    scores = torch.tensor([[0.75, 0.25], [0.0, 1.0], [0.5, 0.5], [0.25, 0.75]])
    assert passing.aux_losses(chosen, scores).tolist() == [2 * 1.0 * (0.75 + 0.5) / 2, 2 * 0.75]
    logits = torch.tensor([[0.0, 0.0], [50.0, 50.0], [1.0, 1.0], [2.0, 2.0]])
    two = math.log(2)
    expected = [(two**2 + (1 + two) ** 2) / 2, (2 + two) ** 2]
    assert passing.z_losses(logits).tolist() == pytest.approx(expected)


def test_even_experts_have_a_loss_of_one() -> None:
    passing = tokens_of([0, 0, 0, 0], 1)
    assert passing.aux_losses(torch.full((1, 4), 2.0), torch.full((4, 4), 0.25)).tolist() == [1.0]


def test_groups_without_a_token_have_no_loss() -> None:
    passing = RoutedTokens(torch.tensor([1, 1]), torch.zeros(1), torch.zeros(1), BY_ROW)
    assert passing.aux_losses(torch.zeros(1, 2), torch.ones(2, 2)).tolist() == [0.0]
    assert passing.z_losses(torch.ones(2, 2)).tolist() == [0.0]


TOKENS = Jagged.from_rows([torch.arange(length) for length in (3, 6, 1, 4)])
RESPONSES = torch.tensor([1, 3, 0, 2])


def normaliser_of(part: RowRange) -> float:
    return float(part.last_token - part.first_token)


@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("multiple", [4, 8])
def test_each_token_is_in_its_row_once_over_ranks(context: int, multiple: int) -> None:
    part, seen = RowRange(1, 4, 1, 6), torch.zeros(4, dtype=torch.int64)
    for rank in range(context):
        inputs = packed_inputs(TOKENS, RESPONSES, part, multiple, Context(rank, context), HOST)
        routed = routed_tokens(inputs, part, RESPONSES, BY_ROW, normaliser_of)
        assert len(routed.groups) == inputs.token_ids.numel()
        seen += torch.bincount(routed.groups, minlength=4)
        assert routed.counts.tolist() == [5, 0, 3]
        assert routed.weights.tolist() == [3, 0, 2]
    assert seen[:-1].tolist() == [5, 0, 3]


def test_a_pass_is_one_group_without_its_padding() -> None:
    inputs = packed_inputs(TOKENS, RESPONSES, RowRange(0, 4, 0, 6), 4, Context(), HOST)
    routed = routed_tokens(inputs, RowRange(0, 4, 0, 6), RESPONSES, Balance(), normaliser_of)
    assert routed.groups.tolist() == [0, 0, 1, 1, *[0] * 5, 1, 1, 1, 0, 0, 0, 1]
    assert (routed.counts.tolist(), routed.weights.tolist()) == ([10], [6])


@pytest.mark.parametrize("balance", [Balance(), BY_ROW])
def test_a_pass_without_rows_counts_nothing(balance: Balance) -> None:
    empty = RowRange(2, 2, 4, 4)
    inputs = packed_inputs(TOKENS, RESPONSES, empty, 4, Context(), HOST)
    routed = routed_tokens(inputs, empty, RESPONSES, balance, normaliser_of)
    assert float(routed.sums(torch.ones(4, 2)).sum()) == 0
    assert float(routed.weights.sum()) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_ranks_that_share_tokens_add_up_to_one_that_has_all(count: int, num_groups: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    groups = torch.randint(num_groups + 1, (count,), generator=chance)
    scores = torch.rand(count, 4, generator=chance, dtype=torch.float64)
    chosen = torch.nn.functional.one_hot(torch.randint(4, (count,), generator=chance), 4).double()
    whole = tokens_of(groups.tolist(), num_groups)
    of_all = whole.sums(chosen)
    shares = [RoutedTokens(groups[own], whole.counts, whole.weights, BY_ROW) for own in (slice(0, 7), slice(7, None))]
    aux = sum(
        one.aux_losses(of_all, scores[own]) for one, own in zip(shares, (slice(0, 7), slice(7, None)), strict=True)
    )
    torch.testing.assert_close(aux, whole.aux_losses(of_all, scores))
    z = sum(one.z_losses(scores[own]) for one, own in zip(shares, (slice(0, 7), slice(7, None)), strict=True))
    torch.testing.assert_close(z, whole.z_losses(scores))


SEEN = torch.tensor([[6.0, 2.0, 0.0, 0.0, 12.0, 40.0], [2.0, 2.0, 2.0, 2.0, 8.0, 24.0]], dtype=torch.float64)


def test_the_load_of_two_layers_by_hand() -> None:
    shares = [6 / 8, 2 / 8]
    entropy = -sum(one * math.log(one) for one in shares) / math.log(4)
    assert values_of(load_totals(SEEN, 4.0, BY_ROW)) == pytest.approx(
        {
            "experts/load_max": (3.0 + 1.0) / 2,
            "experts/load_max_worst": 3.0,
            "experts/load_entropy": (entropy + 1.0) / 2,
            "experts/unused_share": 2 / 8,
            "experts/aux_loss": 20 / (2 * 4),
            "experts/z_loss": 64 / (2 * 4),
        }
    )


def test_steps_are_averaged_and_losses_by_their_normaliser() -> None:
    steps = [load_totals(SEEN, 4.0, BY_ROW), load_totals(SEEN[1:].repeat(2, 1), 1.0, BY_ROW)]
    found = values_of(merged(steps))
    assert found["experts/load_max"] == (3 + 1 + 1 + 1) / 4
    assert found["experts/load_max_worst"] == 3.0
    assert found["experts/aux_loss"] == (20 + 16) / (2 * 5)


def test_every_figure_has_a_row_of_the_page_and_losses_only_where_they_are_added() -> None:
    assert list(load_totals(SEEN, 4.0, BY_ROW)) == [one.name for one in EXPERT_METRICS]
    assert not {"experts/aux_loss", "experts/z_loss"} & load_totals(SEEN, 4.0, Balance()).keys()


def test_a_step_without_a_token_has_no_figures() -> None:
    assert load_totals(torch.zeros(2, 6, dtype=torch.float64), 1.0, BY_ROW) == {}
