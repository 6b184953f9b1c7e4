"""Values that cross the queue's border: its shape and timing, tickets, claims, batches.

Every part of the queue and all of its users import them. The packed form of a ticket and the table of draws that a
checkpoint keeps stand beside `Ticket`. No I/O and no torch: the coordinator imports this.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from rljob_api.names import Lineage, RolloutId, WeightVersion
from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import WeightId
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore, packed_rates, rates_table

if TYPE_CHECKING:
    from rljob_workers.tensors.jagged import Jagged


@dataclass(frozen=True, slots=True)
class QueueTiming:
    """In seconds."""

    patience_seconds: float = 30.0
    """For one change, or one put with its bytes: a restart of Redis takes about a second."""
    claim_patience_seconds: float = 2.0
    """Beyond a claim's own timeout. Shorter: a claim may be asked again, and its caller must beat meanwhile."""
    lease_seconds: float = 30.0
    """A lease that no beat renews ends after this."""
    control_silence_seconds: float = 5.0
    """A control Redis without a byte for so long counts as dead: every function of ours ends within milliseconds."""
    unit_silence_seconds: float = 2.0
    """A storage unit that takes and gives no byte for so long hangs, however much time a whole transfer may take."""
    unit_patience_seconds: float = 2.0
    """A put that waits so long for one unit goes to another: its rows are bound to no unit."""


class EvaluationWaits(StrEnum):
    """Why a rank gets no samples to evaluate."""

    OVER = "Over"
    """All are scored, and reported."""
    TAKEN = "Taken"
    """Others have what is left; it may come back."""
    OTHER_VERSION = "OtherVersion"
    """The engine holds another version than the newest."""
    CLOSED = "Closed"
    """The control Redis does not answer."""


@dataclass(frozen=True, slots=True)
class EvaluationState:
    """The evaluation that the control Redis has."""

    lineage: Lineage
    version: WeightVersion
    """-1: there is none."""
    num_samples: int
    num_results: int
    is_over: bool
    digest: str
    """Of what it was begun with (`rljob_workers.evaluation.digest_of`)."""

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> EvaluationState:
        """Of the function `evaluation`."""
        lineage, version, samples, results, over, digest = reply
        return cls(Lineage(lineage), WeightVersion(version), samples, results, bool(over), digest.decode())

    def is_over_of(self, version: WeightVersion) -> bool:
        """Whether it is that of `version`, and over."""
        return self.is_over and self.version == version


class TaskKind(StrEnum):
    """Forward: leases, may be taken back. Training: bound to the incarnations, never taken back."""

    FORWARD = "Forward"
    TRAINING = "Training"


class ForwardPolicy(StrEnum):
    """Which rows a consumer gets, beside what `ClaimPolicy` has for training too.

    Partition: all rows of a rollout at once, when all of them are ready: they are under one lease, and what is lost of
    what was written for some is made again for all.
    """

    PARTITION = "Partition"


@dataclass(frozen=True, slots=True)
class Task:
    """One consumer: `name`, the fields that a row needs to be ready for it, the fields that it writes."""

    name: str
    kind: TaskKind
    needs: tuple[str, ...]
    writes: tuple[str, ...] = ()
    policy: ClaimPolicy | ForwardPolicy = ClaimPolicy.FIFO
    rows_per_step: int | None = None
    """Rows of a training task's optimizer step: which rows it has is fixed before any is generated. None: it has all of
    a partition, in the order in which they become ready."""
    publishes: bool = True
    """Of training tasks, one does: version r + 1 can be published once it has consumed train_r, however far the others
    are behind. Capacity and records wait for all of them."""

    def __post_init__(self) -> None:
        if self.kind is TaskKind.FORWARD and self.rows_per_step is not None:
            raise ValueError(
                f"task {self.name}: rows_per_step {self.rows_per_step} is for training tasks. Leave it out."
            )
        if self.kind is TaskKind.FORWARD and self.policy is ClaimPolicy.BALANCED:
            raise ValueError(
                f"task {self.name}: policy Balanced is for training tasks, whose ranks wait for each other. Use Fifo,"
                " Group or Partition."
            )
        if self.kind is TaskKind.TRAINING and self.policy is ForwardPolicy.PARTITION:
            raise ValueError(
                f"task {self.name}: policy Partition is for forward tasks; a training task is dealt optimizer steps."
                " Use Fifo, Group or Balanced."
            )


