"""The weights of a simulated policy: a few numbers that every row of training changes, in the shape of a model's.

Tensors of whole numbers by name, so that they travel, are saved, checked and refused as those of a model are. Two runs
over the same rows reach the same weights, bit for bit, with any number of ranks and in whatever order rows come.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from rljob_workers.models.blob import read_weights
from rljob_workers.simulation.hashing import Words, joined, mixed

NUM_TENSORS = 8
"""So many ranks can have a part of the weights."""
NUM_ELEMENTS = 8
NAMES = tuple(f"simulated.{index}.weight" for index in range(NUM_TENSORS))
_PLACES = np.arange(NUM_TENSORS * NUM_ELEMENTS, dtype=np.uint64)


def version_0(seed: int) -> Words:
    """[NUM_TENSORS * NUM_ELEMENTS] of the policy that nobody trained."""
    return joined(np.full_like(_PLACES, seed), _PLACES)


def no_moments() -> Words:
    """The optimizer's state before the first step; as long as the weights."""
    return np.zeros_like(_PLACES)


def stepped(weights: Words, moments: Words, gradient: int) -> tuple[Words, Words]:
    """Weights and moments after an optimizer step. `gradient` is the sum of the hashes of its rows."""
    moments = joined(moments, np.full_like(_PLACES, gradient % 2**64), _PLACES)
    with np.errstate(over="ignore"):
        return weights + moments, moments


def fingerprint(weights: Words) -> np.uint64:
    """A number that another one of any of them changes."""
    with np.errstate(over="ignore"):
        return np.uint64(mixed(joined(weights, _PLACES).sum(keepdims=True))[0])


def tensors_of(weights: Words) -> dict[str, torch.Tensor]:
    """By name, each int64 [NUM_ELEMENTS]; copies."""
    rows = torch.from_numpy(weights.view(np.int64).reshape(NUM_TENSORS, NUM_ELEMENTS).copy())
    return {name: rows[index].clone() for index, name in enumerate(NAMES)}


def read_simulated(path: Path) -> Words:
    """The weights of a safetensors file, or of a folder of parts; ValueError names what does not fit."""
    try:
        tensors = read_weights(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"model_path: {path} has no readable safetensors file ({error}).") from error
    return weights_of(tensors, source=str(path))


def weights_of(tensors: Mapping[str, torch.Tensor], *, source: str) -> Words:
    """The weights out of all tensors; ValueError names the first that is missing, unknown or of another shape."""
    for name in (*NAMES, *tensors):
        tensor = tensors.get(name)
        fits = tensor is not None and tensor.dtype is torch.int64 and tuple(tensor.shape) == (NUM_ELEMENTS,)
        if name not in NAMES or not fits:
            found = "absent" if tensor is None else f"{tensor.dtype} of shape {list(tensor.shape)}"
            raise ValueError(
                f"model: {source} does not hold the weights of a simulated policy: tensor {name} is {found} there. "
                "Use weights that a simulated job has made."
            )
    stacked = torch.stack([tensors[name] for name in NAMES]).flatten()
    return stacked.numpy().view(np.uint64)
