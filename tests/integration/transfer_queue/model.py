"""What the queue promises, in sets of rows: the oracle of the state machine. No clock, no bytes, no server.

A row is (partition, number). What a task may claim is `Model.ready`; everything else moves rows between its sets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.types import ForwardPolicy, QueueShape, Task, TaskKind

Row = tuple[int, int]
Place = tuple[int, int]


@dataclass
class Group:
    """A reservation: drawn, in work or waiting, put, or absent until a restore."""

    attempt: int
    prompt: int
    state: str
    made_by: int = -1
    serial: int = -1
    """The number that its tokens say."""
    refused: int = 0
    """Attempts that a filter has closed."""
    since: int = -1
    """In work: the version that its producer held."""


@dataclass
class Model:
    """The whole state of the queue."""

    shape: QueueShape
    fields: dict[Row, set[str]] = field(default_factory=dict)
    held: dict[str, dict[Row, str]] = field(default_factory=dict)
    """Task -> row -> the lease (or batch) that holds it."""
    done: dict[str, set[Row]] = field(default_factory=dict)
    groups: dict[Place, Group] = field(default_factory=dict)
    published: int = 0
    recorded: int = 0

    def __post_init__(self) -> None:
        self.held = {task.name: {} for task in self.shape.tasks}
        self.done = {task.name: set() for task in self.shape.tasks}

    # --- rows: ready, held, done -----------------------------------------------------------------------------------

    def complete(self, task: Task) -> set[Row]:
        """Rows with all that the task needs, which no one holds and which are not done."""
        rows = {row for row, has in self.fields.items() if has.issuperset(task.needs)}
        return rows - self.held[task.name].keys() - self.done[task.name]

    def ready(self, task: Task) -> set[Row]:
        """What the task may claim: complete rows, of a Group task only those of whole groups, and so for partitions."""
        rows = self.complete(task)
        if task.policy is ClaimPolicy.GROUP:
            rows = {row for row in rows if rows.issuperset(self.rows_of(self.group_of(row)))}
        if task.policy is ForwardPolicy.PARTITION:
            rows = {row for row in rows if rows.issuperset(self.rows_of_partition(row[0]))}
        return rows

    def claim(self, task: Task, rows: Collection[Row], holder: str) -> None:
        self.held[task.name].update(dict.fromkeys(rows, holder))

    def release(self, holders: Collection[str]) -> None:
        for task, rows in self.held.items():
            self.held[task] = {row: holder for row, holder in rows.items() if holder not in holders}

    def put(self, task: Task, holder: str) -> None:
        rows = self.holding(task, holder)
        self.release([holder])
        self.done[task.name] |= rows
        for row in rows:
            self.fields[row].update(task.writes)

    def holding(self, task: Task, holder: str) -> set[Row]:
        return {row for row, other in self.held[task.name].items() if other == holder}

    # --- training --------------------------------------------------------------------------------------------------

    def next_of(self, task: Task) -> int:
        """The first partition that the task has not consumed."""
        num_rows, r = self.shape.rows_per_partition, self.recorded
        while all((r, row) in self.done[task.name] for row in range(num_rows)):
            r += 1
        return r

    @property
    def first(self) -> int:
        """The first partition that some training task has yet to consume, or that is not published."""
        return min([self.published, *(self.next_of(task) for task in self.shape.training_tasks if not task.publishes)])

    # --- groups ----------------------------------------------------------------------------------------------------

    def rows_of(self, place: Place) -> list[Row]:
        num = self.shape.samples_per_prompt
        return [(place[0], place[1] * num + index) for index in range(num)]

    def rows_of_partition(self, r: int) -> list[Row]:
        return [(r, row) for row in range(self.shape.rows_per_partition)]

    def group_of(self, row: Row) -> Place:
        return row[0], row[1] // self.shape.samples_per_prompt

    def next_places(self, version: int, limit: int) -> list[Place]:
        """Lowest first: groups that wait again, and new ones while the capacity lasts."""
        batch, staleness = self.shape.batch_size, self.shape.max_staleness
        room = batch * (staleness + 1) - sum(1 for r, _ in self.groups if r >= self.first)
        given: list[Place] = []
        last = min(version + staleness + 1, self.shape.num_rollouts)
        for place in ((r, group) for r in range(self.published, last) for group in range(batch)):
            if place not in self.groups and room > 0:
                room -= 1
                given.append(place)
            elif place in self.groups and self.groups[place].state == "waiting":
                given.append(place)
        return given[:limit]

    def first_exchange(self, place: Place) -> Place | None:
        """Where swapping, the lowest unfinished place of an earlier rollout whose group may go to this one."""
        if self.shape.order is GroupOrder.BOUND:
            return None
        free = [
            other
            for other, group in self.groups.items()
            if other[0] < place[0]
            and (
                group.state == "waiting"
                or (group.state == "work" and place[0] - group.since <= self.shape.max_staleness)
            )
        ]
        return min(free, default=None)

    def exchange(self, one: Place, other: Place) -> None:
        self.groups[one], self.groups[other] = self.groups[other], self.groups[one]

    def generate(self, place: Place, made_by: int, serial: int) -> None:
        group = self.groups[place]
        group.state, group.made_by, group.serial = "put", made_by, serial
        for row in self.rows_of(place):
            self.fields[row] = set(self.shape.generated_fields)

    # --- what takes rows away --------------------------------------------------------------------------------------

    def forget(self, places: Iterable[Place]) -> None:
        """The rows of these groups are gone, in whatever state they were."""
        for row in [row for place in places for row in self.rows_of(place)]:
            self.fields.pop(row, None)
            for task in self.shape.tasks:
                self.held[task.name].pop(row, None)
                self.done[task.name].discard(row)

    def retire(self, version: int) -> None:
        """Recorded: partitions before it are over."""
        self.recorded = version
        over = [place for place in self.groups if place[0] < version]
        self.forget(over)
        for place in over:
            del self.groups[place]

    def restore(self) -> None:
        """A new epoch at the recorded version: groups of recorded weights stand, training begins again."""
        self.published = self.recorded
        fallen = [place for place, group in self.groups.items() if not self._stands(group)]
        self.forget(fallen)
        for place in fallen:
            del self.groups[place]
        for r in {r for r, _ in self.groups}:
            self._lose_torn(r)
        for task in self.shape.tasks:
            self.held[task.name].clear()
            self.done[task.name] = set() if task.kind is TaskKind.TRAINING else self._written(task)

    def _stands(self, group: Group) -> bool:
        return group.state == "put" and group.made_by <= self.recorded

    def _written(self, task: Task) -> set[Row]:
        return {row for row, has in self.fields.items() if has.issuperset(task.writes)}

    def lose(self, lost: dict[Row, set[str]]) -> bool:
        """Bytes are gone, by row and field; whether only a restart helps."""
        forward = [task for task in self.shape.tasks if task.kind is TaskKind.FORWARD]
        partitions = {r for r, _ in lost}
        for task in forward:
            self.release({holder for (r, _), holder in self.held[task.name].items() if r in partitions})
        needs_restart = False
        for place in {self.group_of(row) for row in lost}:
            fields = {row: lost.get(row, set()) for row in self.rows_of(place)}
            if any(gone.intersection(self.shape.generated_fields) for gone in fields.values()):
                needs_restart |= self._lose_group(place)
            else:
                needs_restart |= self._lose_derived(fields)
        for r in partitions:
            if r >= self.first:
                needs_restart |= self._lose_torn(r)
        return needs_restart

    def _lose_torn(self, r: int) -> bool:
        """What a Partition task wrote where some rows of a partition have it and others lack it; as `_lose_derived`."""
        torn: set[str] = set()
        for task in self.shape.tasks:
            if task.policy is ForwardPolicy.PARTITION:
                have = [
                    row for row in self.rows_of_partition(r) if self.fields.get(row, set()).intersection(task.writes)
                ]
                torn.update(task.writes if len(have) < self.shape.rows_per_partition and have else ())
        without, needs_restart = self._with_dependants(torn), False
        for place in [place for place in self.groups if place[0] == r]:
            rows = [row for row in self.rows_of(place) if row in self.fields]
            if any(self.fields[row] & without for row in rows):
                needs_restart |= any(self._is_missed(row, without) for row in rows)
                for row in rows:
                    self._drop(row, without)
        return needs_restart

    def _lose_group(self, place: Place) -> bool:
        rows = self.rows_of(place)
        if place[0] < self.first:
            self.forget([place])
            self.groups[place].state = "absent"
            for task in self.shape.tasks:
                self.done[task.name].update(rows)
            return False
        if any(self._has_touched(task, row) for task in self.shape.training_tasks for row in rows):
            self.groups[place].made_by = 1 << 30  # no restore keeps it
            return True
        self.forget([place])
        self.groups[place].state = "waiting"
        return False

    def _has_touched(self, task: Task, row: Row) -> bool:
        return row in self.held[task.name] or row in self.done[task.name]

    def _lose_derived(self, lost: dict[Row, set[str]]) -> bool:
        """With what was made of them; what a Group task wrote goes for the whole group.

        True where a row's publisher may go on to other weights before another training task has them again.
        """
        whole = {name for task in self.shape.tasks if task.policy is ClaimPolicy.GROUP for name in task.writes}
        gone = {row: self._with_dependants(fields) for row, fields in lost.items()}
        shared = set().union(*gone.values()) & whole
        needs_restart = False
        for row, fields in gone.items():
            without = self._with_dependants(fields | shared)
            needs_restart |= self._is_missed(row, without)
            self._drop(row, without)
        return needs_restart

    def _drop(self, row: Row, without: set[str]) -> None:
        self.fields[row] -= without
        for task in self.shape.tasks:
            if task.kind is TaskKind.FORWARD and not self.fields[row].issuperset(task.writes):
                self.done[task.name].discard(row)

    def _is_missed(self, row: Row, without: set[str]) -> bool:
        if not any(task.publishes and self._has_touched(task, row) for task in self.shape.training_tasks):
            return False
        others = [task for task in self.shape.training_tasks if not task.publishes]
        return any(without.intersection(task.needs) and row not in self.done[task.name] for task in others)

    def _with_dependants(self, fields: set[str]) -> set[str]:
        gone = set(fields)
        for _ in self.shape.tasks:
            for task in self.shape.tasks:
                if gone.intersection((*task.needs, *task.writes)):
                    gone.update(task.writes)
        return gone
