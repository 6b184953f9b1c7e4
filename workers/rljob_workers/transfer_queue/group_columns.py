"""Columns on their way into a commit: what they must be, and how the groups of one put lie in them.

For the queue's client. Pure; knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch

from rljob_api.names import RolloutId
from rljob_api.spec.rollout import GroupOrder
from rljob_workers.tensors.jagged import Column, join
from rljob_workers.transfer_queue.chunks import DTYPES
from rljob_workers.transfer_queue.row_format import pack_weights
from rljob_workers.transfer_queue.types import GroupRows, QueueShape


def check_group(group: GroupRows, shape: QueueShape) -> None:
    """Raises ValueError where a field is missing or too many, or a column has not the rows of a group."""
    wanted, found = set(shape.generated_fields), set(group.columns)
    if wanted != found:
        raise ValueError(f"put_groups: fields {sorted(found)} were given, {sorted(wanted)} are needed.")
    num_rows = shape.samples_per_prompt
    columns: dict[str, Sized] = {**group.columns, "oldest": group.oldest, "newest": group.newest}
    check_rows("put_groups", columns, num_rows, f"a group has {num_rows} (samplesPerPrompt)")


def check_rows(call: str, columns: Mapping[str, Sized], num_rows: int, wanted: str) -> None:
    """Raises ValueError where a column has not `num_rows` rows, as `wanted` states."""
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ValueError(f"{call}: {name} has {len(column)} rows, {wanted}.")


@dataclass(frozen=True, slots=True)
class Elements:
    """What the elements of a field must be."""

    dtype: torch.dtype
    inner: tuple[int, ...]

    @classmethod
    def of(cls, shape: QueueShape) -> dict[str, Elements]:
        """Of the fields whose kind is known."""
        return {kind.field: cls(DTYPES[kind.dtype], kind.inner) for kind in shape.kinds}


def check_elements(call: str, columns: Mapping[str, Column], wanted: Mapping[str, Elements]) -> None:
    """Raises ValueError where a column's dtype or inner shape is not the field's; all its parts have the same."""
    for name, column in columns.items():
        kind, values = wanted.get(name), column.parts[0].values
        if kind is not None and (values.dtype is not kind.dtype or values.shape[1:] != kind.inner):
            raise ValueError(
                f"{call}: {name} is {_element_name(values.dtype, values.shape[1:])}, the table of columns says"
                f" {_element_name(kind.dtype, kind.inner)}. Convert it before it is put."
            )


def _element_name(dtype: torch.dtype, inner: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(inner) if inner else ''}"


def by_partition(groups: Sequence[GroupRows], order: GroupOrder) -> list[list[int]]:
    """Places in `groups` of those that are stored together: of one partition, where that is known before a put."""
    if order is GroupOrder.SWAP:
        return [[place] for place in range(len(groups))]
    sections: dict[RolloutId, list[int]] = {}
    for place, group in enumerate(groups):
        sections.setdefault(group.ticket.rollout_id, []).append(place)
    return [sections[rollout_id] for rollout_id in sorted(sections)]


def joined_columns(groups: Sequence[GroupRows], fields: Sequence[str]) -> Mapping[str, Column]:
    """Per field, the rows of all groups, one group behind the other."""
    return {field: join([group.columns[field] for group in groups]) for field in fields}


def pack_tickets(groups: Sequence[GroupRows]) -> bytes:
    """Per group, its ticket."""
    return np.array([group.ticket.id for group in groups], "<u4").tobytes()


def pack_group_weights(groups: Sequence[GroupRows]) -> bytes:
    """Per row of every group, the weights of its oldest and newest token."""
    return b"".join(pack_weights(group.oldest, group.newest) for group in groups)
