"""Which chunks the control state names, page by page: no call takes long, however many there are.

For `sweeping`, `upkeep` and `invariants`; changes nothing. What comes or goes meanwhile may be named or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.read_access import ReadAccess


class Named(StrEnum):
    """By which partitions."""

    KEPT = "kept"
    """Those with rows."""
    ALL = "all"
    """Also those that wait to be collected."""


def partitions(access: ReadAccess, which: Named, waiting: str) -> list[RolloutId]:
    """Of this kind, as they are now."""
    return [RolloutId(rollout_id) for rollout_id in access.read("partitions", which.value, waiting=waiting)]


def chunks_of(access: ReadAccess, which: Named, rollout_id: RolloutId, waiting: str) -> Iterator[tuple[bytes, bytes]]:
    """Id and line of every chunk that the partition names, some of them twice; none where it is of another kind."""
    cursor = b"0"
    while True:
        cursor, *listed = access.read("chunks", which.value, rollout_id, cursor, waiting=waiting)
        yield from zip(listed[::2], listed[1::2], strict=True)
        if cursor == b"0":
            return
