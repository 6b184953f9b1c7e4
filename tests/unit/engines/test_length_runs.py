"""Arrangement of slots: nothing is lost, runs stay whole, few slots move."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.torch_engine.slots import (
    Moves,
    Run,
    needs_sorting,
    plan_compaction,
    plan_runs,
    plan_sorting,
    shrink_runs,
)

lengths_of_slots = st.lists(st.integers(1, 600), min_size=1, max_size=60).map(lambda values: np.array(values))


def moved(values: np.ndarray, moves: Moves) -> np.ndarray:
    after = values.copy()
    after[moves.targets] = values[moves.sources]
    return after


def test_equal_lengths_are_one_run_without_a_mask() -> None:
    assert plan_runs(np.full(512, 7)) == [Run(0, 512, is_uniform=True)]


def test_lengths_within_the_slack_share_a_run() -> None:
    assert plan_runs(np.array([40, 40, 10, 9])) == [Run(0, 4, is_uniform=False)]


def test_lengths_far_apart_do_not() -> None:
    assert plan_runs(np.array([400, 400, 10, 10])) == [Run(0, 2, is_uniform=True), Run(2, 4, is_uniform=True)]


def test_only_as_many_slots_move_as_end_in_a_run_of_equal_lengths() -> None:
    live = np.ones(100, dtype=bool)
    live[[3, 50, 97]] = False
    moves = plan_compaction(plan_runs(np.full(100, 5)), live)
    assert moves.targets.tolist() == [3, 50]
    assert moves.sources.tolist() == [98, 99]


@given(lengths_of_slots)
def test_runs_cover_all_slots_in_order_and_waste_little(lengths: np.ndarray) -> None:
    runs = plan_runs(lengths)
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
    assert runs[-1].stop == lengths.size
    for run in runs:
        part = lengths[run.start : run.stop]
        assert part.max() - part.min() <= max(32, part.max() // 4)
        assert run.is_uniform == (part.max() == part.min())


@given(lengths_of_slots, st.data())
def test_compaction_keeps_the_samples_of_every_run(lengths: np.ndarray, data: st.DataObject) -> None:
    runs = plan_runs(lengths)
    live = np.array(data.draw(st.lists(st.booleans(), min_size=lengths.size, max_size=lengths.size)))
    moves = plan_compaction(runs, live)
    count = int(live.sum())
    names = moved(np.arange(lengths.size), moves)[:count]
    shrunk = shrink_runs(runs, live, moved(lengths, moves)[:count])
    expected = [set((np.flatnonzero(live[run.start : run.stop]) + run.start).tolist()) for run in runs]
    assert [set(names[run.start : run.stop].tolist()) for run in shrunk] == [members for members in expected if members]


@given(lengths_of_slots)
def test_sorting_leaves_fewer_runs_and_every_sample(lengths: np.ndarray) -> None:
    after = moved(lengths, plan_sorting(lengths))
    assert after.tolist() == sorted(lengths.tolist(), reverse=True)
    if needs_sorting(plan_runs(lengths), lengths):
        assert len(plan_runs(after)) < len(plan_runs(lengths))
