"""Where rows lie: the values that control plane and data plane hand to each other.

Made by `storage.StorageUnits.store` and by a claim's answer, read by `storage.StorageUnits.fetch`. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_CHUNK_BYTES = 4 << 20
"""Payload of one chunk: larger values stall a unit's other clients, smaller ones cost a command each."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One stored chunk: a run of rows of one field under one key of one storage unit."""

    unit: int
    """Index into the job's storage units."""
    unit_generation: int
    """Generation that the unit was marked with when the bytes went there."""
    key: str
    """`{epoch}:{incarnation}:{nonce}`; never overwritten."""
    field: str
    first_row: int
    """Row of the `store` call that the chunk begins with (only for the writer; 0 in a claim's answer)."""
    num_rows: int
    dtype: str
    """As in the chunk header, e.g. `int32`."""
    inner_shape: tuple[int, ...] = ()
    num_bytes: int = 0
    """Whole value, header included (0 where unknown)."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldPlacement:
    """Rows of one field, in the order in which they are wanted (or were given)."""

    chunks: tuple[ChunkRef, ...]
    rows: npt.NDArray[np.uint32]
    """[n, 3]: index into `chunks`, offset in the chunk (elements of inner shape, header not counted), length."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredChunks:
    """What one `store` call wrote."""

    fields: Mapping[str, FieldPlacement]
