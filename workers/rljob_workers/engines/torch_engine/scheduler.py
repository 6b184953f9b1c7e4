"""Continuous batching by torch: which forward passes are computed for the samples that run, on which cache.

Used by the model loop's thread only. The books are the base's; here prompts are computed once per group, KV is copied
to its samples, a step is one pass over all slots, and after new weights (Retract) the KV is recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching, Room
from rljob_workers.engines.torch_engine.decoder import Decoder, DecoderWeights, KvCache, read_weights
from rljob_workers.engines.torch_engine.requests import StepFailed

if TYPE_CHECKING:
    from pathlib import Path

    from rljob_workers.engines.torch_engine.decoder import Geometry
    from rljob_workers.engines.torch_engine.slots import Admission, Drawn, Moves


_SLACK_TOKENS = 16
"""Prompts whose lengths differ by no more share a pass: a second pass costs more than so much padding."""


@dataclass(frozen=True, slots=True, eq=False)
class PaddedPrompts:
    """`ids` [B, T] int64, zeros behind each sequence; `lengths` [B] int64."""

    ids: torch.Tensor
    lengths: torch.Tensor


def pad_prompts(sequences: Sequence[Sequence[int]]) -> PaddedPrompts:
    """Pads to the longest."""
    lengths = [len(sequence) for sequence in sequences]
    width = max(lengths)
    padded = [[*sequence, *([0] * (width - length))] for sequence, length in zip(sequences, lengths, strict=True)]
    return PaddedPrompts(torch.tensor(padded, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))


def cut_chunks(admitted: list[Admission], max_tokens: int) -> list[list[Admission]]:
    """Sorts by prompt length and cuts into passes of at most `max_tokens` padded tokens (or one prompt)."""
    chunks: list[list[Admission]] = []
    for one in sorted(admitted, key=lambda admission: -len(admission.group.prompt)):
        length = len(one.group.prompt)
        if chunks:
            longest = len(chunks[-1][0].group.prompt)
            is_alike = longest - length <= max(_SLACK_TOKENS, longest // 4)
            if is_alike and longest * (len(chunks[-1]) + 1) <= max_tokens:
                chunks[-1].append(one)
                continue
        chunks.append([one])
    return chunks


_CACHE_SHARE = 8
"""The part of a device's memory that goes to keys and values, as one of so many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine; what is beyond them waits."""

    max_running_samples: int = 2048
    """Slots. More samples than this of one request run one after another."""
    max_cache_bytes: int = 4 << 30
    """Keys and values of all slots, counted as if every sample reached its longest output."""
    max_prefill_tokens: int = 16384
    """Padded prompt tokens that are computed in one forward pass."""

    @classmethod
    def on(cls, device: torch.device) -> Limits:
        """Those of an engine on `device`, of whose memory the cache takes an eighth: a trainer may share it."""
        if device.type == "cpu":
            return cls()
        memory = torch.cuda.get_device_properties(device).total_memory
        return cls(max_cache_bytes=memory // _CACHE_SHARE)


class Scheduler(ContinuousBatching[DecoderWeights]):
    """The state of the engine but its threads: weights, cache, and in which order its slots stand."""

    def __init__(self, geometry: Geometry, limits: Limits) -> None:
        """Starts without weights: submissions are refused."""
        max_cells = max(1, limits.max_cache_bytes // geometry.cell_bytes)
        super().__init__(Room(geometry.vocab_size, geometry.max_positions, limits.max_running_samples, max_cells))
        self._geometry = geometry
        self._limits = limits
        self._decoder = Decoder(geometry)
        self._cache = KvCache(geometry, max_cells)

    def drop_cache(self) -> None:
        """See the base."""
        self._cache.drop()

    def _read_weights(self, path: Path) -> DecoderWeights:
        return read_weights(path, self._geometry)

    def _score(self, weights: DecoderWeights, tokens: Sequence[int]) -> list[float]:
        return self._decoder.score(weights, tokens).tolist()

    def _passes(self, admitted: list[Admission]) -> list[list[Admission]]:
        return cut_chunks(admitted, self._limits.max_prefill_tokens)

    def _prefill(self, admitted: list[Admission], start: int) -> Drawn:
        """Computes prompts once, copies their KV to their samples, draws the first tokens."""
        assert self._weights is not None, "samples are only admitted while weights are held"
        padded = pad_prompts([one.group.prompt for one in admitted])
        self._cache.reserve(self._slots.count, self._longest())
        copies = torch.tensor([one.count for one in admitted])
        logits = self._decoder.prefill(self._weights, padded.ids, padded.lengths, self._cache, start, copies)
        return self._draw(start, logits)

    def _decode(self) -> Drawn:
        assert self._weights is not None, "samples only run while weights are held"
        if (moves := self._slots.sort()) is not None:
            self._move_cache(moves)
        slots = self._slots
        logits = self._decoder.decode(self._weights, slots.last_token, slots.length, slots.runs, self._cache)
        slots.length += 1
        return self._draw(0, logits)

    def _draw(self, start: int, logits: torch.Tensor) -> Drawn:
        tokens, log_probs = self._slots.draw(start, logits)
        if not np.isfinite(log_probs).all():
            raise StepFailed(
                f"The model's logits are not finite under weights {self.held}: training may have diverged."
            )
        return tokens, log_probs

    def _move_cache(self, moves: Moves) -> None:
        if moves.sources.size and not self._is_stale:
            sources, targets = torch.from_numpy(moves.sources), torch.from_numpy(moves.targets)
            self._cache.move(sources, targets, self._longest())

    def _recompute(self) -> None:
        """Computes the KV of all running samples under the current weights: prompt and all but the last token."""
        assert self._weights is not None, "samples only run while weights are held"
        count = self._slots.count
        self._cache.reserve(count, self._longest() + 1)
        start = 0
        while start < count:
            padded = self._cached_tokens(start)
            self._decoder.prefill(self._weights, padded.ids, padded.lengths, self._cache, start)
            start += padded.ids.shape[0]
        self._is_stale = False

    def _cached_tokens(self, start: int) -> PaddedPrompts:
        """Tokens whose KV belongs into the cache, for as many slots from `start` on as one pass may compute."""
        sequences: list[list[int]] = []
        longest = 0
        drawn, owners, groups = self._slots.num_drawn, self._slots.batch, self._slots.group
        for slot in range(start, self._slots.count):
            prompt = self._batches[int(owners[slot])].groups[int(groups[slot])].prompt
            tokens = [*prompt, *self._slots.tokens[slot, : drawn[slot] - 1].tolist()]
            longest = max(longest, len(tokens))
            if sequences and longest * (len(sequences) + 1) > self._limits.max_prefill_tokens:
                break
            sequences.append(tokens)
        return pad_prompts(sequences)

    def _longest(self) -> int:
        return int(self._slots.length.max(initial=0))
