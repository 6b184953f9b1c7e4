"""Which rows go on under another table of columns, and what is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest

from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.layout import (
    AdoptedLayout,
    LayoutChange,
    StoredLayout,
    layout_change,
    layout_digest,
    layout_table,
)
from rljob_workers.transfer_queue.types import FieldKind, QueueShape, Task, TaskKind

LOG_PROBS = Task("log_probs", TaskKind.FORWARD, ("tokens",), ("log_probs",))
REFERENCE = Task("reference", TaskKind.FORWARD, ("tokens",), ("ref",))
ADVANTAGES = Task("advantages", TaskKind.FORWARD, ("rewards", "log_probs"), ("advantages",), ClaimPolicy.GROUP)
TRAIN = Task("train", TaskKind.TRAINING, ("tokens", "rewards", "advantages"))
KINDS = (FieldKind("tokens", "int32"), FieldKind("log_probs", "float32"))
BEFORE = QueueShape(4, 2, 1, 5, 3, 8, ("tokens", "rewards"), (LOG_PROBS, REFERENCE, ADVANTAGES, TRAIN), KINDS)


def opened_by(after: QueueShape, before: QueueShape = BEFORE) -> LayoutChange | None:
    table = layout_table(before)
    return layout_change(StoredLayout(layout_digest(table), table, frozenset()), after)


def with_tasks(*tasks: Task) -> QueueShape:
    return replace(BEFORE, tasks=tasks)


USABLE = [
    pytest.param(
        with_tasks(LOG_PROBS, ADVANTAGES, TRAIN),
        "ref of before dropped",
        [[[1, 1], [2, 2], [4, 4], [16, 8]], [["ref", 8]], ["reference"]],
        id="a derived field went, and the bits behind it moved",
    ),
    pytest.param(
        with_tasks(Task("values", TaskKind.FORWARD, ("tokens",), ("values",)), *BEFORE.tasks),
        "values to be computed",
        [[[1, 1], [2, 2], [4, 8], [8, 16], [16, 32]], [], []],
        id="a derived field came in front of others",
    ),
    pytest.param(
        with_tasks(replace(LOG_PROBS, needs=("tokens", "rewards")), REFERENCE, ADVANTAGES, TRAIN),
        "log_probs, advantages to be computed; log_probs, advantages of before dropped",
        [[[1, 1], [2, 2], [8, 8]], [["log_probs", 4], ["advantages", 16]], []],
        id="a task reads other fields, and another reads what it writes",
    ),
    pytest.param(
        replace(BEFORE, kinds=(KINDS[0], FieldKind("log_probs", "bfloat16"))),
        "log_probs, advantages to be computed; log_probs, advantages of before dropped",
        [[[1, 1], [2, 2], [8, 8]], [["log_probs", 4], ["advantages", 16]], []],
        id="a derived field has another dtype",
    ),
    pytest.param(
        with_tasks(LOG_PROBS, REFERENCE, ADVANTAGES, replace(TRAIN, needs=(*TRAIN.needs, "ref"))),
        "other tasks read the same fields",
        [[[1, 1], [2, 2], [4, 4], [8, 8], [16, 16]], [], []],
        id="training reads one field more",
    ),
]


@pytest.mark.parametrize(("after", "what", "remapping"), USABLE)
def test_rows_go_on_where_all_that_was_generated_is_there(
    after: QueueShape, what: str, remapping: Sequence[object]
) -> None:
    change = opened_by(after)
    assert change is not None
    assert change.remapping is not None
    assert change.what == what
    assert list(orjson.loads(change.remapping.dump()).values()) == remapping


def test_the_table_of_a_job_with_one_training_task_is_that_of_earlier_releases() -> None:
    """So that an upgrade keeps its rows."""
    assert layout_digest(layout_table(BEFORE)) == "58b81a6fc020"


def test_the_task_that_publishes_is_a_part_of_the_table_where_there_are_several() -> None:
    critic = Task("critic", TaskKind.TRAINING, ("tokens", "advantages"), publishes=False)
    both = with_tasks(*BEFORE.tasks, critic)
    came, went = opened_by(both), opened_by(BEFORE, both)
    assert came is not None
    assert went is not None
    assert came.what == went.what == "other tasks read the same fields"
    assert (came.remapping is not None, went.remapping and went.remapping.gone_tasks) == (True, ["critic"])
    other = with_tasks(*BEFORE.tasks[:-1], replace(TRAIN, publishes=False), replace(critic, publishes=True))
    changed = opened_by(other, both)
    assert changed is not None
    assert changed.what == "critic publishes, no longer train"
    assert changed.remapping is not None


@pytest.mark.parametrize(("publish", "named"), [((True, True), "2 .*train, critic"), ((False, False), "0 .*none")])
def test_one_training_task_publishes(publish: tuple[bool, bool], named: str) -> None:
    critic = Task("critic", TaskKind.TRAINING, ("tokens",), publishes=publish[1])
    with pytest.raises(ValueError, match=f"{named}.* Set `publishes` of the others to False"):
        with_tasks(*BEFORE.tasks[:-1], replace(TRAIN, publishes=publish[0]), critic)


UNUSABLE = [
    pytest.param(
        replace(BEFORE, generated_fields=("tokens", "rewards", "extra")), "generated fields added: extra", id="added"
    ),
    pytest.param(
        replace(BEFORE, generated_fields=("tokens",), tasks=(LOG_PROBS, REFERENCE, TRAIN)),
        "generated fields removed: rewards",
        id="no longer generated",
    ),
    pytest.param(
        replace(BEFORE, generated_fields=("tokens", "scores")),
        "generated fields added: scores; generated fields removed: rewards",
        id="renamed",
    ),
    pytest.param(
        replace(BEFORE, kinds=(FieldKind("tokens", "int64"), KINDS[1])),
        "generated fields of another dtype or inner shape: tokens",
        id="another dtype",
    ),
    pytest.param(
        replace(BEFORE, kinds=(FieldKind("tokens", "int32", (2,)), KINDS[1])),
        "generated fields of another dtype or inner shape: tokens",
        id="another inner shape",
    ),
    pytest.param(
        replace(BEFORE, samples_per_prompt=4),
        "4 groups of 2 rows in a partition before, 4 groups of 4 now",
        id="larger groups",
    ),
]


@pytest.mark.parametrize(("after", "what"), UNUSABLE)
def test_rows_are_generated_again_where_something_that_was_generated_is_missing(after: QueueShape, what: str) -> None:
    assert opened_by(after) == LayoutChange(what, None)


def test_the_same_table_and_an_empty_server_change_nothing() -> None:
    assert opened_by(replace(BEFORE, num_rollouts=9, max_staleness=3)) is None
    assert layout_change(StoredLayout("", b"", frozenset()), BEFORE) is None


@pytest.mark.parametrize(
    ("found", "what"),
    [
        pytest.param((), "no row has a field", id="no rows"),
        pytest.param(("tokens", "log_probs"), "generated fields missing in them: rewards", id="a field less"),
        pytest.param(
            ("tokens", "rewards"), "a release that stored no table of columns wrote them", id="the fields are there"
        ),
    ],
)
@pytest.mark.parametrize("table", [b"", layout_table(BEFORE)], ids=["never a table", "a table from before a rollback"])
def test_rows_of_a_release_that_stores_no_table_are_generated_again(
    found: Sequence[str], what: str, table: bytes
) -> None:
    stored = StoredLayout("0123456789ab", table, frozenset(found))
    assert layout_change(stored, BEFORE) == LayoutChange(what, None)


def test_what_was_adopted_reads_as_a_sentence() -> None:
    assert AdoptedLayout.parse(b"") is None
    adopted = AdoptedLayout.parse(b"12 3 0 generated fields added: extra")
    assert adopted == AdoptedLayout(12, 3, False, "generated fields added: extra")
    assert str(adopted).startswith(
        "The table of columns changed (generated fields added: extra): 3 groups that were put"
    )
