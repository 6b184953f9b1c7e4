"""Claims of ranks that share a model: the source claims, and all of them get its answer.

So every rank that shares a model goes through the same loop, with the same rows, as if it had claimed them itself.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import torch

from rljob_api.names import RolloutId
from rljob_workers.rank_loop import ForwardClaims
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.mesh import Mesh, Message
from rljob_workers.transfer_queue.dataset import TrainingClaims
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady


class Claims(ForwardClaims, TrainingClaims, Protocol):
    """What a queue client gives rows by."""


class SharedClaims:
    """The claims of one rank; each call is a collective of the ranks that share its model."""

    def __init__(self, queue: Claims, mesh: Mesh) -> None:
        self._queue = queue
        self._mesh = mesh

    def claim(self, task: str, partitions: range, max_rows: int, *, timeout: float) -> Claim:
        """Of a forward task. The lease is the source's: it alone puts."""
        claim = self._queue.claim(task, partitions, max_rows, timeout=timeout) if self._mesh.is_source else None
        return self._shared(claim, f"rows of {task}")

    def claim_training(
        self,
        task: str,
        rollout_id: RolloutId,
        slice_index: int,
        rows_per_slice: int,
        dp_rank: int,
        dp_size: int,
        *,
        timeout: float,
    ) -> Claim:
        """Of a training task."""
        claim = None
        if self._mesh.is_source:
            claim = self._queue.claim_training(
                task, rollout_id, slice_index, rows_per_slice, dp_rank, dp_size, timeout=timeout
            )
        return self._shared(claim, f"slice {slice_index} of train_{rollout_id}")

    def _shared(self, claim: Claim | None, what: str) -> Claim:
        if claim is not None and self._mesh.sharing.world == 1:
            return claim
        message = self._mesh.share(None if claim is None else message_of(claim), what)
        return claim_of(message) if claim is None else claim


def message_of(claim: Claim) -> Message:
    """An answer of the queue as ranks are sent it; no lease goes along."""
    match claim:
        case NotReady(waiting_for=waiting_for):
            return Message(_header(waiting_for=waiting_for))
        case Exhausted():
            return Message(_header())
        case Batch():
            places = (claim.rows.astype(np.int64), claim.groups.astype(np.int64), claim.oldest_versions)
            tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in places]
            for column in claim.columns.values():
                tensors += [column.values, column.offsets]
            return Message(_header(rollout_id=claim.rollout_id, columns=list(claim.columns)), tuple(tensors))


def claim_of(message: Message) -> Claim:
    """What `message_of` made a message of."""
    header = json.loads(message.header)
    if "waiting_for" in header:
        return NotReady(header["waiting_for"])
    if "columns" not in header:
        return Exhausted()
    rows, groups, oldest, *columns = message.tensors
    jagged = [Jagged(values, offsets) for values, offsets in zip(columns[::2], columns[1::2], strict=True)]
    return Batch(
        rollout_id=RolloutId(header["rollout_id"]),
        rows=rows.numpy().astype(np.uint32),
        groups=groups.numpy().astype(np.uint32),
        oldest_versions=oldest.numpy(),
        columns=dict(zip(header["columns"], jagged, strict=True)),
    )


def _header(**fields: Any) -> bytes:  # noqa: ANN401 -- whatever JSON holds
    return json.dumps(fields).encode()
