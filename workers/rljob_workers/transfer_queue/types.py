"""Values that cross the queue's border: tickets, claims, batches. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rljob_api.names import RolloutId
from rljob_api.spec import ClaimPolicy as ClaimPolicy
from rljob_api.wire.identity import WeightId

if TYPE_CHECKING:  # the coordinator uses these types and must not pay for torch
    from rljob_workers.transfer_queue.jagged import Jagged


class TaskKind(StrEnum):
    """Forward: leases, may be taken back. Training: bound to the incarnations, never taken back."""

    FORWARD = "Forward"
    TRAINING = "Training"


@dataclass(frozen=True, slots=True)
class Task:
    """One consumer: `name`, the fields that a row needs to be ready for it, the fields that it writes."""

    name: str
    kind: TaskKind
    needs: tuple[str, ...]
    writes: tuple[str, ...] = ()
    policy: ClaimPolicy = ClaimPolicy.FIFO

    def __post_init__(self) -> None:
        if self.kind is TaskKind.FORWARD and self.policy is ClaimPolicy.BALANCED:
            raise ValueError(
                f"task {self.name}: policy Balanced is for training tasks, whose ranks wait for each other. Use Fifo or"
                " Group."
            )


@dataclass(frozen=True, slots=True)
class QueueShape:
    """What the queue must know of a job; the same in every process of it."""

    batch_size: int
    samples_per_prompt: int
    max_staleness: int
    num_rollouts: int
    max_prompt_kills: int
    max_attempts: int
    generated_fields: tuple[str, ...]
    """Written by the rollout under its ticket."""
    tasks: tuple[Task, ...]

    @property
    def rows_per_partition(self) -> int:
        """Row index = group * samples_per_prompt + index in group."""
        return self.batch_size * self.samples_per_prompt


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right (and duty) to generate one group."""

    id: int
    """Unique in the job; a reissued ticket has a new one."""
    rollout_id: RolloutId
    group: int
    attempt: int
    """Counts draws (filter, poison), not reissues. Part of the sampling seed."""
    prompt_index: int
    """Position in the cursor's stream."""
    alone: bool
    """Its prompt was in work when a worker died: it is worked on with no other."""


class Withheld(StrEnum):
    """Why no ticket was given."""

    DRAINING = "Draining"
    """Somebody drains the queue: tickets are given again when that is taken back."""
    STALENESS = "Staleness"
    """r - w > max_staleness for every open group: this replica needs newer weights."""
    CAPACITY = "Capacity"
    DEAD_WEIGHTS = "DeadWeights"
    """The weight held is not alive."""
    MEMORY = "Memory"
    """Storage is above its high-water mark."""
    SUSPECT = "Suspect"
    """A prompt that was in work when a worker died is worked on alone; it waits until this replica is idle."""
    CLOSED = "Closed"
    """The control Redis does not answer, or is not open yet."""
    NONE_OPEN = "NoneOpen"
    """Everything up to the last rollout is issued or done."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """A finished group: all its rows under one ticket."""

    ticket: Ticket
    columns: Mapping[str, Jagged]
    """Every generated field; samples_per_prompt rows each."""
    oldest: Sequence[WeightId]
    """Per row, the oldest weight that made any of its tokens."""
    newest: Sequence[WeightId]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Claimed rows of one partition with their bytes."""

    rollout_id: RolloutId
    rows: npt.NDArray[np.uint32]
    """[n] row indices in the partition."""
    groups: npt.NDArray[np.uint32]
    """[n] group of each row."""
    oldest_versions: npt.NDArray[np.int64]
    """[n] oldest version of any token of the row."""
    columns: Mapping[str, Jagged]
    lease: str | None = None
    """Of a forward task: to be handed to `put`."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class NotReady:
    """Nothing within the deadline; `waiting_for` says for what, in words."""

    waiting_for: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Every row of the asked partitions is consumed by this task."""


Claim = Batch | NotReady | Exhausted
