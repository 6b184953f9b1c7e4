from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.dcs.checkpoints.on_disk import CheckpointFolder, folder_name, parse_folder, partial_name
from rljob_workers.dcs.checkpoints.retention import Retention, folders_to_delete

INCARNATION = "0123456789ab"


def folder(version: int, epoch: int = 1, *, recorded: bool = True, partial: bool = False) -> CheckpointFolder:
    name = folder_name(version, epoch, INCARNATION)
    parsed = parse_folder(partial_name(name) if partial else name, is_recorded=recorded)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    "name", ["reference", "5", "5-e1", "5-e1-xyz", ".deleted-5-e1-0123456789ab", "x5-e1-0123456789ab"]
)
def test_a_foreign_name_is_left_alone(name: str) -> None:
    assert parse_folder(name, is_recorded=False) is None


@pytest.mark.parametrize(
    ("present", "recorded", "epoch", "keep", "expected"),
    [
        pytest.param([folder(3), folder(4), folder(5)], folder(5), 1, 2, [folder(3)], id="older than keep"),
        pytest.param([folder(4), folder(5)], folder(5), 1, 1, [folder(4)], id="keep 1 keeps the record alone"),
        pytest.param([folder(4), folder(5)], folder(5), 1, 3, [], id="fewer than keep"),
        pytest.param(
            [folder(5), folder(6), folder(5, 2)], folder(5, 2), 2, 2, [folder(5), folder(6)],
            id="what the epoch before recorded at or after the record is of a past that was left",
        ),
        pytest.param(
            [folder(4), folder(4, 2), folder(5, 2)], folder(5, 2), 2, 2, [folder(4)],
            id="of a version that was recorded twice the later one stays",
        ),
        pytest.param(
            [folder(4), folder(5, recorded=False), folder(5, 2)], folder(5, 2), 2, 2, [folder(5, recorded=False)],
            id="an unrecorded folder of an ended epoch",
        ),
        pytest.param(
            [folder(5), folder(6, recorded=False), folder(7, recorded=False, partial=True)], folder(5), 1, 2, [],
            id="unrecorded folders of this epoch are in work",
        ),
        pytest.param(
            [folder(4, recorded=False, partial=True), folder(5)], folder(5), 1, 2,
            [folder(4, recorded=False, partial=True)],
            id="an attempt of this epoch that was given up before the record",
        ),
        pytest.param(
            [folder(5, recorded=False, partial=True), folder(5, 2)], folder(5, 2), 2, 2,
            [folder(5, recorded=False, partial=True)],
            id="what a death left half written in an ended epoch",
        ),
        pytest.param(
            [folder(4), folder(5), folder(6, 2), folder(7, 2, recorded=False)], folder(5), 1, 2, [],
            id="folders of a later epoch are not a stopped life's to delete",
        ),
    ],
)  # fmt: skip
def test_folders_to_delete(
    present: list[CheckpointFolder],
    recorded: CheckpointFolder,
    epoch: int,
    keep: int,
    expected: list[CheckpointFolder],
) -> None:
    gone = folders_to_delete(present, recorded.name, epoch, Retention(keep))
    assert sorted(gone) == sorted(one.name for one in expected)


@pytest.mark.parametrize(
    ("present", "recorded", "expected"),
    [
        pytest.param([4, 6, 8, 10, 12], 12, [6, 10], id="milestones stay beside the newest"),
        pytest.param([4, 6, 7, 9], 9, [6, 7], id="the newest need not be one"),
        pytest.param([0, 2, 3], 3, [0, 2], id="version 0 is no milestone"),
    ],
)
def test_every_fourth_version_stays_for_ever(present: list[int], recorded: int, expected: list[int]) -> None:
    gone = folders_to_delete(map(folder, present), folder(recorded).name, 1, Retention(1, keep_every=4))
    assert gone == [folder(version).name for version in expected]


@given(steps=st.lists(st.integers(1, 4), min_size=1, max_size=20), keep=st.integers(1, 4), every=st.integers(1, 6))
def test_record_after_record_the_newest_and_the_milestones_are_there(steps: list[int], keep: int, every: int) -> None:
    """Pruning after each record loses no milestone on the way, and piles nothing else up."""
    there: list[CheckpointFolder] = []
    recorded: list[int] = []
    for step in steps:
        recorded.append((recorded or [0])[-1] + step)
        there.append(folder(recorded[-1]))
        gone = folders_to_delete(there, there[-1].name, 1, Retention(keep, every))
        there = [one for one in there if one.name not in gone]
        milestones = {version for version in recorded if version % every == 0}
        assert {one.version for one in there} == milestones | set(recorded[-keep:])


@given(
    others=st.sets(st.tuples(st.integers(0, 9), st.integers(1, 4), st.booleans()), max_size=12),
    keep=st.integers(1, 4),
)
def test_the_record_stays_and_at_most_keep_recorded_folders(others: set[tuple[int, int, bool]], keep: int) -> None:
    record = folder(5, 4)
    rest = {(version, epoch): recorded for version, epoch, recorded in others if (version, epoch) != (5, 4)}
    present = [folder(version, epoch, recorded=is_recorded) for (version, epoch), is_recorded in rest.items()]
    gone = folders_to_delete([*present, record], record.name, 4, Retention(keep))
    assert record.name not in gone
    left = [one for one in present if one.name not in gone and one.is_recorded]
    assert len(left) <= keep - 1
    assert all(one.version < 5 for one in left)
