"""The running samples, a row per slot: columns that grow, move and shrink, their order, and how tokens are drawn.

Used by the schedulers only. Slots 0..count-1 run without gaps; neighbours of like lengths make a run for attention. A
token is one uniform number per (seed, position), inverted through the distribution's sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.devices import moved

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.requests import IntArray, PromptGroup

    Drawn = tuple[IntArray, npt.NDArray[np.float32]]
    """A token for each of several slots, and its log-prob."""


_SLACK_TOKENS = 32
"""Lengths that differ by less share a run: a kernel call costs about as much as reading so many tokens."""


_MAX_RUNS = 8
"""More runs than this are sorted by length, which is one copy of the cache."""


@dataclass(frozen=True, slots=True)
class Run:
    """Slots [start, stop)."""

    start: int
    stop: int
    is_uniform: bool
    """All lengths are equal: attention needs no mask."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Slots `sources` go to `targets`, all at once."""

    sources: IntArray
    targets: IntArray


def plan_runs(lengths: IntArray) -> list[Run]:
    """Cuts slots in their order into runs; a run's lengths differ by at most a quarter of the longest, or the slack."""
    if lengths.size == 0:
        return []
    runs, start = [], 0
    changes = np.flatnonzero(np.diff(lengths)) + 1
    low = high = int(lengths[0])
    for change in changes.tolist():
        length = int(lengths[change])
        low, high = min(low, length), max(high, length)
        if high - low > max(_SLACK_TOKENS, high // 4):
            runs.append(_run(lengths, start, change))
            start, low, high = change, length, length
    runs.append(_run(lengths, start, lengths.size))
    return runs


def needs_sorting(runs: list[Run], lengths: IntArray) -> bool:
    """True when there are many runs and an order by length would have fewer."""
    if len(runs) <= _MAX_RUNS:
        return False
    return len(plan_runs(np.sort(lengths)[::-1])) < len(runs)


def plan_sorting(lengths: IntArray) -> Moves:
    """Longest first."""
    order = np.argsort(-lengths, kind="stable")
    targets = np.arange(lengths.size)
    moved = order != targets
    return Moves(order[moved], targets[moved])


def plan_compaction(runs: list[Run], live: npt.NDArray[np.bool_]) -> Moves:
    """Closes the gaps of finished slots within each run, so that runs stay what they are.

    Only slots outside their run's new region move: about as many as have finished, times the runs behind them.
    """
    sources, targets, start = [], [], 0
    for run in runs:
        alive = np.flatnonzero(live[run.start : run.stop]) + run.start
        stop = start + alive.size
        stays = (alive >= start) & (alive < stop)
        is_free = np.ones(alive.size, dtype=np.bool_)
        is_free[alive[stays] - start] = False
        sources.append(alive[~stays])
        targets.append(np.flatnonzero(is_free) + start)
        start = stop
    return Moves(np.concatenate(sources), np.concatenate(targets))


def shrink_runs(runs: list[Run], live: npt.NDArray[np.bool_], lengths_after: IntArray) -> list[Run]:
    """The runs after `plan_compaction`; `lengths_after` are in the new order."""
    shrunk, start = [], 0
    for run in runs:
        stop = start + int(np.count_nonzero(live[run.start : run.stop]))
        if stop > start:
            shrunk.append(_run(lengths_after, start, stop))
        start = stop
    return shrunk


def _run(lengths: IntArray, start: int, stop: int) -> Run:
    part = lengths[start:stop]
    return Run(start, stop, bool(part.min() == part.max()))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)


_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingColumns:
    """Parameters of B slots, a column each."""

    temperature: npt.NDArray[np.float32]
    """0 means greedy; log-probs are then of temperature 1."""
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    """0 means all tokens."""
    min_p: npt.NDArray[np.float32]
    """Share of the likeliest token's chance that others must have; 0 means all tokens."""
    seed: npt.NDArray[np.uint64]


def uniforms(seed: npt.NDArray[np.uint64], position: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1 - 2^-52], by two rounds of splitmix64 (Steele, Lea, Flood 2014): counter-based, no state.

    52 bits, so that number * sum is below the sum in float64 whatever the rounding.
    """
    with np.errstate(over="ignore"):
        mixed = _splitmix(_splitmix(seed) + position.astype(np.uint64))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _splitmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def draw_tokens(
    logits: torch.Tensor, columns: SamplingColumns, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B] int64 and their log softmax(logits / temperature) [B] float32 (before top-p and top-k).

    Drawn on the device of the logits, where the answer stays.
    """
    greedy = columns.temperature == 0
    divisor = np.where(greedy, np.float32(1), columns.temperature)
    if (divisor != 1).any():
        logits = logits / _beside(logits, divisor)[:, None]
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp()
    tokens = _draw(weights, columns, greedy, positions)
    chosen = shifted.gather(-1, tokens[:, None])[:, 0]
    return tokens, chosen - weights.sum(-1).log()


