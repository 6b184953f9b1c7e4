"""Finished groups on their way into a commit: checked, and put together by partition. Pure; for `client`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.control.rows import pack_weights
from rljob_workers.transfer_queue.jagged import Column, join
from rljob_workers.transfer_queue.types import GroupRows, QueueShape


def check_group(group: GroupRows, shape: QueueShape) -> None:
    """Raises ValueError where a field is missing or too many, or a column has not the rows of a group."""
    wanted, found = set(shape.generated_fields), set(group.columns)
    if wanted != found:
        raise ValueError(f"put_groups: fields {sorted(found)} were given, {sorted(wanted)} are needed.")
    num_rows = shape.samples_per_prompt
    counts = {field: len(column) for field, column in group.columns.items()}
    counts |= {"oldest": len(group.oldest), "newest": len(group.newest)}
    for name, count in counts.items():
        if count != num_rows:
            raise ValueError(f"put_groups: {name} has {count} rows, a group has {num_rows} (samplesPerPrompt).")


def by_partition(groups: Sequence[GroupRows]) -> dict[RolloutId, list[GroupRows]]:
    """The groups of each partition, in their order."""
    sections: dict[RolloutId, list[GroupRows]] = {}
    for group in groups:
        sections.setdefault(group.ticket.rollout_id, []).append(group)
    return sections


def joined_columns(groups: Sequence[GroupRows], fields: Sequence[str]) -> Mapping[str, Column]:
    """Per field, the rows of all groups, one group behind the other."""
    return {field: join([group.columns[field] for group in groups]) for field in fields}


def pack_places(groups: Sequence[GroupRows]) -> bytes:
    """Per group, its ticket and its number in the partition."""
    return np.array([(group.ticket.id, group.ticket.group) for group in groups], "<u4").tobytes()


def pack_group_weights(groups: Sequence[GroupRows]) -> bytes:
    """Per row of every group, the weights of its oldest and newest token."""
    return b"".join(pack_weights(group.oldest, group.newest) for group in groups)
