"""A rollout as PyTorch data: slices that arrive while it is still being generated, kept for further passes.

For trainers; a thin layer over `claim_training` that never commits: the commit after an optimizer step consumes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch.utils.data import DataLoader, IterableDataset

from rljob_api.names import RolloutId, partition_name
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady

TURN_SECONDS = 0.25
"""Longest silence of one wait; far below any heartbeat timeout."""


class TrainingClaims(Protocol):
    """What is needed of a `TransferQueueClient`."""

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
        """This rank's share of slice `batch_index`; the same question gives the same rows."""
        ...


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a rollout is cut, and which share of each slice is this rank's.

    The queue has fixed which rows are of which optimizer step; within a step slices are cut as rows become ready.
    """

    task: str
    rows_per_rollout: int
    """batchSize * samplesPerPrompt."""
    global_batch_size: int
    iters_per_train_update: int
    dp_rank: int = 0
    dp_size: int = 1

    def __post_init__(self) -> None:
        if self.rows_per_rollout % self.global_batch_size:
            raise ValueError(
                f"training.globalBatchSize: {self.global_batch_size} does not divide the {self.rows_per_rollout}"
                " samples of a rollout (batchSize * samplesPerPrompt). Use a divisor."
            )
        if self.global_batch_size % (self.iters_per_train_update * self.dp_size):
            raise ValueError(
                f"training.itersPerTrainUpdate: {self.iters_per_train_update} times {self.dp_size} data-parallel ranks"
                f" does not divide globalBatchSize {self.global_batch_size}. Use a divisor."
            )

    @property
    def rows_per_slice(self) -> int:
        """Over all data-parallel ranks."""
        return self.global_batch_size // self.iters_per_train_update

    @property
    def num_slices(self) -> int:
        """Of one rollout."""
        return self.rows_per_rollout // self.rows_per_slice

    def step_of(self, index: int) -> range:
        """The slices of the optimizer step that slice `index` belongs to."""
        first = index - index % self.iters_per_train_update
        return range(first, first + self.iters_per_train_update)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSlice:
    """This rank's rows of one slice."""

    batch: Batch
    index: int
    step: range
    """Slices of the same optimizer step: what `commit_training` wants after it."""
    ends_step: bool
    """Time for the optimizer step."""


class StreamingDataset(IterableDataset[TrainingSlice]):
    """One rollout at a time; each iteration is one pass, and later passes claim nothing.

        for rollout_id in rollouts:
            dataset.step(rollout_id)
            for _ in range(epochs_per_rollout):
                for part in dataset:
                    trainer.accumulate(part.batch)
                    if part.ends_step:
                        trainer.optimizer_step()
                        queue.commit_training(task, rollout_id, part.step)    rank 0, first pass

    Where there is nothing yet it waits in turns and calls `on_wait(what it waits for)` after each: there a role beats,
    and raises in order to leave.
    """

    def __init__(
        self, queue: TrainingClaims, slicing: Slicing, rollout_id: RolloutId, *, on_wait: Callable[[str], None]
    ) -> None:
        self._queue = queue
        self._slicing = slicing
        self._rollout_id = rollout_id
        self._on_wait = on_wait
        self._buffer: dict[int, Batch] = {}

    @property
    def rollout_id(self) -> RolloutId:
        """The rollout in hand."""
        return self._rollout_id

    def step(self, rollout_id: RolloutId) -> None:
        """Moves to `train_{rollout_id}` and drops the rows of the one before; nothing if it is in hand already."""
        if rollout_id == self._rollout_id:
            return
        self._rollout_id = rollout_id
        self._buffer = {}

    def __iter__(self) -> Iterator[TrainingSlice]:
        """One pass over the rollout in hand; the next begins at slice 0 again, even where this one was left early."""
        rollout_id = self._rollout_id
        for index in range(self._slicing.num_slices):
            if rollout_id != self._rollout_id:
                raise RuntimeError(f"the pass over {partition_name(rollout_id)} went on after step({self._rollout_id})")
            if index not in self._buffer:
                self._buffer[index] = self._claim(index)
            step = self._slicing.step_of(index)
            yield TrainingSlice(self._buffer[index], index, step, ends_step=index == step[-1])

    def _claim(self, index: int) -> Batch:
        slicing = self._slicing
        while True:
            claim = self._queue.claim_training(
                slicing.task,
                self._rollout_id,
                index,
                slicing.rows_per_slice,
                slicing.dp_rank,
                slicing.dp_size,
                timeout=TURN_SECONDS,
            )
            match claim:
                case Batch():
                    return claim
                case NotReady(waiting_for=waiting_for):
                    self._on_wait(waiting_for)
                case Exhausted():
                    raise RuntimeError(
                        f"{partition_name(self._rollout_id)} is consumed by {slicing.task}, but slice {index} was never"
                        " fetched here"
                    )


class StreamingDataLoader(DataLoader[TrainingSlice]):
    """Slices of a `StreamingDataset`, in this process: they are tensors already, and a rank has one queue client."""

    def __init__(self, dataset: StreamingDataset) -> None:
        super().__init__(dataset, batch_size=None, num_workers=0)
        self._streaming = dataset

    def step(self, rollout_id: RolloutId) -> None:
        """See `StreamingDataset.step`."""
        self._streaming.step(rollout_id)
