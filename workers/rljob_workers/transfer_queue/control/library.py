"""The Lua functions of the control plane as one Redis library, made for one shape of job.

Names carry a hash of the text, so that functions of another build or shape are never mistaken for ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rljob_api.spec.rollout import GroupOrder
from rljob_workers.transfer_queue.layout import layout_digest, layout_table
from rljob_workers.transfer_queue.types import QueueShape, Task, TaskKind

_PARTS = (
    "state",
    "ready",
    "rows",
    "training",
    "suspicion",
    "curriculum",
    "tickets",
    "swaps",
    "evaluation",
    "puts",
    "partials",
    "deal",
    "claims",
    "lives",
    "drain",
    "restore",
    "lost",
    "layout",
    "room",
    "observe",
    "inspect",
)
"""Files of `lua/`, in the order in which they build on each other."""


@dataclass(frozen=True, slots=True)
class Library:
    """`text` for FUNCTION LOAD; `suffix` ends every function's name."""

    text: str
    suffix: str


@cache
def library(shape: QueueShape) -> Library:
    """The library for a job of this shape."""
    folder = resources.files(__package__) / "lua"
    body = "\n".join((folder / f"{part}.lua").read_text() for part in _PARTS)
    source = f"local SHAPE = {_shape_table(shape)}\n{body}"
    suffix = "_" + hashlib.sha256(source.encode()).hexdigest()[:12]
    return Library(f"#!lua name=rljob{suffix}\nlocal SUFFIX = '{suffix}'\n{source}", suffix)


def _shape_table(shape: QueueShape) -> str:
    fields = shape.fields
    bits = {field: 1 << place for place, field in enumerate(fields)}
    tasks = ",".join(_task_table(task, bits, shape.rows_per_partition) for task in shape.tasks)
    return (
        f"{{layout='{layout_digest(layout_table(shape))}',batch={shape.batch_size},samples={shape.samples_per_prompt},"
        f"rows={shape.rows_per_partition},staleness={shape.max_staleness},rollouts={shape.num_rollouts},"
        f"swaps={_boolean(shape.order is GroupOrder.SWAP)},carries={_boolean(shape.carries)},"
        f"capacity={shape.capacity},kills={shape.max_prompt_kills},curriculum={_boolean(shape.has_curriculum)},"
        f"partials={_boolean(shape.has_partials)},"
        f"attempts={shape.max_attempts},fields={_names(fields)},generated={_names(shape.generated_fields)},"
        f"generated_bits={_mask(shape.generated_fields, bits)},"
        f"bit={{{','.join(f'{field}={value}' for field, value in bits.items())}}},tasks={{{tasks}}},task={{}}}}\n"
        # A library is loaded without the usual globals (ipairs).
        "for place = 1, #SHAPE.tasks do SHAPE.task[SHAPE.tasks[place].name] = SHAPE.tasks[place] end"
    )


def _task_table(task: Task, bits: dict[str, int], num_rows: int) -> str:
    kind = "Training" if task.kind is TaskKind.TRAINING else "Forward"
    step_rows = task.rows_per_step or num_rows
    return (
        f"{{name={_quoted(task.name)},steps={num_rows // step_rows},step_rows={step_rows},kind='{kind}',"
        f"publishes={_boolean(task.publishes)},policy='{task.policy.value}',needs={_mask(task.needs, bits)},"
        f"writes={_mask(task.writes, bits)},need_fields={_names(task.needs)},write_fields={_names(task.writes)}}}"
    )


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _mask(fields: tuple[str, ...], bits: dict[str, int]) -> int:
    return sum(bits[field] for field in set(fields))


def _names(fields: tuple[str, ...]) -> str:
    return "{" + ",".join(map(_quoted, fields)) + "}"


def _quoted(name: str) -> str:
    if not name.replace("_", "").isalnum():
        raise ValueError(f"TransferQueue: {name!r} is no name of a field or task. Use letters, digits and underscores.")
    return f"'{name}'"
