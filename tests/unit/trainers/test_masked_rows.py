"""Rows that are masked are as if they were not there: loss, gradient and metrics, for both backends, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.aggregation import Aggregation, constant, sequence_mean, token_mean
from rljob_workers.algorithms.losses import masks_of_rows
from rljob_workers.algorithms.metric_totals import StepTotals, values_of
from rljob_workers.algorithms.objective import MaskedRows, Objective, Outputs
from rljob_workers.models.building import build_config, described_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.flat_model import forward
from rljob_workers.trainers.fsdp.inputs import joined_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole, score
from rljob_workers.trainers.micro_batches import RowRange
from tests.near import assert_near
from tests.objectives import clip_objective
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, make_spec, select_rows

NUM_ROWS = 8
EXACT = 1e-12
"""Joined with other rows, a row's sums are taken in another order."""

Forward = Callable[[TrainRows], tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class Model:
    """A model of a backend, with the same weights: its log-probs (and entropy), and where their gradient goes."""

    forward: Forward
    parameters: Mapping[str, torch.Tensor]


@pytest.fixture(scope="module", params=["Flat", "Fsdp"])
def model(request: pytest.FixtureRequest) -> Model:
    spec = make_spec()
    tokenizer = build_tokenizer(spec.model)
    weights = {name: tensor.double() for name, tensor in initial_state(spec.model, tokenizer).items()}
    if request.param == "Flat":
        decoder = Decoder(build_config(spec.model, tokenizer), storage=torch.float64, compute=torch.float64)
        decoder.load(weights, source="the test")
        decoder.enable_gradients(torch.zeros_like(decoder.flat))
        return Model(lambda rows: (flat_log_probs(decoder, rows), None), decoder.leaves)
    options = ModelOptions(torch.float64, torch.float64)
    whole = build_whole(model_config(described_config(spec.model, tokenizer)), options)
    whole.load_state_dict(weights, strict=False)
    return Model(lambda rows: fsdp_log_probs(whole, rows), dict(whole.named_parameters()))


def flat_log_probs(decoder: Decoder, rows: TrainRows) -> torch.Tensor:
    everything = RowRange(0, rows.response_lengths.numel(), 0, int(rows.response_lengths.sum()))
    found = forward(decoder, rows.tokens, rows.response_lengths, everything, 1.3).log_probs
    assert found is not None
    return found


def fsdp_log_probs(whole: Any, rows: TrainRows) -> tuple[torch.Tensor, torch.Tensor]:
    return score(whole, joined_inputs(rows.tokens, rows.response_lengths, torch.device("cpu")), 1.3)


@dataclass(frozen=True)
class Result:
    """What an optimizer step would be made of."""

    statistics: Mapping[str, float]
    gradients: Mapping[str, torch.Tensor]


def step(model: Model, objective: Objective, shares: list[TrainRows]) -> Result:
    """Sums over the shares of all ranks, divided by the sum of their normalisers."""
    for parameter in model.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    totals = StepTotals(objective.metrics, 0, 1)
    buffer = torch.zeros(totals.size, dtype=torch.float64)
    totals.clear(buffer)
    for rows in shares:
        columns = columns_of(rows)
        masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
        weights = objective.weigh(masked)
        totals.add_weights(buffer, weights, masked)
        new, entropy = model.forward(rows)
        sums = objective.loss(Outputs(log_probs=new, entropy=entropy), columns, masked, weights.weights)
        torch.autograd.backward(sums.loss)
        totals.add(buffer, sums, masked)
    loss, normaliser, metrics = totals.read(buffer.tolist())
    return Result(
        {**values_of(metrics), "loss": loss / normaliser, "normaliser": normaliser},
        {name: gradient_of(parameter) / normaliser for name, parameter in model.parameters.items()},
    )


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def columns_of(rows: TrainRows) -> dict[Column, torch.Tensor]:
    """In float64 what is not a count."""
    exact = {column: values.values for column, values in rows.columns.items()}
    return {column: values.double() if values.is_floating_point() else values for column, values in exact.items()}


def masked(rows: TrainRows, retained: list[bool], poison: float) -> TrainRows:
    """The rows with those that are not kept masked; what is known of their tokens is worthless."""
    keep = torch.tensor(retained)
    of_tokens = keep.repeat_interleave(rows.response_lengths)

    def spoilt(column: Jagged | None) -> Jagged:
        assert column is not None
        return Jagged(torch.where(of_tokens, column.values, poison), column.offsets)

    masks = masks_of_rows(rows.columns[Column.LOSS_MASKS].values, rows.response_lengths, keep)
    return replaced(
        rows,
        loss_masks=Jagged(masks, rows.columns[Column.LOSS_MASKS].offsets),
        log_probs=spoilt(rows.columns[Column.LOG_PROBS]),
        rollout_log_probs=spoilt(rows.columns[Column.ROLLOUT_LOG_PROBS]),
        advantages=spoilt(rows.columns[Column.ADVANTAGES]),
        ref_log_probs=spoilt(rows.columns[Column.REF_LOG_PROBS]),
    )


@pytest.mark.parametrize("aggregate", [token_mean, sequence_mean, partial(constant, length=5)])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    retained=st.lists(st.booleans(), min_size=NUM_ROWS, max_size=NUM_ROWS),
    ends=st.lists(st.integers(0, NUM_ROWS), max_size=2).map(sorted),
    poison=st.sampled_from([0.0, float("nan"), float("inf"), -1e30]),
)
def test_masked_rows_are_as_if_they_were_not_there(
    model: Model, aggregate: Aggregation, seed: int, retained: list[bool], ends: list[int], poison: float
) -> None:
    objective = clip_objective(aggregate)
    rows = make_rows(seed, num_groups=2)
    holed = masked(rows, retained, poison)
    edges = [0, *ends, NUM_ROWS]
    shares = [list(range(start, stop)) for start, stop in pairwise(edges) if start < stop]
    found = step(model, objective, [select_rows(holed, share) for share in shares])
    left = [row for row in range(NUM_ROWS) if retained[row]]
    expected = step(model, objective, [select_rows(rows, left)] if left else [])
    for name, value in expected.statistics.items():
        assert found.statistics[name] == pytest.approx(value, rel=EXACT, abs=EXACT), name
    # All of them as one: of a row whose terms cancel, a single tensor has nothing but rounding.
    assert_near(joined(found.gradients), joined(expected.gradients), 1e-10, "the gradients")


def joined(gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.flatten() for each in gradients.values()])
