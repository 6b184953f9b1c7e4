"""From a job's algorithm to its objective: names, functions of the user's, and bounds that depend on the loss."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from pydantic.alias_generators import to_camel

from rljob_api.spec.algorithm import (
    CLIP_READ_BY,
    DEFAULT_LOSS,
    AlgorithmSpec,
    ClipSpec,
    Correction,
    Loss,
    LossAggregation,
    RatioLevel,
)
from rljob_workers.algorithms.losses import ClipBounds, Temperatures
from rljob_workers.algorithms.objective import MaskedRows
from rljob_workers.trainers.objectives import AGGREGATIONS, CORRECTIONS, LOSSES, RATIOS, correction_of, policy_objective

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom-algorithm"


def algorithm(**fields: object) -> AlgorithmSpec:
    return AlgorithmSpec.model_validate(fields)


def test_every_name_of_the_api_has_a_row() -> None:
    assert set(LOSSES) == set(Loss)
    assert set(CORRECTIONS) == set(Correction)
    assert set(RATIOS) == set(RatioLevel)
    assert set(AGGREGATIONS) == set(LossAggregation)


@pytest.mark.parametrize(
    ("fields", "made_with"),
    [
        ({}, {"bounds": ClipBounds(0.2, 0.28)}),
        ({"loss": "Gspo"}, {"bounds": ClipBounds(3e-4, 4e-4)}),
        ({"loss": "Gspo", "clip": {"high": 0.1}}, {"bounds": ClipBounds(3e-4, 0.1)}),
        ({"clip": {"low": 0.1, "dual": 3}}, {"bounds": ClipBounds(0.1, 0.28, 3.0)}),
        ({"loss": "Cispo"}, {"high": 4.0}),
        ({"loss": "Cispo", "clip": {"high": 0.28}}, {"high": 0.28}),
        ({"loss": "Sapo"}, {"temperatures": Temperatures(1.0, 1.05)}),
        ({"loss": "Sapo", "clip": {"negativeTemperature": 2}}, {"temperatures": Temperatures(1.0, 2.0)}),
        ({"loss": "Reinforce"}, {}),
    ],
)
def test_bounds_are_the_jobs_or_those_of_the_loss(fields: dict[str, object], made_with: dict[str, object]) -> None:
    assert parameters(algorithm(**fields)) == made_with


def parameters(spec: AlgorithmSpec) -> dict[str, object]:
    """What the loss was made with."""
    loss = LOSSES[spec.loss or DEFAULT_LOSS](spec.clip)
    return dict(loss.keywords) if isinstance(loss, partial) else {}


@pytest.mark.parametrize("loss", Loss)
def test_a_loss_reads_of_the_clip_what_the_api_states(loss: Loss) -> None:
    assert set(CLIP_READ_BY) == {to_camel(field) for field in ClipSpec.model_fields}
    for field, losses in CLIP_READ_BY.items():
        given = ClipSpec.model_validate({field: 2.5 if field == "dual" else 0.125})
        makes_a_difference = parameters(AlgorithmSpec(loss=loss)) != parameters(
            AlgorithmSpec.model_construct(loss=loss, clip=given)
        )
        assert makes_a_difference == (loss in losses), field


RATIO = math.log(1.25)
LOG_PROBS, ENGINE = torch.full((4,), -1.0), torch.full((4,), -1.0 - RATIO)
"""Two responses of 1 and 3 tokens, on each of which the trainer's probability is 5 / 4 of the engine's."""


@pytest.mark.parametrize(
    ("fields", "weights"),
    [
        pytest.param({}, [1.25] * 4, id="by default"),
        pytest.param({"cap": 1.2}, [1.2] * 4, id="a cap"),
        pytest.param({"level": "Sequence", "cap": 1.5}, [1.25, 1.5, 1.5, 1.5], id="a cap of responses"),
        pytest.param({"level": "GeometricMean", "cap": 1.5}, [1.25] * 4, id="of their means"),
        pytest.param({"kind": "IcePop", "floor": 0, "cap": 1.2}, [0] * 4, id="AReaL's cap"),
        pytest.param({"kind": "IcePop", "level": "Sequence", "cap": 1.5}, [1.25, 0, 0, 0], id="TRL's default"),
        pytest.param({"kind": "Untruncated"}, [1.25] * 4, id="decoupled PPO"),
        pytest.param({"kind": "Untruncated", "level": "Sequence"}, [1.25, *[1.25**3] * 3], id="of responses"),
        pytest.param({"kind": "None", "mask": {"cap": 1.5}}, [1] * 4, id="a mask that leaves all"),
        pytest.param({"kind": "None", "mask": {"cap": 1.2}}, [0] * 4, id="a mask of tokens"),
        pytest.param({"kind": "None", "mask": {"cap": 1.5, "level": "Sequence"}}, [1, 0, 0, 0], id="of responses"),
        pytest.param({"mask": {"floor": 0.5, "level": "GeometricMean"}}, [1.25] * 4, id="a floor, and a weight"),
        pytest.param({"mask": {"cap": 1.5, "level": "Sequence"}}, [1.25, 0, 0, 0], id="a weight and a mask"),
    ],
)
def test_weights_of_a_correction(fields: dict[str, object], weights: list[float]) -> None:
    correct = correction_of(algorithm(correction=fields))
    assert correct is not None
    rows = MaskedRows(torch.ones(4), torch.tensor([1, 3]))
    assert correct(LOG_PROBS, ENGINE, rows).tolist() == pytest.approx(weights)


def test_without_weights_and_mask_there_is_no_correction() -> None:
    assert correction_of(algorithm(correction={"kind": "None"})) is None


def test_a_function_of_the_users_is_loaded_from_its_folder() -> None:
    policy_objective(algorithm(loss="algorithm:cispo", path=str(EXAMPLE)), 8)


@pytest.mark.parametrize(
    ("fields", "normaliser"),
    [
        ({}, 5),
        ({"lossAggregation": "SequenceMean"}, 2),
        ({"lossAggregation": "SequenceSum"}, 2),
        ({"lossAggregation": "Constant"}, 2 * 8),
        ({"lossAggregation": "Constant", "constantLength": 3}, 2 * 3),
    ],
)
def test_the_constant_is_the_jobs_or_its_longest_response(fields: dict[str, object], normaliser: int) -> None:
    rows = MaskedRows(torch.ones(5), torch.tensor([2, 3]))
    assert float(policy_objective(algorithm(**fields), 8).weigh(rows).normaliser) == normaliser


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"loss": "algorithm:nothing"}, r"^algorithm\.loss: algorithm:nothing was not found: .* has no 'nothing'"),
        ({"loss": "algorithm:centred"}, r"^algorithm\.loss: algorithm:centred cannot be called with 4 arguments"),
        ({"correction": {"kind": "absent:one"}}, r"^algorithm\.correction\.kind: module absent of absent:one was not"),
        ({"lossAggregation": "algorithm:cispo"}, r"^algorithm\.lossAggregation: .* cannot be called with one argument"),
    ],
)
def test_what_cannot_be_loaded_is_named(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        policy_objective(algorithm(path=str(EXAMPLE), **fields), 8)
