"""Buffers come back when nothing uses them, and what is kept is bounded by what was once in use."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.transfer_queue.chunk_io import POOLED_BYTES, Buffer, BufferPool

MIB = 1 << 20


def address(buffer: Buffer) -> int:
    return int(buffer.__array_interface__["data"][0])


def test_a_dropped_buffer_is_lent_again() -> None:
    pool = BufferPool()
    first = pool.lend(MIB)
    where = address(first)
    del first
    assert pool.free_bytes == MIB
    assert address(pool.lend(MIB - 5)) == where


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(lambda values: values, id="the tensor"),
        pytest.param(lambda values: values[3:5], id="a slice"),
        pytest.param(lambda values: values.view(torch.float32), id="another dtype"),
        pytest.param(lambda values: memoryview(values.numpy()), id="a memoryview"),
        pytest.param(
            lambda values: torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 5, MIB])),
            id="a nested tensor",
        ),
    ],
)
def test_whatever_is_made_of_a_buffer_keeps_it(keep: object) -> None:
    pool = BufferPool()
    buffer = pool.lend(MIB)
    buffer[:] = 7
    retained = keep(torch.from_numpy(buffer))  # type: ignore[operator]
    del buffer
    assert pool.free_bytes == 0
    del retained
    assert pool.free_bytes == MIB


def test_small_buffers_are_the_allocators() -> None:
    pool = BufferPool()
    del_me = pool.lend(POOLED_BYTES - 1)
    del del_me
    assert pool.free_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(POOLED_BYTES, 4 * POOLED_BYTES)), max_size=60))
def test_buffers_in_use_never_overlap_and_no_more_is_retained_than_was_once_lent(steps: list[tuple[bool, int]]) -> None:
    pool = BufferPool()
    lent: list[Buffer] = []
    peak = 0
    for number, (gives_back, size) in enumerate(steps):
        if gives_back and lent:
            del lent[number % len(lent)]
        else:
            lent.append(pool.lend(size))
        peak = max(peak, sum(buffer.base.nbytes for buffer in lent if buffer.base is not None))
        ends = sorted((address(buffer), address(buffer) + buffer.nbytes) for buffer in lent)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
        in_use = sum(buffer.base.nbytes for buffer in lent if buffer.base is not None)
        assert pool.free_bytes + in_use <= peak
