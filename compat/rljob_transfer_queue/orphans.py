"""Bytes that were stored and not committed: their clients died or gave up. Deletes them once no commit can name them.

For `session`, in its turn. Age alone proves nothing, since a client may sleep: first the control plane condemns the
chunks, so that no later commit may name them, then reports which of them were committed before.
"""

from __future__ import annotations

from rljob_transfer_queue.bytes_plane import BytesPlane
from rljob_transfer_queue.control_plane import ControlPlane
from rljob_workers.transfer_queue.row_format import parse_chunk

KEYS_AT_ONCE = 1000
"""In one call: the control Redis serves others in between."""
_SWEEPS = "sweeps"


def sweep(control: ControlPlane, plane: BytesPlane, idle_seconds: int) -> int:
    """Deletes chunks that no commit names and no client touched for so long; returns how many."""
    suspects = plane.idle(_needed(control), idle_seconds, deadline=control.deadline())
    keys = [key for of_unit in suspects.values() for key in of_unit]
    if not keys:
        return 0
    for first in range(0, len(keys), KEYS_AT_ONCE):
        control.call("condemn", *keys[first : first + KEYS_AT_ONCE], what=_SWEEPS)
    needed = _needed(control)
    orphans = {unit: [key for key in of_unit if key not in needed] for unit, of_unit in suspects.items()}
    return plane.discard(orphans, deadline=control.deadline())


def _needed(control: ControlPlane) -> set[str]:
    return {parse_chunk(line).key for line in control.call("chunks", what=_SWEEPS)}