def _draw(
    weights: torch.Tensor,
    columns: SamplingColumns,
    greedy: npt.NDArray[np.bool_],
    positions: npt.NDArray[np.int64],
) -> torch.Tensor:
    chances = _beside(weights, uniforms(columns.seed, positions))
    vocab_size = weights.shape[1]
    is_few = (columns.top_p < 1) | (columns.min_p > 0) | ((columns.top_k > 0) & (columns.top_k < vocab_size))
    is_cut = ~greedy & is_few
    if not greedy.any() and not is_cut.any():
        return _invert(weights, chances)
    tokens = torch.empty(weights.shape[0], dtype=torch.int64, device=weights.device)
    rows = _beside(weights, np.flatnonzero(greedy))
    tokens[rows] = weights[rows].argmax(-1)
    rows = _beside(weights, np.flatnonzero(is_cut))
    bounds = [_beside(weights, column[is_cut]) for column in (columns.top_p, columns.top_k, columns.min_p)]
    tokens[rows] = _draw_cut(weights[rows], chances[rows], *bounds)
    rows = _beside(weights, np.flatnonzero(~greedy & ~is_cut))
    tokens[rows] = _invert(weights[rows], chances[rows])
    return tokens


def _beside(tensor: torch.Tensor, column: npt.NDArray[Any]) -> torch.Tensor:
    return moved(torch.from_numpy(column), tensor.device)


