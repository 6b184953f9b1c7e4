"""What a drained queue still waits for, by its counts alone."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.wire.queue import LeaseStats, PartitionStats, QueueStats, TaskRows, TaskStats, TicketHolder
from rljob_workers.transfer_queue.inspection import drain_blockers, retained_by_drain

FORWARD, TRAIN, CRITIC = "actor_log_probs", "actor_train", "critic_train"


def rows(task: str, unready: int = 0, ready: int = 0, claimed: int = 0, done: int = 0) -> TaskRows:
    return TaskRows(task=task, unready=unready, ready=ready, claimed=claimed, done=done, batches=0)


def partition(rollout_id: int, *tasks: TaskRows, put: int = 4, **groups: int) -> PartitionStats:
    counts = {"groups_issued": 0, "groups_returned": 0, "groups_absent": 0, "groups_missing": 0, **groups}
    return PartitionStats(
        partition=f"train_{rollout_id}", rollout_id=rollout_id, groups_put=put, tasks=list(tasks), **counts
    )


def lease(task: str, holder: str) -> LeaseStats:
    return LeaseStats(
        lease="a",
        task=task,
        partition="train_3",
        holder=holder,
        rows=2,
        age_seconds=1.0,
        expires_in_seconds=29.0,
    )


def make_stats(*partitions: PartitionStats, leases: tuple[LeaseStats, ...] = (), **changes: Any) -> QueueStats:
    def task(name: str, kind: str) -> TaskStats:
        found = [row for one in partitions for row in one.tasks if row.task == name]
        return TaskStats(
            task=name,
            kind=kind,
            publishes=name == TRAIN,
            leases=sum(one.task == name for one in leases),
            rows_claimed=sum(row.claimed for row in found),
            rows_ready=sum(row.ready for row in found),
            batches=0,
        )

    stats = QueueStats(
        job="test",
        epoch=Epoch(1),
        lineage=Lineage(1),
        seq=7,
        published=WeightVersion(3),
        recorded=WeightVersion(2),
        groups_issued=4,
        groups_capacity=8,
        withheld="Draining",
        draining_since=1.0,
        tickets_in_work=0,
        tickets_returned=0,
        holders=[],
        partitions=list(partitions),
        tasks=[task(FORWARD, "Forward"), task(TRAIN, "Training"), task(CRITIC, "Training")],
        leases=list(leases),
        units=[],
        garbage_chunks=0,
        garbage_partitions=0,
    )
    return stats.model_copy(update=changes)


TICKETS: dict[str, Any] = {
    "tickets_in_work": 5,
    "holders": [TicketHolder(holder="rollout-0.0", tickets=3), TicketHolder(holder="rollout-1.0", tickets=2)],
}


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        pytest.param(make_stats(), [], id="an empty queue is drained"),
        pytest.param(
            make_stats(**TICKETS),
            ["5 tickets are in work (rollout-0.0 3, rollout-1.0 2)"],
            id="tickets are waited for by name",
        ),
        pytest.param(
            make_stats(partition(3, rows(FORWARD, claimed=8)), leases=(lease(FORWARD, "actor_fwd-0.0"),) * 4),
            [
                "8 rows are claimed for actor_log_probs (actor_fwd-0.0 2 of train_3, actor_fwd-0.0 2 of train_3, "
                "actor_fwd-0.0 2 of train_3, 1 more)"
            ],
            id="of many leases some are named",
        ),
        pytest.param(
            make_stats(partition(3, rows(FORWARD, ready=2), put=1, groups_missing=3)),
            ["2 rows of train_3 are ready for actor_log_probs, and nobody has claimed them"],
            id="ready rows of the next partition will be claimed",
        ),
        pytest.param(
            make_stats(partition(4, rows(FORWARD, ready=2))),
            [],
            id="ready rows of a later partition wait for weights that nobody makes",
        ),
        pytest.param(
            make_stats(partition(3, rows(FORWARD, done=4), rows(TRAIN, claimed=2, ready=2), put=3, groups_returned=1)),
            [],
            id="a batch of an incomplete partition is no work in progress",
        ),
        pytest.param(
            make_stats(partition(3, rows(FORWARD, done=4), rows(TRAIN, claimed=2, ready=1, done=1))),
            ["train_3 is whole and actor_train has consumed 1 of its 4 rows"],
            id="a whole partition will be trained",
        ),
        pytest.param(
            make_stats(partition(3, rows(FORWARD, done=4), rows(TRAIN, done=4))),
            ["train_3 is trained and its weights are not published yet"],
            id="a trained partition will be published",
        ),
        pytest.param(
            make_stats(
                partition(1, rows(TRAIN, done=4), rows(CRITIC, done=4)),
                partition(2, rows(TRAIN, done=4), rows(CRITIC, claimed=1, done=3)),
                partition(3, rows(TRAIN, unready=4), rows(CRITIC, unready=4), put=1, groups_issued=3),
            ),
            ["train_2 is published and critic_train has consumed 3 of its 4 rows"],
            id="a published partition that another training task is behind with will be consumed",
        ),
        pytest.param(
            make_stats(partition(3, rows(TRAIN, done=4), rows(CRITIC, ready=4))),
            [
                "train_3 is whole and critic_train has consumed 0 of its 4 rows",
                "train_3 is trained by actor_train and its weights are not published yet",
            ],
            id="the version of a partition that another training task is behind with will be published",
        ),
        pytest.param(
            make_stats(partition(3, rows(TRAIN, ready=4), rows(CRITIC, done=4))),
            ["train_3 is whole and actor_train has consumed 0 of its 4 rows"],
            id="what only another training task has consumed will be trained",
        ),
        pytest.param(
            make_stats(partition(2, rows(FORWARD, done=4), rows(TRAIN, done=4))),
            [],
            id="what is kept for a restore is no work",
        ),
    ],
)
def test_what_is_waited_for(stats: QueueStats, expected: list[str]) -> None:
    assert drain_blockers(stats) == expected


def test_what_stays_is_what_no_training_can_consume_alone() -> None:
    stats = make_stats(
        partition(2, put=4), partition(3, put=3, groups_returned=1), partition(4, put=0, groups_returned=4)
    )
    assert retained_by_drain(stats) == ["train_3: 3 groups are put, 1 are not; they stay until tickets are given again"]
