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

from rljob_workers.devices import moved
from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching, Room
from rljob_workers.engines.torch_engine.decoder import Decoder, DecoderWeights, KvCache, read_weights
from rljob_workers.engines.torch_engine.requests import StepFailed
from rljob_workers.engines.torch_engine.slots import (
    Moves,
    Run,
    draw_tokens,
    needs_sorting,
    plan_compaction,
    plan_runs,
    plan_sorting,
    round_width,
    shrink_runs,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rljob_workers.engines.torch_engine.decoder import Geometry
    from rljob_workers.engines.torch_engine.slots import Admission


_SLACK_TOKENS = 16
"""Prompts whose lengths differ by no more share a pass: a second pass costs more than so much padding."""


@dataclass(frozen=True, slots=True, eq=False)
class PaddedPrompts:
    """`ids` [B, T] int64, zeros behind each sequence; `lengths` [B] int64."""

    ids: torch.Tensor
    lengths: torch.Tensor

    @property
    def width(self) -> int:
        """T."""
        return self.ids.shape[1]


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
        self._runs: list[Run] = []

    def drop_cache(self) -> None:
        """See the base."""
        self._cache.drop()

    def _read_weights(self, path: Path) -> DecoderWeights:
        return read_weights(path, self._geometry)

    def _score(self, weights: DecoderWeights, tokens: Sequence[int]) -> list[float]:
        return self._decoder.score(weights, tokens).tolist()

    def _admit(self, admitted: list[Admission]) -> None:
        for chunk in cut_chunks(admitted, self._limits.max_prefill_tokens):
            self._admit_chunk(chunk)

    def _admit_chunk(self, admitted: list[Admission]) -> None:
        """Computes prompts once, copies their KV to their samples, draws the first tokens."""
        assert self._weights is not None, "samples are only admitted while weights are held"
        start = self._slots.count
        self._slots.append(admitted)
        padded = pad_prompts([one.group.prompt for one in admitted])
        self._cache.reserve(self._slots.count, round_width(max(padded.width, self._longest())))
        prefilled = self._decoder.prefill(self._weights, padded.ids, padded.lengths)
        counts = torch.tensor([one.count for one in admitted])
        source = moved(torch.arange(len(admitted)).repeat_interleave(counts), self._geometry.device)
        for layer, (keys, values) in enumerate(zip(prefilled.keys, prefilled.values, strict=True)):
            self._cache.write_prompts(layer, start, keys[source], values[source])
        self._mark_weight(start)
        self._runs = plan_runs(self._slots.ints("length"))
        self._draw(start, prefilled.logits[source])

    def _decode(self) -> None:
        assert self._weights is not None, "samples only run while weights are held"
        self._sort_by_length()
        self._cache.reserve(self._slots.count, round_width(self._longest() + 1))
        lengths = self._slots.ints("length")
        logits = self._decoder.decode(self._weights, self._slots.ints("last_token"), lengths, self._runs, self._cache)
        lengths += 1
        self._draw(0, logits)

    def _draw(self, start: int, logits: torch.Tensor) -> None:
        """Draws a token for every slot from `start` on and ends what is complete."""
        answer = draw_tokens(logits, self._slots.sampling(start), self._slots.ints("num_drawn")[start:])
        tokens, log_probs = (column.cpu() for column in answer)
        if not bool(torch.isfinite(log_probs).all()):
            raise StepFailed(
                f"The model's logits are not finite under weights {self.held}: training may have diverged."
            )
        self._record(start, tokens.numpy(), log_probs.numpy())

    def _compact(self, live: npt.NDArray[np.bool_]) -> None:
        self._move(plan_compaction(self._runs, live), int(np.count_nonzero(live)))
        self._runs = shrink_runs(self._runs, live, self._slots.ints("length"))

    def _forget_slots(self) -> None:
        self._runs = []

    def _move(self, moves: Moves, count: int) -> None:
        if moves.sources.size and not self._is_stale:
            sources, targets = torch.from_numpy(moves.sources), torch.from_numpy(moves.targets)
            self._cache.move(sources, targets, self._longest())
        self._slots.move(moves, count)

    def _sort_by_length(self) -> None:
        """Sorts slots when neighbours are so unlike that attention would need many calls."""
        lengths = self._slots.ints("length")
        if needs_sorting(self._runs, lengths):
            self._move(plan_sorting(lengths), self._slots.count)
            self._runs = plan_runs(self._slots.ints("length"))

    def _recompute(self) -> None:
        """Computes the KV of all running samples under the current weights: prompt and all but the last token."""
        assert self._weights is not None, "samples only run while weights are held"
        count = self._slots.count
        self._cache.reserve(count, round_width(self._longest() + 1))
        start = 0
        while start < count:
            padded = self._cached_tokens(start)
            prefilled = self._decoder.prefill(self._weights, padded.ids, padded.lengths)
            for layer, (keys, values) in enumerate(zip(prefilled.keys, prefilled.values, strict=True)):
                self._cache.write_prompts(layer, start, keys, values)
            start += padded.ids.shape[0]
        self._is_stale = False

    def _cached_tokens(self, start: int) -> PaddedPrompts:
        """Tokens whose KV belongs into the cache, for as many slots from `start` on as one pass may compute."""
        sequences: list[list[int]] = []
        longest = 0
        drawn, owners, groups = (self._slots.ints(name) for name in ("num_drawn", "batch", "group"))
        for slot in range(start, self._slots.count):
            prompt = self._batches[int(owners[slot])].groups[int(groups[slot])].prompt
            tokens = [*prompt, *self._slots.tokens[slot, : drawn[slot] - 1].tolist()]
            longest = max(longest, len(tokens))
            if sequences and longest * (len(sequences) + 1) > self._limits.max_prefill_tokens:
                break
            sequences.append(tokens)
        return pad_prompts(sequences)

    def _longest(self) -> int:
        return int(self._slots.ints("length").max(initial=0))
