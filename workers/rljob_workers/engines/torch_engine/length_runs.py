"""Arrangement of slots for attention: runs of neighbouring slots whose lengths are close.

Attention over a run reads all its slots up to the longest; so runs of like lengths waste little, and few runs cost few
kernel calls. Pure: plans on numpy arrays, moves nothing. All running samples grow by one token a step, so that a plan
holds until samples come or go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

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
