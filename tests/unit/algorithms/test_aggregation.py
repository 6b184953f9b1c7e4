"""How token losses become one number."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.aggregation import Aggregation, constant, sequence_mean, sequence_sum, token_mean
from rljob_workers.algorithms.objective import MaskedRows

MASKS = torch.tensor([1, 1, 0, 1, 0, 0], dtype=torch.uint8)
LENGTHS = torch.tensor([3, 1, 0, 2])
ALL: tuple[Aggregation, ...] = (token_mean, sequence_mean, sequence_sum, partial(constant, length=7))
LOSSES = torch.tensor([2.0, 4.0, 100.0, 6.0, 100.0, 100.0])


@pytest.mark.parametrize(
    ("aggregate", "weights", "normaliser", "mean"),
    [
        pytest.param(token_mean, [1, 1, 0, 1, 0, 0], 3.0, 4.0, id="tokens count alike: (2 + 4 + 6) / 3"),
        pytest.param(sequence_sum, [1, 1, 0, 1, 0, 0], 2.0, 6.0, id="sums of samples count alike: (6 + 6) / 2"),
        pytest.param(
            partial(constant, length=4), [1, 1, 0, 1, 0, 0], 8.0, 1.5, id="each divided by 4: (6 / 4 + 6 / 4) / 2"
        ),
        pytest.param(
            sequence_mean, [0.5, 0.5, 0, 1, 0, 0], 2.0, 4.5, id="samples count alike, empty ones do not: (3 + 6) / 2"
        ),
    ],
)
def test_weights(aggregate: Aggregation, weights: list[float], normaliser: float, mean: float) -> None:
    result = aggregate(MaskedRows(MASKS, LENGTHS))
    torch.testing.assert_close(result.weights, torch.tensor(weights, dtype=torch.float32))
    assert float(result.normaliser) == normaliser
    assert float(result.weights @ LOSSES / result.normaliser) == mean


@settings(max_examples=30)  # of whole batches each
@given(st.lists(st.lists(st.booleans(), max_size=6), min_size=2, max_size=8), st.data())
def test_a_batch_may_be_cut_anywhere_between_rows(rows: list[list[bool]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows) - 1))
    for aggregate in ALL:
        whole = aggregate(MaskedRows(*_flat(rows)))
        parts = [aggregate(MaskedRows(*_flat(rows[:cut]))), aggregate(MaskedRows(*_flat(rows[cut:])))]
        torch.testing.assert_close(torch.cat([part.weights for part in parts]), whole.weights)
        assert float(parts[0].normaliser + parts[1].normaliser) == float(whole.normaliser)


def mean(aggregate: Aggregation, rows: MaskedRows, losses: torch.Tensor) -> torch.Tensor:
    result = aggregate(rows)
    return result.weights @ losses / result.normaliser


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_on_responses_of_one_length_all_are_the_mean_or_its_multiple(count: int, length: int, seed: int) -> None:
    rows = MaskedRows(torch.ones(count * length), torch.full((count,), length))
    losses = torch.randn(count * length, generator=torch.Generator().manual_seed(seed))
    for aggregate in (sequence_mean, partial(constant, length=length)):
        torch.testing.assert_close(mean(aggregate, rows, losses), losses.mean())
    torch.testing.assert_close(mean(sequence_sum, rows, losses), losses.mean() * length)


@given(st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=8).filter(lambda rows: any(map(any, rows))))
def test_the_constant_1_is_the_sum(rows: list[list[bool]]) -> None:
    masked = MaskedRows(*_flat(rows))
    losses = torch.arange(len(masked.masks), dtype=torch.float32)
    assert mean(partial(constant, length=1), masked, losses) == mean(sequence_sum, masked, losses)


def _flat(rows: list[list[bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    masks = torch.tensor([int(token) for row in rows for token in row], dtype=torch.uint8)
    return masks, torch.tensor([len(row) for row in rows], dtype=torch.int64)