def _invert(weights: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """The first token whose running sum exceeds chance * total."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    goals = (chances * sums[:, -1])[:, None]
    found = torch.searchsorted(sums, goals, right=True)[:, 0]
    return found.clamp_(max=weights.shape[1] - 1)


def _draw_cut(
    weights: torch.Tensor, chances: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Keeps tokens that are among the top_k likeliest, among the fewest whose share reaches top_p, and as min_p has it.

    That is those with at least min_p times the chance of the likeliest one, which always stays. Each bound is on the
    whole distribution, as SGLang has it.
    """
    vocab_size = weights.shape[1]
    ordered, tokens = weights.sort(dim=-1, descending=True, stable=True)
    limit = torch.where(top_k > 0, top_k, vocab_size)[:, None]
    sums = ordered.cumsum(-1, dtype=torch.float64)
    is_out = sums - ordered >= top_p.double()[:, None] * sums[:, -1:]
    is_out |= torch.arange(vocab_size, device=limit.device) >= limit
    is_out |= ordered < min_p[:, None] * ordered[:, :1]
    is_out[:, 0] = False
    chosen = _invert(ordered.masked_fill(is_out, 0.0), chances)
    return tokens.gather(-1, chosen[:, None])[:, 0]


_WIDTH_STEP = 64
"""Slots grow by at least this many tokens: smaller steps would copy the cache every few tokens."""


def round_width(tokens: int) -> int:
    """The width of a slot that holds so many tokens."""
    return -(-tokens // _WIDTH_STEP) * _WIDTH_STEP


@dataclass(frozen=True, slots=True)
class Admission:
    """Samples first..first+count-1 of a group that start to run."""

    batch: int
    group_index: int
    group: PromptGroup
    first_sample: int
    first_row: int
    """Row of the group's sample 0 in its batch."""
    count: int
    reserved: int
    """Width of its slots: that of prompt and longest output."""
    stop_set: int


class SlotTable:
    """Columns of all running samples, [count] each, as views: they are replaced when slots are added or move.

    slots.append(admitted)
    slots.record(start, *slots.draw(start, logits))
    moves = slots.compact(live)    the cache moves alike
    """

    batch: IntArray
    row: IntArray
    """In the batch."""
    group: IntArray
    length: IntArray
    """Tokens whose KV is cached."""
    num_drawn: IntArray
    limit: IntArray
    reserved: IntArray
    last_token: IntArray
    stop_set: IntArray
    top_k: IntArray
    stop_window: IntArray
    """Last tokens that are read for a text that ends the sample; 0: none does."""
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]
    """[count, width]: drawn tokens; beyond `num_drawn` they mean nothing."""
    log_probs: npt.NDArray[np.float32]
    """[count, width], as `tokens`."""

    def __init__(self) -> None:
        """Starts empty."""
        self.count = 0
        self.runs: list[Run] = []
        """All slots, in their order."""
        ints = ("batch", "row", "group", "length", "num_drawn", "limit", "reserved", "last_token")
        self._columns: dict[str, npt.NDArray[Any]] = {
            **{name: np.zeros(0, dtype=np.int64) for name in (*ints, "stop_set", "stop_window", "top_k")},
            **{name: np.zeros(0, dtype=np.float32) for name in ("temperature", "top_p", "min_p")},
            "seed": np.zeros(0, dtype=np.uint64),
            "tokens": np.zeros((0, 0), dtype=np.int32),
            "log_probs": np.zeros((0, 0), dtype=np.float32),
        }
        self._replace_views()

    def append(self, admitted: list[Admission]) -> None:
        """Adds the samples behind the running ones, with their prompts cached and nothing drawn."""
        counts = np.array([one.count for one in admitted])
        samples = np.concatenate([np.arange(one.first_sample, one.first_sample + one.count) for one in admitted])
        start, self.count = self.count, self.count + int(counts.sum())
        self._grow(max(one.group.max_new_tokens for one in admitted))
        self._replace_views()
        values = {
            "batch": [one.batch for one in admitted],
            "row": [one.first_row for one in admitted],
            "group": [one.group_index for one in admitted],
            "length": [len(one.group.prompt) for one in admitted],
            "num_drawn": [0 for _ in admitted],
            "limit": [one.group.max_new_tokens for one in admitted],
            "reserved": [one.reserved for one in admitted],
            "last_token": [one.group.prompt[-1] for one in admitted],
            "stop_set": [one.stop_set for one in admitted],
            "stop_window": [one.group.stop.window if one.group.stop else 0 for one in admitted],
            "top_k": [one.group.top_k for one in admitted],
            "temperature": [one.group.temperature for one in admitted],
            "top_p": [one.group.top_p for one in admitted],
            "min_p": [one.group.min_p for one in admitted],
            "seed": [one.group.seed % 2**64 for one in admitted],
        }
        for name, value in values.items():
            column = self._columns[name]
            column[start : self.count] = np.repeat(np.array(value, dtype=column.dtype), counts)
        self.row[start:] += samples
        self.seed[start:] += samples.astype(np.uint64)  # wraps around, as the contract has it
        self.runs = plan_runs(self.length)

    def sampling(self, start: int) -> SamplingColumns:
        """Sampling parameters of slots from `start` on."""
        return SamplingColumns(
            self.temperature[start:], self.top_p[start:], self.top_k[start:], self.min_p[start:], self.seed[start:]
        )

    def draw(self, start: int, logits: torch.Tensor) -> Drawn:
        """Draws by `logits` [slots, V] the next token of every slot from `start` on; records nothing."""
        tokens, log_probs = draw_tokens(logits, self.sampling(start), self.num_drawn[start:])
        return tokens.cpu().numpy(), log_probs.cpu().numpy()

    def record(self, start: int, tokens: IntArray, log_probs: npt.NDArray[np.float32]) -> None:
        """Appends a drawn token to every slot from `start` on."""
        slots = np.arange(start, self.count)
        positions = self.num_drawn[start:]
        self.tokens[slots, positions] = tokens
        self.log_probs[slots, positions] = log_probs
        self.last_token[start:] = tokens
        positions += 1

    def compact(self, live: npt.NDArray[np.bool_]) -> Moves:
        """Removes the slots that are not live."""
        moves = plan_compaction(self.runs, live)
        self._move(moves, int(np.count_nonzero(live)))
        self.runs = shrink_runs(self.runs, live, self.length)
        return moves

    def sort(self) -> Moves | None:
        """Longest first, when neighbours are so unlike that attention would need many calls; else None."""
        if not needs_sorting(self.runs, self.length):
            return None
        moves = plan_sorting(self.length)
        self._move(moves, self.count)
        self.runs = plan_runs(self.length)
        return moves

    def _move(self, moves: Moves, count: int) -> None:
        """Moves slots and retains the first `count`."""
        width = int(self.num_drawn.max(initial=0))
        for column in self._columns.values():
            part = column if column.ndim == 1 else column[:, :width]
            part[moves.targets] = part[moves.sources]
        self.count = count
        self._replace_views()

    def _grow(self, max_new_tokens: int) -> None:
        capacity, width = self._columns["tokens"].shape
        rows = capacity if self.count <= capacity else max(self.count, 2 * capacity)
        for name, old in self._columns.items():
            shape = (rows,) if old.ndim == 1 else (rows, max(width, max_new_tokens))
            if shape != old.shape:
                new = self._columns[name] = np.zeros(shape, dtype=old.dtype)
                new[tuple(slice(size) for size in old.shape)] = old

    def _replace_views(self) -> None:
        for name, column in self._columns.items():
            setattr(self, name, column[: self.count])
