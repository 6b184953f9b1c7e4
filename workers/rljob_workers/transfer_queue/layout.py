"""The table of columns under which rows lie in the control Redis, and what another table makes of them.

Pure; for the coordinator, which opens a server that an earlier run of the job, or another release, has left. Rows go on
where every generated field is still there and means the same: what is derived can be computed again. Else they go, and
their prompts return. A table is trusted only with its digest beside it: a release that knew no tables wrote the digest
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rljob_workers.transfer_queue.types import QueueShape


def layout_table(shape: QueueShape) -> bytes:
    """Everything that a row's masks, lists and chunks depend on, as JSON; fields in the order of their bits."""
    kinds = {kind.field: [kind.dtype, list(kind.inner)] for kind in shape.kinds}
    return orjson.dumps(
        {
            "batch": shape.batch_size,
            "samples": shape.samples_per_prompt,
            "generated": shape.generated_fields,
            "fields": [[field, kinds.get(field)] for field in shape.fields],
            "tasks": [[task.name, task.kind, task.policy, sorted(task.needs), task.writes] for task in shape.tasks],
            **({"steps": shape.steps} if shape.steps else {}),
            **({"publishes": _publisher(shape)} if len(shape.training_tasks) > 1 else {}),
        }
    )


def _publisher(shape: QueueShape) -> str:
    return next(task.name for task in shape.training_tasks if task.publishes)


def layout_digest(table: bytes) -> str:
    """What a server stores beside the table."""
    return hashlib.sha256(table).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """What a server says of its rows."""

    digest: str
    """Empty where no job has opened it."""
    table: bytes
    """Empty, or of another digest, where a release that knew no tables opened it last."""
    found: Collection[str]
    """Fields that some row has."""


@dataclass(frozen=True, slots=True)
class Remapping:
    """How rows go on under another table."""

    bits: Sequence[tuple[int, int]]
    """Bit of a field before, and now."""
    gone_fields: Sequence[tuple[str, int]]
    """Derived fields whose bytes go, and their bits before: they are computed again where they are still wanted."""
    gone_tasks: Sequence[str]

    def dump(self) -> bytes:
        """For the server's function."""
        return orjson.dumps({"bits": self.bits, "fields": self.gone_fields, "tasks": self.gone_tasks})


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What differs, in words, and what becomes of the rows."""

    what: str
    remapping: Remapping | None
    """None: the rows go and are generated again."""


@dataclass(frozen=True, slots=True)
class AdoptedLayout:
    """A change that was made, until it is reported."""

    seq: int
    """When, in changes of the server."""
    groups: int
    rows_go_on: bool
    what: str

    @classmethod
    def parse(cls, text: bytes) -> AdoptedLayout | None:
        """Of the server's answer; None where nothing waits to be reported."""
        if not text:
            return None
        seq, groups, go_on, what = text.decode().split(" ", 3)
        return cls(int(seq), int(groups), go_on == "1", what)

    def __str__(self) -> str:
        if self.rows_go_on:
            return f"The table of columns changed ({self.what}): {self.groups} groups that were put go on."
        return (
            f"The table of columns changed ({self.what}): {self.groups} groups that were put since the checkpoint"
            " cannot be used, and are generated again from the same prompts."
        )


def layout_change(stored: StoredLayout, shape: QueueShape) -> LayoutChange | None:
    """None where the rows lie as this shape has them, or there is no state at all."""
    table = layout_table(shape)
    if stored.digest in ("", layout_digest(table)):
        return None
    if layout_digest(stored.table) != stored.digest:
        return LayoutChange(_of_earlier_release(stored.found, shape), None)
    before, after = _Table.parse(stored.table), _Table.parse(table)
    if why := _unusable(before, after):
        return LayoutChange(why, None)
    retained = _retained(before, after)
    came = [field for field in after.kinds if field not in retained]
    went = [field for field in before.kinds if field not in retained]
    remapping = Remapping(
        [(1 << before.place(field), 1 << after.place(field)) for field in before.kinds if field in retained],
        [(field, 1 << before.place(field)) for field in went],
        [task for task in before.tasks if task not in after.tasks],
    )
    parts = [f"{', '.join(came)} to be computed"] if came else []
    parts += [f"{', '.join(went)} of before dropped"] if went else []
    parts += ["other optimizer steps of a rollout"] if before.steps != after.steps else []
    if None not in (before.publishes, after.publishes) and before.publishes != after.publishes:
        parts.append(f"{after.publishes} publishes, no longer {before.publishes}")
    return LayoutChange("; ".join(parts) or "other tasks read the same fields", remapping)


@dataclass(frozen=True, slots=True)
class _Table:
    batch: tuple[int, int]
    """Groups of a partition and rows of a group."""
    generated: tuple[str, ...]
    kinds: dict[str, Any]
    """Field -> its dtype and inner shape, None where the shape does not say; in the order of the bits."""
    tasks: dict[str, tuple[Any, ...]]
    """Name -> policy, needs, writes."""
    steps: dict[str, int]
    """Name -> rows of an optimizer step, where it makes several of a partition."""
    publishes: str | None
    """Name of the training task that does, where there are several."""

    @classmethod
    def parse(cls, table: bytes) -> _Table:
        read = orjson.loads(table)
        tasks = {name: (policy, needs, writes) for name, _, policy, needs, writes in read["tasks"]}
        return cls(
            (read["batch"], read["samples"]),
            tuple(read["generated"]),
            dict(read["fields"]),
            tasks,
            read.get("steps", {}),
            read.get("publishes"),
        )

    def place(self, field: str) -> int:
        return list(self.kinds).index(field)

    def writer(self, field: str) -> tuple[Any, ...] | None:
        """Policy and needs of the task that computes the field."""
        return next(((policy, needs) for policy, needs, writes in self.tasks.values() if field in writes), None)


def _of_earlier_release(found: Collection[str], shape: QueueShape) -> str:
    missing = [field for field in shape.generated_fields if field not in found]
    if not found:
        return "no row has a field"
    if missing:
        return f"generated fields missing in them: {', '.join(missing)}"
    return "a release that stored no table of columns wrote them"


def _unusable(before: _Table, after: _Table) -> str | None:
    """Why no row of `before` can be used; None where every generated field is there and is what it was."""
    if before.batch != after.batch:
        return (
            f"{before.batch[0]} groups of {before.batch[1]} rows in a partition before,"
            f" {after.batch[0]} groups of {after.batch[1]} now"
        )
    came = [field for field in after.generated if field not in before.generated]
    went = [field for field in before.generated if field not in after.generated]
    others = [field for field in after.generated if field not in came and before.kinds[field] != after.kinds[field]]
    changes = (("added", came), ("removed", went), ("of another dtype or inner shape", others))
    named = [f"generated fields {how}: {', '.join(fields)}" for how, fields in changes if fields]
    return "; ".join(named) or None


def _retained(before: _Table, after: _Table) -> set[str]:
    """Fields whose values still hold: the same task computes them of fields whose values hold."""
    retained = {field for field, kind in after.kinds.items() if field in before.kinds and before.kinds[field] == kind}
    while True:
        holding = {
            field
            for field in retained
            if (writer := after.writer(field)) == before.writer(field)
            and (writer is None or set(writer[1]) <= retained)
        }
        if holding == retained:
            return retained
        retained = holding
