"""The critic's objective, by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.value import VALUE_CLIPPED, VALUE_ERROR, ValueObjective
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.flat_model import FlatModel
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.trainers.model_trainer import ModelTrainer
from rljob_workers.trainers.settings import trainer_config
from tests.unit.trainers.rows import make_spec

ROWS = MaskedRows(torch.tensor([1, 1, 1, 0]), torch.tensor([3, 1]))
COLUMNS = {
    Column.VALUES: torch.tensor([0.0, 0.0, 1.0, 0.0]),
    Column.RETURNS: torch.tensor([1.0, 1.0, 0.0, torch.nan]),
}
VALUES = torch.tensor([0.1, 0.5, 0.9, torch.nan])


def test_errors_are_clipped_around_the_values_of_before() -> None:
    objective = ValueObjective(clip=0.2)
    values = VALUES.clone().requires_grad_()
    sums = objective.loss(Outputs(values=values), COLUMNS, ROWS, objective.weigh(ROWS).weights)
    # 0.1: not beyond the clip, 0.81. 0.5 is clipped to 0.2: 0.64 > 0.25. 0.9: 0.81.
    assert float(sums.loss.detach()) == pytest.approx((0.81 + 0.64 + 0.81) / 2)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([-0.9, 0.0, 0.9, 0.0]))
    torch.testing.assert_close(sums.metrics[VALUE_ERROR.name].values, torch.tensor([0.81, 0.25, 0.81, 0.0]))
    assert sums.metrics[VALUE_CLIPPED.name].values.tolist() == [0.0, 1.0, 0.0, 0.0]


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=1, max_size=6))
def test_without_a_clip_it_is_half_the_squared_error(tokens: list[tuple[float, float, float]]) -> None:
    values, before, returns = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    rows = MaskedRows(torch.ones(len(tokens)), torch.tensor([len(tokens)]))
    columns = {Column.VALUES: before, Column.RETURNS: returns}
    for objective in (ValueObjective(clip=None), ValueObjective(clip=1e6)):
        sums = objective.loss(Outputs(values=values), columns, rows, objective.weigh(rows).weights)
        torch.testing.assert_close(sums.loss, (values - returns).square().sum() / 2)


def test_a_model_that_gives_no_values_is_refused() -> None:
    config = replace(trainer_config(make_spec()), objective=ValueObjective(), role="critic")
    model = FlatModel.__new__(FlatModel)  # refused before anything of it is used
    with pytest.raises(ValueError, match=r"^ValueObjective needs values of a forward pass, which FlatModel does not"):
        ModelTrainer(model, config, data_parallel(SingleRank()))
