"""What the client refuses before it connects to anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch

from rljob_api.names import Epoch, Lineage, Role, RolloutId, WeightVersion
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import Endpoints, Incarnation, RankKey, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, Exhausted, QueueShape, Task, TaskKind

SCORE = Task("score", TaskKind.FORWARD, ("tokens",), ("scores",))
TRAIN = Task("train", TaskKind.TRAINING, ("tokens",), policy=ClaimPolicy.GROUP)
SHAPE = QueueShape(4, 2, 1, 5, 3, 8, ("tokens",), (SCORE, TRAIN))
WEIGHT = WeightId(lineage=Lineage(1), version=WeightVersion(0))


@pytest.fixture
def queue() -> Iterator[TransferQueueClient]:
    no_one = Endpoints(
        job="test",
        coordinator="http://127.0.0.1:1",
        token="t",
        control_redis="unix:///nowhere/control.sock",
        storage_units=["unix:///nowhere/unit.sock"],
        run_dir="",
        weights_dir="",
    )
    incarnation = Incarnation(key=RankKey(role=Role.ACTOR, replica=0), epoch=Epoch(1), generation=0, id="0" * 12)
    client = TransferQueueClient(no_one, SHAPE, incarnation)
    yield client
    client.close()


def batch(lease: str | None) -> Batch:
    rows = np.arange(2, dtype=np.uint32)
    return Batch(RolloutId(0), rows, rows // 2, np.zeros(2, np.int64), {}, lease)


def scalars(field: str, count: int) -> Mapping[str, Jagged]:
    return {field: Jagged.scalars(torch.zeros(count))}


def claim_training(queue: TransferQueueClient, num_rows: int, rank: int, size: int) -> object:
    return queue.claim_training("train", RolloutId(0), 0, num_rows, rank, size, timeout=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda queue: queue.claim_tickets(WEIGHT, 0, 0), "limit: 0 tickets cannot be claimed", id="no ticket"
        ),
        pytest.param(
            lambda queue: queue.claim("score", range(3), 0, timeout=0), "max_rows 0 must be positive", id="no row"
        ),
        pytest.param(
            lambda queue: queue.claim("score", range(0, 4, 2), 1, timeout=0), "must have step 1", id="every second one"
        ),
        pytest.param(
            lambda queue: queue.claim("train", range(3), 1, timeout=0),
            "'train' is no Forward task of this job. Known: score",
            id="a task of the other kind",
        ),
        pytest.param(
            lambda queue: queue.put(batch(None), scalars("scores", 2), weight=WEIGHT), "has no lease", id="no lease"
        ),
        pytest.param(
            lambda queue: queue.put(batch("a"), scalars("scores", 3), weight=WEIGHT),
            "scores has 3 rows, the batch has 2",
            id="results of other rows",
        ),
        pytest.param(
            lambda queue: queue.put(batch("a"), scalars("others", 2), weight=WEIGHT),
            r"no task writes exactly \['others'\]",
            id="a field that nobody writes",
        ),
        pytest.param(lambda queue: claim_training(queue, 8, 0, 0), "8 rows cannot be dealt", id="no rank"),
        pytest.param(lambda queue: claim_training(queue, 8, 2, 2), "to rank 2 of 2", id="a rank too many"),
        pytest.param(lambda queue: claim_training(queue, 7, 0, 2), "7 rows cannot be dealt evenly", id="an odd row"),
        pytest.param(
            lambda queue: claim_training(queue, 6, 0, 2), "Use a multiple of 4", id="half a group for each rank"
        ),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_its_cure(
    queue: TransferQueueClient, call: Callable[[TransferQueueClient], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(queue)


def test_nothing_is_left_of_no_partitions(queue: TransferQueueClient) -> None:
    assert queue.claim("score", range(0), 1, timeout=0) == Exhausted()


def test_the_return_of_no_tickets_asks_no_one(queue: TransferQueueClient) -> None:
    queue.return_tickets([], killed=False)
    assert queue.calls.seen_seq == 0
