"""A simulated policy: its next tokens as a hash of weights, token before and position, and the weights themselves.

For `engines.sim` and `trainers.sim_trainer`. One token of each place is preferred by the place's own margin, all others
are alike: a log-prob is a hash and a logarithm at any vocabulary and shows which weights made it. Hashes are splitmix64
(Steele, Lea, Flood 2014); sums wrap around, so that the order of rows and the number of ranks do not matter. The
weights are tensors by name, and travel, are saved and refused as those of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError

from rljob_workers.models.blob import read_weights

Uints = npt.NDArray[np.uint64]


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)


_MIX_2 = np.uint64(0x94D049BB133111EB)


def mixed(values: Uints) -> Uints:
    """A pseudo-random number for each."""
    with np.errstate(over="ignore"):
        values = values + _GAMMA
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
        return values ^ (values >> np.uint64(31))


def joined(*columns: Uints) -> Uints:
    """A number for each row of several columns; the order of the columns counts."""
    found = mixed(columns[0])
    with np.errstate(over="ignore"):
        for column in columns[1:]:
            found = mixed(found + column)
    return found


def uints(values: npt.NDArray[np.generic]) -> Uints:
    """Whole numbers as such, and float32 by its bits."""
    if values.dtype == np.float32:
        return values.view(np.uint32).astype(np.uint64)
    return values.astype(np.int64).view(np.uint64)


def fraction(values: Uints) -> npt.NDArray[np.float64]:
    """Of each its upper bits, as a number in [0, 1)."""
    return (values >> np.uint64(12)).astype(np.float64) * 2.0**-52


Ints = npt.NDArray[np.int64]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class NextTokens:
    """Distributions of next tokens, one for each place."""

    liked: Ints
    """The token that is liked best."""
    logits: Floats
    """Of that token, at temperature 1; those of the others are 0."""
    vocab_size: int


def places(fingerprint: np.uint64, before: Ints, positions: Ints, vocab_size: int) -> NextTokens:
    """What follows the tokens `before`, which stand at `positions` of their rows."""
    found = joined(np.full(len(before), fingerprint), before.astype(np.uint64), positions.astype(np.uint64))
    liked = (found % np.uint64(vocab_size)).astype(np.int64)
    # Between the root of the vocabulary and its power of 1.5: neither hopeless nor certain.
    return NextTokens(liked, np.log(vocab_size) * (0.5 + fraction(mixed(found))), vocab_size)


def log_probs(at: NextTokens, tokens: Ints, temperature: Floats) -> Floats:
    """Of `tokens`, with logits divided by `temperature`."""
    logits = at.logits / temperature
    return np.where(tokens == at.liked, logits, 0.0) - np.logaddexp(logits, np.log(max(1, at.vocab_size - 1)))


def values_at(fingerprint: np.uint64, before: Ints, positions: Ints) -> Floats:
    """What a simulated critic expects after the tokens `before`, which stand at `positions` of their rows: [-1, 1)."""
    found = joined(np.full(len(before), fingerprint), before.astype(np.uint64), positions.astype(np.uint64))
    return 2.0 * fraction(found) - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class SamplingChoice:
    """How tokens are drawn, a row for each place."""

    temperature: Floats
    """0: the likeliest one."""
    top_p: Floats
    top_k: Ints
    """0: all tokens."""
    min_p: Floats
    """0: all tokens."""
    chance: Floats
    """In [0, 1)."""


def drawn(at: NextTokens, choice: SamplingChoice) -> Ints:
    """A token for each place. Of tokens that are alike the lowest count as likelier, as in a sort."""
    greedy = choice.temperature == 0
    logits = at.logits / np.where(greedy, 1.0, choice.temperature)
    liked_share = np.exp(logits - np.logaddexp(logits, np.log(max(1, at.vocab_size - 1))))
    other_share = (1.0 - liked_share) / max(1, at.vocab_size - 1)
    wanted = np.ceil(np.maximum(0.0, choice.top_p - liked_share) / np.maximum(other_share, 1e-300))
    others = np.minimum(wanted, at.vocab_size - 1).astype(np.int64)
    others = np.where(choice.top_k > 0, np.minimum(others, choice.top_k - 1), others)
    others = np.where(greedy | (other_share < choice.min_p * liked_share), 0, others)
    chance = choice.chance * (liked_share + others * other_share)
    place = ((chance - liked_share) / np.maximum(other_share, 1e-300)).astype(np.int64)
    other = np.clip(place, 0, np.maximum(others - 1, 0))
    other += other >= at.liked  # the liked one is left out of their order
    return np.where((chance < liked_share) | (others == 0), at.liked, other)


def seeded_chance(seeds: Uints, positions: Ints) -> Floats:
    """The chance of each sample's token at each position of its output."""
    return fraction(joined(seeds, positions.astype(np.uint64)))


_LENGTH, _ANGLE = (np.uint64(0x6C656E677468), np.uint64(0x616E676C65))
"""Apart from the chances of tokens, which are of the same seeds."""


def response_lengths(seeds: Uints, mean: float, sigma: float) -> Ints:
    """Log-normal lengths [samples], at least 1: exp(mu + sigma z), mu = ln(mean) - sigma^2 / 2, z by Box and Muller."""
    radius = np.sqrt(-2 * np.log1p(-fraction(joined(seeds, np.full_like(seeds, _LENGTH)))))
    normal = radius * np.cos(2 * np.pi * fraction(joined(seeds, np.full_like(seeds, _ANGLE))))
    lengths = np.exp(np.log(mean) - sigma**2 / 2 + sigma * normal)
    whole: Ints = np.maximum(1, np.rint(lengths)).astype(np.int64)
    return whole


NUM_TENSORS = 8
"""So many ranks can have a part of the weights."""


NUM_ELEMENTS = 8


NAMES = tuple(f"simulated.{index}.weight" for index in range(NUM_TENSORS))


_PLACES = np.arange(NUM_TENSORS * NUM_ELEMENTS, dtype=np.uint64)


def version_0(seed: int) -> Uints:
    """[NUM_TENSORS * NUM_ELEMENTS] of the untrained policy."""
    return joined(np.full_like(_PLACES, seed), _PLACES)


def no_moments() -> Uints:
    """The optimizer's state before the first step; as long as the weights."""
    return np.zeros_like(_PLACES)


def stepped(weights: Uints, moments: Uints, gradient: int) -> tuple[Uints, Uints]:
    """Weights and moments after an optimizer step. `gradient` is the sum of the hashes of its rows."""
    moments = joined(moments, np.full_like(_PLACES, gradient % 2**64), _PLACES)
    with np.errstate(over="ignore"):
        return weights + moments, moments


def fingerprint(weights: Uints) -> np.uint64:
    """A number that another one of any of them changes."""
    with np.errstate(over="ignore"):
        return np.uint64(mixed(joined(weights, _PLACES).sum(keepdims=True))[0])


def tensors_of(weights: Uints) -> dict[str, torch.Tensor]:
    """By name, each int64 [NUM_ELEMENTS]; copies."""
    rows = torch.from_numpy(weights.view(np.int64).reshape(NUM_TENSORS, NUM_ELEMENTS).copy())
    return {name: rows[index].clone() for index, name in enumerate(NAMES)}


def read_simulated(path: Path) -> Uints:
    """The weights of a safetensors file, or of a folder of parts; ValueError names what does not fit."""
    try:
        tensors = read_weights(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"model_path: {path} has no readable safetensors file ({error}).") from error
    return weights_of(tensors, source=str(path))


def weights_of(tensors: Mapping[str, torch.Tensor], *, source: str) -> Uints:
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
