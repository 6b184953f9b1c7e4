"""A tiny model whose answers have log-normal lengths: a folder that our engines, our trainers and TRL load.

Attention and feed-forward layers add nothing, so that the token before alone says what comes next: embeddings are
one-hot, and the head has the log-probs of a Markov chain. A token of the answer says how old the answer is: one age for
each young one, later some ages together. From each the answer ends, stays or goes on so often that the chance to be
longer is the log-normal one where ages change, and the mean length is its own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import torch

from rljob_api.spec.model import ModelSpec
from rljob_workers.models.building import EMBEDDING, HEAD, build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer

NEVER = -30.0
"""Log-prob of what does not follow."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths in tokens, rounded up."""

    mean: float
    """Before rounding."""
    sigma: float

    def longer_than(self, length: int) -> float:
        """The chance."""
        if length == 0:
            return 1.0
        mu = math.log(self.mean) - self.sigma**2 / 2
        return 1.0 - NormalDist(mu, self.sigma).cdf(math.log(length))

    def mean_cut_at(self, longest: int) -> float:
        """Of lengths that are cut there."""
        return sum(self.longer_than(length) for length in range(longest))


@dataclass(frozen=True, slots=True)
class Age:
    """Of one token of the chain, the chances of what follows; else the token follows itself."""

    ends: float
    goes_on: float


def ages(lengths: LogNormal, count: int, longest: int) -> list[Age]:
    """Of so many tokens, of which the first follows the prompt; together they are `longest` tokens old."""
    borders = [0, *_borders(count, longest)]
    return [_age(lengths, first, last) for first, last in itertools.pairwise(borders)]


def _borders(count: int, longest: int) -> list[int]:
    """Rising by one at first, then by a factor, as small as reaches `longest`."""
    low, high = 1.0, 2.0
    for _ in range(60):
        factor = (low + high) / 2
        low, high = (low, factor) if _rising(count, factor)[-1] >= longest else (factor, high)
    return _rising(count, high)


def _rising(count: int, factor: float) -> list[int]:
    found = [1]
    while len(found) < count:
        found.append(max(found[-1] + 1, round(found[-1] * factor)))
    return found


def _age(lengths: LogNormal, first: int, last: int) -> Age:
    """Leaves by going on with the chance of those that are older than `first` to be older than `last`."""
    begun = lengths.longer_than(first)
    tokens = sum(lengths.longer_than(age) for age in range(first, last)) / begun
    goes_on = lengths.longer_than(last) / begun / tokens
    return Age(ends=1 / tokens - goes_on, goes_on=goes_on)


def write_tail_model(folder: Path, model: ModelSpec, lengths: LogNormal, longest: int) -> None:
    """Weights for `model.config`, whose hidden states have room for its vocabulary; prompts end with "="."""
    tokenizer = build_tokenizer(model)
    config = build_config(model, tokenizer)
    state = initial_state(model, tokenizer)
    size = config.vocab_size
    for name, tensor in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    state[EMBEDDING] = torch.eye(size, config.hidden_size)
    state[HEAD] = torch.zeros(size, config.hidden_size)
    # The last norm makes a one-hot state this long.
    state[HEAD][:, :size] = _log_probs(size, *_chain_tokens(tokenizer), lengths, longest) / math.sqrt(
        config.hidden_size
    )
    save_folder(folder, config, tokenizer, state)


def _chain_tokens(tokenizer: object) -> tuple[list[int], int]:
    """The token that ends prompts and those that no prompt has, in order; and the end of the sequence."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()  # type: ignore[attr-defined]
    letters = sorted(token for token in vocabulary if len(token) == 1 and token.isalpha())
    return [vocabulary["="], *(vocabulary[letter] for letter in letters)], tokenizer.eos_token_id  # type: ignore[attr-defined]


def _log_probs(size: int, tokens: list[int], end: int, lengths: LogNormal, longest: int) -> torch.Tensor:
    """[next, before]; behind a token that is not of the chain the answer ends."""
    chances = torch.zeros(size, size)
    chances[end] = 1.0
    for (token, after), age in zip(
        itertools.pairwise([*tokens, tokens[-1]]), ages(lengths, len(tokens), longest), strict=True
    ):
        chances[:, token] = 0.0
        chances[end, token] = age.ends
        chances[token, token] += max(0.0, 1 - age.ends - age.goes_on)
        chances[after, token] += age.goes_on
    return chances.log().clamp(min=NEVER)
