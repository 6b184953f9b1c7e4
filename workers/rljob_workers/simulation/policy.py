"""A simulated policy: what it makes of a token after another, as a function of weights, token before and position.

Of each place one token is liked best, by how much is the place's own; all others are alike. So a log-prob is a hash and
a logarithm, whatever the size of the vocabulary, and shows which weights it is of. Temperature, top-p and top-k mean
what they do for a model. Pure, over NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_workers.simulation.hashing import Words, fraction, joined, mixed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Distributions of next tokens, one for each place."""

    liked: Ints
    """The token that is liked best."""
    logits: Floats
    """Of that token, at temperature 1; those of the others are 0."""
    vocab_size: int


def places(fingerprint: np.uint64, before: Ints, positions: Ints, vocab_size: int) -> Places:
    """What follows the tokens `before`, which stand at `positions` of their rows."""
    found = joined(np.full(len(before), fingerprint), before.astype(np.uint64), positions.astype(np.uint64))
    liked = (found % np.uint64(vocab_size)).astype(np.int64)
    # Between the root of the vocabulary and its power of 1.5: neither hopeless nor certain.
    return Places(liked, np.log(vocab_size) * (0.5 + fraction(mixed(found))), vocab_size)


def log_probs(at: Places, tokens: Ints, temperature: Floats) -> Floats:
    """Of `tokens`, with logits divided by `temperature`."""
    logits = at.logits / temperature
    return np.where(tokens == at.liked, logits, 0.0) - np.logaddexp(logits, np.log(max(1, at.vocab_size - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How tokens are drawn, a row for each place."""

    temperature: Floats
    """0: the likeliest one."""
    top_p: Floats
    top_k: Ints
    """0: all tokens."""
    chance: Floats
    """In [0, 1)."""


def drawn(at: Places, choice: Choice) -> Ints:
    """A token for each place. Of tokens that are alike the lowest count as likelier, as in a sort."""
    greedy = choice.temperature == 0
    logits = at.logits / np.where(greedy, 1.0, choice.temperature)
    liked_share = np.exp(logits - np.logaddexp(logits, np.log(max(1, at.vocab_size - 1))))
    other_share = (1.0 - liked_share) / max(1, at.vocab_size - 1)
    wanted = np.ceil(np.maximum(0.0, choice.top_p - liked_share) / np.maximum(other_share, 1e-300))
    others = np.minimum(wanted, at.vocab_size - 1).astype(np.int64)
    others = np.where(choice.top_k > 0, np.minimum(others, choice.top_k - 1), others)
    others = np.where(greedy, 0, others)
    chance = choice.chance * (liked_share + others * other_share)
    place = ((chance - liked_share) / np.maximum(other_share, 1e-300)).astype(np.int64)
    other = np.clip(place, 0, np.maximum(others - 1, 0))
    other += other >= at.liked  # the liked one is left out of their order
    return np.where((chance < liked_share) | (others == 0), at.liked, other)


def seeded_chance(seeds: Words, positions: Ints) -> Floats:
    """The chance of each sample's token at each position of its output."""
    return fraction(joined(seeds, positions.astype(np.uint64)))
