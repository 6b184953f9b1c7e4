"""Streaming a rollout to a trainer: slices, passes without claims, waits in words."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rljob_api.names import RolloutId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, StreamingDataset
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady


class Stopped(Exception):
    """Raised by a role that leaves a wait."""


class ScriptedClaims:
    """A queue whose slices become ready after so many questions."""

    def __init__(self, waits: Sequence[int] = (), *, exhausted: bool = False) -> None:
        self._waits = dict(enumerate(waits))
        self._exhausted = exhausted
        self.asked: list[tuple[str, int, int, int, int, int]] = []

    def claim_training(
        self,
        task: str,
        rollout_id: RolloutId,
        batch_index: int,
        num_rows: int,
        dp_rank: int,
        dp_size: int,
        /,
        *,
        timeout: float,
    ) -> Claim:
        self.asked.append((task, rollout_id, batch_index, num_rows, dp_rank, dp_size))
        if self._exhausted:
            return Exhausted()
        if self._waits.get(batch_index, 0) > 0:
            self._waits[batch_index] -= 1
            return NotReady(f"rows of train_{rollout_id}")
        rows = np.arange(num_rows // dp_size, dtype=np.uint32) + 100 * rollout_id + 10 * batch_index
        column = Jagged.scalars(torch.from_numpy(rows.astype(np.int64)))
        return Batch(rollout_id, rows, rows, np.zeros(len(rows), np.int64), {"tokens": column})


def make_dataset(
    queue: ScriptedClaims, slicing: Slicing | None = None, waited: list[str] | None = None
) -> StreamingDataset:
    slicing = slicing or Slicing("actor_train", rows_per_rollout=8, global_batch_size=4, iters_per_train_update=2)
    return StreamingDataset(
        queue, slicing, RolloutId(0), on_wait=(waited if waited is not None else list[str]()).append
    )


def test_a_pass_asks_for_each_slice_once_and_reports_where_optimizer_steps_end() -> None:
    queue = ScriptedClaims()
    slicing = Slicing("actor_train", 16, global_batch_size=8, iters_per_train_update=2, dp_rank=1, dp_size=2)
    parts = list(make_dataset(queue, slicing))
    assert queue.asked == [("actor_train", 0, index, 4, 1, 2) for index in range(4)]
    assert [len(part.batch.rows) for part in parts] == [2] * 4
    assert [part.ends_step for part in parts] == [False, True, False, True]
    assert parts[2].step == range(2, 4)


def test_further_passes_claim_nothing_and_give_the_same_rows() -> None:
    queue = ScriptedClaims()
    dataset = make_dataset(queue)
    first, second = list(dataset), list(dataset)
    assert len(queue.asked) == 4
    assert all(one.batch is other.batch for one, other in zip(first, second, strict=True))


def test_step_moves_on_and_claims_the_next_rollout() -> None:
    queue = ScriptedClaims()
    dataset = make_dataset(queue)
    loader = StreamingDataLoader(dataset)
    list(loader)
    loader.step(RolloutId(1))
    assert [part.batch.rollout_id for part in loader] == [1] * 4
    assert [asked[1] for asked in queue.asked] == [0] * 4 + [1] * 4
    loader.step(RolloutId(1))
    list(loader)
    assert len(queue.asked) == 8


def test_slices_are_handed_out_before_the_rollout_is_complete() -> None:
    waited: list[str] = []
    queue = ScriptedClaims([0, 3])
    parts = iter(make_dataset(queue, waited=waited))
    next(parts)
    assert waited == []
    next(parts)
    assert waited == ["rows of train_0"] * 3


def test_a_role_leaves_a_wait_by_raising() -> None:
    def leave(waiting_for: str) -> None:
        raise Stopped(waiting_for)

    slicing = Slicing("actor_train", 8, 4, 2)
    dataset = StreamingDataset(ScriptedClaims([10**9]), slicing, RolloutId(0), on_wait=leave)
    with pytest.raises(Stopped, match="rows of train_0"):
        next(iter(dataset))


def test_a_pass_that_was_left_early_goes_on_from_the_buffer() -> None:
    queue = ScriptedClaims()
    dataset = make_dataset(queue)
    next(iter(dataset))
    assert len(list(dataset)) == 4
    assert len(queue.asked) == 4


def test_a_consumed_partition_is_never_passed_over_in_silence() -> None:
    with pytest.raises(RuntimeError, match="train_0 is consumed by actor_train, but slice 0 was never fetched here"):
        list(make_dataset(ScriptedClaims(exhausted=True)))


def test_a_pass_does_not_go_on_in_another_rollout() -> None:
    dataset = make_dataset(ScriptedClaims())
    parts = iter(dataset)
    next(parts)
    dataset.step(RolloutId(1))
    with pytest.raises(RuntimeError, match=r"the pass over train_0 went on after step\(1\)"):
        next(parts)


@pytest.mark.parametrize(
    ("slicing", "sentence"),
    [
        pytest.param((10, 4, 1, 0, 1), "globalBatchSize: 4 does not divide the 10 samples", id="ragged rollout"),
        pytest.param((12, 4, 3, 0, 1), "itersPerTrainUpdate: 3 times 1 data-parallel ranks", id="ragged slices"),
        pytest.param((12, 4, 2, 0, 4), "itersPerTrainUpdate: 2 times 4 data-parallel ranks", id="ragged shares"),
    ],
)
def test_what_cannot_be_cut_evenly_is_refused(slicing: tuple[int, int, int, int, int], sentence: str) -> None:
    rows, size, iters, rank, ranks = slicing
    with pytest.raises(ValueError, match=sentence):
        Slicing("actor_train", rows, size, iters, rank, ranks)
