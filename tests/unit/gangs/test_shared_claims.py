"""What ranks that share a model are sent of a claim is the claim."""

from __future__ import annotations

import numpy as np
import pytest

from rljob_workers.gangs.shared_claims import claim_of, message_of
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady
from tests.unit.training.batches import make_batch


@pytest.mark.parametrize("claim", [NotReady("rewards of 3 rows"), Exhausted()])
def test_an_answer_without_rows(claim: Claim) -> None:
    assert claim_of(message_of(claim)) == claim


def test_rows_and_their_columns() -> None:
    batch = make_batch([0, 0, 7], [0.0, 1.0, 2.0], [1, 2, 3], oldest=[5, 4, 3])
    again = claim_of(message_of(batch))
    assert isinstance(again, Batch)
    assert (again.rollout_id, again.lease) == (batch.rollout_id, None)
    for name in ("rows", "groups", "oldest_versions"):
        sent, received = getattr(batch, name), getattr(again, name)
        assert (received.dtype, received.tolist()) == (sent.dtype, sent.tolist())
    assert list(again.columns) == list(batch.columns)
    for name, column in batch.columns.items():
        received = again.columns[name]
        assert received.values.dtype is column.values.dtype
        assert np.array_equal(received.values.numpy(), column.values.numpy())
        assert received.offsets.tolist() == column.offsets.tolist()