MAX_FIELDS = 31
"""Readiness is a mask of 32 bits, and Lua's bit operations have a sign."""


@dataclass(frozen=True, slots=True)
class FieldKind:
    """What the elements of a field are."""

    field: str
    dtype: str
    """As torch and numpy name it."""
    inner: tuple[int, ...] = ()
    """Shape of one element."""


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
    kinds: tuple[FieldKind, ...] = ()
    """Of the fields that have one: what is put with another is refused."""
    order: GroupOrder = GroupOrder.BOUND
    """Whether groups may exchange their places."""
    carries: bool = False
    """Whether a group that swaps goes to any rollout. Some of its tokens may then be older than `max_staleness` allows:
    training leaves those out."""
    more_groups: int = 0
    """Groups that may be issued beside those that the open rollouts need; where groups are carried."""
    has_curriculum: bool = False
    """Rows of the data are chosen for draws, and what the samples of each have earned is counted."""
    has_partials: bool = False
    """What is generated of groups that are not finished is saved."""

    def __post_init__(self) -> None:
        if len(self.fields) > MAX_FIELDS:
            raise ValueError(
                f"TransferQueue: {len(self.fields)} fields are more than the {MAX_FIELDS} that a readiness mask holds:"
                f" {', '.join(self.fields)}. Pack what no task waits for into one column (`tensors.packed`)."
            )
        for task in self.tasks:
            self._require_whole_steps(task)
        self._require_one_publisher()

    def _require_one_publisher(self) -> None:
        names = [task.name for task in self.training_tasks if task.publishes]
        if self.training_tasks and len(names) != 1:
            raise ValueError(
                f"TransferQueue: {len(names)} training tasks publish ({', '.join(names) or 'none'}), and one must."
                " Set `publishes` of the others to False."
            )

    def _require_whole_steps(self, task: Task) -> None:
        if task.rows_per_step is None:
            return
        if task.rows_per_step < 1 or self.rows_per_partition % task.rows_per_step:
            raise ValueError(
                f"task {task.name}: optimizer steps of {task.rows_per_step} rows do not divide the"
                f" {self.rows_per_partition} rows of a partition. Use a divisor."
            )
        if task.policy is ClaimPolicy.GROUP and task.rows_per_step % self.samples_per_prompt:
            raise ValueError(
                f"task {task.name}: optimizer steps of {task.rows_per_step} rows are no whole groups of"
                f" {self.samples_per_prompt}. Use a multiple, or policy Balanced."
            )

    @property
    def capacity(self) -> int:
        """Groups that may be issued and not trained."""
        return self.batch_size * (self.max_staleness + 1) + self.more_groups

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """Each consumes every row."""
        return tuple(task for task in self.tasks if task.kind is TaskKind.TRAINING)

    @property
    def steps(self) -> dict[str, int]:
        """Rows of an optimizer step, for training tasks that make several of a partition."""
        rows = {task.name: task.rows_per_step or self.rows_per_partition for task in self.tasks}
        return {name: number for name, number in rows.items() if number < self.rows_per_partition}

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields, generated ones first; the place of a field is its bit in the readiness masks."""
        derived = (field for task in self.tasks for field in task.writes)
        needed = (field for task in self.tasks for field in task.needs)
        return tuple(dict.fromkeys((*self.generated_fields, *derived, *needed)))

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
    refused: int = 0
    """Earlier draws of the group that a filter has refused (`rollout.dynamicSampling`); among the attempts."""
    put_off: int = 0
    """Rollouts by which the group was put off since its prompt was first issued (`rollout.order` Swap); below 0: it was
    brought forward, and its rows were lost."""


class Withheld(StrEnum):
    """Why no ticket was given."""

    DRAINING = "Draining"
    """The queue drains: tickets are given again once the drain ends."""
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
    score: GroupScore = UNSCORED
    """What the samples have earned; only jobs with a curriculum count it."""


class GroupPlace(NamedTuple):
    """Where the rows of a group are."""

    rollout_id: RolloutId
    group: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupSoFar:
    """What was generated of a group that is not finished."""

    ticket: Ticket
    data: bytes
    oldest: Sequence[WeightId]
    """Of each sample that has tokens, the oldest weight that made any of them; one sample at least has some."""
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


@dataclass(frozen=True, slots=True)
class NotReady:
    """Nothing within the deadline; `waiting_for` names what is missing, for an error or a status."""

    waiting_for: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Every row of the asked partitions is consumed by this task."""


