"""Weights of a simulated policy: read whole or refused by name, and each number of them counts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_workers.models.blob import write_blob
from rljob_workers.simulation.policy import (
    NAMES,
    fingerprint,
    no_moments,
    read_simulated,
    stepped,
    tensors_of,
    version_0,
    weights_of,
)


def test_parts_of_a_folder_are_the_whole(tmp_path: Path) -> None:
    weights = version_0(3)
    tensors = tensors_of(weights)
    for index in range(2):
        part = {name: tensors[name] for name in NAMES[index::2]}
        write_blob(tmp_path / f"model-{index + 1:05}-of-00002.safetensors", part)
    np.testing.assert_array_equal(read_simulated(tmp_path), weights)


@pytest.mark.parametrize(
    ("spoilt", "name"),
    [
        pytest.param({NAMES[1]: None}, NAMES[1], id="a tensor is missing"),
        pytest.param({"model.norm.weight": torch.ones(3)}, "model.norm.weight", id="one of a model"),
        pytest.param({NAMES[2]: torch.zeros(3, dtype=torch.int64)}, NAMES[2], id="another shape"),
        pytest.param({NAMES[2]: torch.zeros(8)}, NAMES[2], id="another type"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(spoilt: dict[str, torch.Tensor | None], name: str) -> None:
    tensors = {key: value for key, value in {**tensors_of(version_0(0)), **spoilt}.items() if value is not None}
    with pytest.raises(ValueError, match=f"^model: here does not hold .*tensor {name} is "):
        weights_of(tensors, source="here")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"tensor {NAMES[0]} is absent"):
        read_simulated(tmp_path)


def test_every_number_of_the_weights_counts() -> None:
    weights = version_0(1)
    found = {int(fingerprint(weights))}
    for index in range(len(weights)):
        changed = weights.copy()
        changed[index] += 1
        found.add(int(fingerprint(changed)))
    assert len(found) == len(weights) + 1


def test_steps_do_not_commute() -> None:
    def after(*gradients: int) -> int:
        weights, moments = version_0(1), no_moments()
        for gradient in gradients:
            weights, moments = stepped(weights, moments, gradient)
        return int(fingerprint(weights))

    assert after(1, 2) == after(1, 2) != after(2, 1)
