"""Deadlines of a pipeline: how long a schedule lasts, and how long one of its stages waits at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.parallelism import ParallelismSpec
from rljob_workers.trainers.megatron.passes import longest_wait, num_micro_batches, passes_of_schedule


@pytest.mark.parametrize(
    ("parallelism", "wanted", "micro_batches", "passes", "wait"),
    [
        ({}, 7, 7, 14, 1),
        ({"tensor": 4, "context": 2}, 7, 7, 14, 1),
        ({"pipeline": 2}, 1, 1, 4, 2),
        ({"pipeline": 8}, 3, 3, 20, 14),
        ({"pipeline": 4, "virtual_pipeline": 2}, 3, 4, 14, 6),
        ({"pipeline": 4, "virtual_pipeline": 2}, 4, 4, 14, 6),
        ({"pipeline": 4, "virtual_pipeline": 2}, 5, 8, 22, 6),
    ],
    ids=str,
)
def test_passes_by_hand(parallelism: dict[str, int], wanted: int, micro_batches: int, passes: int, wait: int) -> None:
    spec = ParallelismSpec(**parallelism)
    assert num_micro_batches(wanted, spec) == micro_batches
    assert passes_of_schedule(wanted, spec) == passes
    assert longest_wait(spec) == wait


Work = tuple[str, int]
"""`forward` or `backward`, and of which micro-batch."""
Seconds = tuple[float, float]
"""Forward and backward of one micro-batch through one stage."""


def works(stage: int, stages: int, micro_batches: int, *, has_backward: bool) -> Iterator[Work]:
    """What a stage computes, in order: as many passes ahead as stages are behind it, then one of each by turns."""
    if not has_backward:
        yield from (("forward", number) for number in range(micro_batches))
        return
    ahead = min(stages - 1 - stage, micro_batches)
    yield from (("forward", number) for number in range(ahead))
    for number in range(micro_batches - ahead):
        yield "forward", ahead + number
        yield "backward", number
    yield from (("backward", number) for number in range(micro_batches - ahead, micro_batches))


def needed(stage: int, stages: int, work: Work, *, has_backward: bool) -> Iterator[tuple[int, Work]]:
    """What other stages end before: the pass that it goes on with, and forward alone the one that takes its last."""
    kind, number = work
    before = stage - 1 if kind == "forward" else stage + 1
    if 0 <= before < stages:
        yield before, work
    if not has_backward and stage + 1 < stages and number > 1:
        yield stage + 1, (kind, number - 2)


def simulate(stages: int, seconds: Sequence[Sequence[Seconds]], *, has_backward: bool) -> tuple[float, float]:
    """The longest wait of any stage for another, and when the last one ends; `seconds` by stage and micro-batch.

    At the end every stage waits for all: there the outputs go out.
    """
    micro_batches = len(seconds[0])
    todo = [list(works(stage, stages, micro_batches, has_backward=has_backward)) for stage in range(stages)]
    ended: dict[tuple[int, Work], float] = {}
    clocks, longest = [0.0] * stages, 0.0
    while any(todo):
        for stage, left in enumerate(todo):
            while left:
                awaited = list(needed(stage, stages, left[0], has_backward=has_backward))
                if any(one not in ended for one in awaited):
                    break
                begin = max([clocks[stage], *(ended[one] for one in awaited)])
                longest = max(longest, begin - clocks[stage])
                kind, number = work = left.pop(0)
                clocks[stage] = ended[stage, work] = begin + seconds[stage][number][kind == "backward"]
    return max(longest, max(clocks) - min(clocks)), max(clocks)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[int, list[list[Seconds]]]:
    """Stages, and passes of a second at most."""
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    one = st.sampled_from([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.25)])
    return stages, [[draw(one) for _ in range(micro_batches)] for _ in range(stages)]


@given(pipelines(), st.booleans())
def test_a_stage_that_is_in_time_never_waits_for_longer(
    pipeline: tuple[int, list[list[Seconds]]], has_backward: bool
) -> None:
    stages, seconds = pipeline
    spec = ParallelismSpec(pipeline=stages)
    longest, end = simulate(stages, seconds, has_backward=has_backward)
    assert longest <= longest_wait(spec)
    assert end <= passes_of_schedule(len(seconds[0]), spec)


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_the_last_stage_waits_at_the_end_for_the_backward_passes_of_all_others(stages: int) -> None:
    """Forward passes that take nothing: the plain deadline, of one pass, would be over."""
    longest, _ = simulate(stages, [[(0.0, 1.0)] * 9] * stages, has_backward=True)
    assert longest == stages - 1
