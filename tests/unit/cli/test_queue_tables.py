"""What `rljob queue` prints of counts and rows."""

from __future__ import annotations

import pytest

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.queue import QueuePeek, QueueRow, RowState, RowValues, TicketHolder, UnitStats, WeightSpan
from rljob_cli.ui.queue import peek_text, stats_text
from tests.unit.transfer_queue.test_draining import CRITIC, FORWARD, TRAIN, lease, make_stats, partition, rows


def make_unit(**figures: int) -> UnitStats:
    return UnitStats(unit=0, generation=2, answers=True).model_copy(update=figures)


def test_stats_are_lines_for_the_job_and_tables_for_rows_leases_and_units() -> None:
    stats = make_stats(
        partition(3, rows(FORWARD, ready=2, claimed=2), rows(TRAIN, unready=4), put=2, groups_issued=2),
        leases=(lease(FORWARD, "actor_fwd-0.0"),),
        tickets_in_work=2,
        holders=[TicketHolder(holder="rollout-1.0", tickets=2)],
        units=[
            make_unit(used_bytes=3 << 20, limit_bytes=2 << 30, high_water_bytes=17 << 26, keys=9),
            UnitStats(unit=1, generation=None, answers=False),
            UnitStats(unit=2, generation=1, answers=None),
        ],
        garbage_chunks=4,
    )
    assert stats_text(stats).splitlines() == [
        "test: epoch 1, lineage 1, seq 7; published version 3, recorded 2",
        "tickets: 2 in work (rollout-1.0 2), 0 returned; 4 of 8 groups issued",
        "withheld: Draining (somebody drains the queue)",
        "draining since 1970-01-01T00:00:01.000000Z; `rljob queue drain --off` gives tickets again",
        "oldest lease: actor_fwd-0.0, 2 rows of train_3, 1.0 s",
        "garbage: 4 chunks, 0 partitions",
        "",
        "partition  groups           task             unready  ready  claimed  done  batches",
        "train_3    2 put, 2 issued  actor_log_probs        0      2        2     0        0",
        "                            actor_train            4      0        0     0        0",
        "",
        "lease of       task             partition  rows    age  ends in",
        "actor_fwd-0.0  actor_log_probs  train_3       2  1.0 s   29.0 s",
        "",
        "unit  generation             used  high water    limit  keys",
        "0              2          3.0 MiB     1.1 GiB  2.0 GiB     9",
        "1              -  does not answer",
        "2              1    not asked yet",
    ]


def test_what_was_dropped_or_lost_is_shown_only_where_there_is_something() -> None:
    units = [
        make_unit(used_bytes=1 << 20, limit_bytes=1 << 30, high_water_bytes=1 << 29, keys=9, lost_chunks=3),
        make_unit(used_bytes=1 << 20, limit_bytes=1 << 30, high_water_bytes=1 << 29, keys=8).model_copy(
            update={"unit": 1}
        ),
    ]
    stats = make_stats(units=units, swaps=7, dropped_retained_rows=512, dropped_unclaimed_rows=64)
    lines = stats_text(stats).splitlines()
    assert "exchanged: 7 groups took the place of one that an earlier rollout waited for" in lines
    assert "dropped, since storage was full: 512 rows kept for a restore, 64 generated again" in lines
    assert lines[-3:] == [
        "unit  generation     used  high water    limit  keys  lost chunks",
        "0              2  1.0 MiB   512.0 MiB  1.0 GiB     9            3",
        "1              2  1.0 MiB   512.0 MiB  1.0 GiB     8            0",
    ]


def test_a_training_task_that_is_behind_is_named_with_what_it_has_yet_to_consume() -> None:
    behind = make_stats(
        partition(0, rows(TRAIN, done=4), rows(CRITIC, done=4)),
        partition(1, rows(TRAIN, done=4), rows(CRITIC, claimed=2, done=2)),
        partition(2, rows(TRAIN, done=4), rows(CRITIC, ready=4)),
        partition(3, rows(TRAIN, ready=4), rows(CRITIC, ready=4)),
    )
    lines = stats_text(behind).splitlines()
    assert lines[1] == "critic_train is behind what is published: it has yet to consume train_1, train_2"
    assert sum("behind" in line for line in lines) == 1


def test_an_empty_queue_is_shown_without_leases() -> None:
    quiet = make_stats(withheld=None, draining_since=None, recorded=None)
    assert stats_text(quiet).splitlines()[:3] == [
        "test: epoch 1, lineage 1, seq 7; published version 3, recorded none",
        "tickets: 0 in work, 0 returned; 4 of 8 groups issued",
        "garbage: 0 chunks, 0 partitions",
    ]
    assert "lease" not in stats_text(quiet)


def make_row(**changes: object) -> QueueRow:
    weight = WeightSpan(lineage=Lineage(1), version=WeightVersion(2))
    row = QueueRow(
        partition="train_3",
        row=5,
        group=2,
        group_state="put",
        lengths={"tokens": 7, "rewards": 1},
        states={FORWARD: RowState.DONE, TRAIN: RowState.READY},
        oldest=weight,
        newest=weight,
    )
    return row.model_copy(update=changes)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(
            make_row(),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
            ],
            id="fields with their lengths, states by task, the weight",
        ),
        pytest.param(
            make_row(newest=WeightSpan(lineage=Lineage(1), version=WeightVersion(3))),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1 to v3@1",
            ],
            id="tokens of several weights",
        ),
        pytest.param(
            make_row(field=RowValues(length=7, shape=[], dtype="int32", values=[1, 2])),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  int32: [1, 2, ...]",
            ],
            id="the first values of a field",
        ),
        pytest.param(
            make_row(field=RowValues(length=1, shape=[2], dtype="bfloat16", values=[0.5, None])),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  bfloat16[2]: [0.5, nan or inf]",
            ],
            id="all values of a short row",
        ),
        pytest.param(
            make_row(field=RowValues(length=7, shape=[], dtype="int32", values=None)),
            [
                "train_3 row 5 (group 2, put): actor_log_probs done, actor_train ready",
                "  has tokens[7], rewards[1]; made by v2@1",
                "  int32: its bytes are gone",
            ],
            id="bytes that are gone",
        ),
        pytest.param(
            make_row(group_state="issued", lengths={}, oldest=None, newest=None, states={TRAIN: RowState.UNREADY}),
            ["train_3 row 5 (group 2, issued): actor_train unready"],
            id="a row that is being generated",
        ),
    ],
)
def test_a_row_is_shown(row: QueueRow, expected: list[str]) -> None:
    assert peek_text(QueuePeek(rows=[row], more=False)).splitlines() == expected


def test_rows_that_are_not_shown_are_reported() -> None:
    assert peek_text(QueuePeek(rows=[make_row()], more=True)).endswith("... and more: see --first and --limit.")
    assert peek_text(QueuePeek(rows=[], more=False)) == "There is no such row."