Claim = Batch | NotReady | Exhausted


_TICKET = struct.Struct("<7Ii")


def parse_tickets(packed: bytes) -> list[Ticket]:
    """Ticket for ticket, in the order of the answer."""
    return [
        Ticket(number, RolloutId(rollout_id), group, attempt, prompt_index, bool(alone), refused, put_off)
        for number, rollout_id, group, attempt, prompt_index, alone, refused, put_off in _TICKET.iter_unpack(packed)
    ]


_PLACE = struct.Struct("<2i")


def parse_places(packed: bytes) -> list[GroupPlace | None]:
    """Group for group, in the order of the put; None for one that was refused."""
    places = (GroupPlace(RolloutId(rollout_id), group) for rollout_id, group in _PLACE.iter_unpack(packed))
    return [None if place.group < 0 else place for place in places]


def table_of_draws(
    cursor: int,
    front: Sequence[bytes],
    draws: bytes,
    kills: Sequence[bytes],
    chosen: Sequence[bytes] | None = None,
    rates: bytes = b"",
) -> bytes:
    """As JSON. `front`: prompts drawn next; `draws`: a JSON list; `kills`: prompt, count, prompt, count...

    Of a curriculum (None: there is none) `chosen`: draw, row, draw, row..., and `rates`: packed (`pass_rates`).
    """
    counts = {prompt.decode(): int(count) for prompt, count in zip(kills[::2], kills[1::2], strict=True)}
    curriculum = {}
    if chosen is not None:
        rows = [[int(draw), int(row)] for draw, row in zip(chosen[::2], chosen[1::2], strict=True)]
        curriculum = {"curriculum": {"chosen": sorted(rows), "rates": rates_table(rates)}}
    return orjson.dumps(
        {
            "cursor": cursor,
            "front": [int(prompt) for prompt in front],
            # An empty list of Lua is an empty object.
            "draws": orjson.loads(draws) or [],
            "kills": counts,
        }
        | curriculum
    )


def without_rates(table: bytes) -> tuple[bytes, bytes]:
    """A table of draws without a curriculum's rates, and these packed: Lua takes seconds to decode a million.

    What is no table stays as it is, for the queue to refuse.
    """
    try:
        parsed = orjson.loads(table)
        packed = packed_rates(parsed["curriculum"]["rates"])
    except (ValueError, TypeError, KeyError):
        return table, b""
    parsed["curriculum"]["rates"] = []
    return orjson.dumps(parsed), packed


def is_table_of_draws(text: bytes) -> bool:
    """Whether a file of a checkpoint is what `table_of_draws` writes."""
    try:
        table = orjson.loads(text)
    except ValueError:
        return False
    kinds = {"cursor": int, "front": list, "draws": list, "kills": dict}
    return isinstance(table, dict) and all(isinstance(table.get(name), kind) for name, kind in kinds.items())
