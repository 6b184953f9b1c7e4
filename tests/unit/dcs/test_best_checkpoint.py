"""Which checkpoint keepBest keeps: tables, and a simulation of retention under which the best is always there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.measured import BestMode, KeepBestSpec
from rljob_api.wire.checkpoints import Measured, MetricValues
from rljob_workers.dcs.checkpoints.on_disk import CheckpointFolder, parse_folder
from rljob_workers.dcs.checkpoints.retention import Retention, folders_to_delete
from rljob_workers.dcs.coordinator.best_checkpoint import after_record, best_of
from rljob_workers.dcs.coordinator.measures import restored

SPEC = KeepBestSpec(metric="reward")


def measured(values: dict[int, float], recorded: list[int], metric: str = "reward") -> Measured:
    return Measured(candidates=MetricValues(metric=metric, values=values), folders={one: name(one) for one in recorded})


def name(version: int) -> str:
    return f"{version}-e1-0123456789ab"


@pytest.mark.parametrize(
    ("mode", "values", "recorded", "best"),
    [
        pytest.param(BestMode.MAX, {}, [2], None, id="no value"),
        pytest.param(BestMode.MAX, {2: 0.5}, [], None, id="a version that was not saved competes not"),
        pytest.param(BestMode.MAX, {2: 0.5, 3: 0.75, 4: 0.25}, [2, 4], 2, id="the larger one of those that were"),
        pytest.param(BestMode.MIN, {2: 0.5, 4: 0.25}, [2, 4], 4, id="the smaller one"),
        pytest.param(BestMode.MAX, {2: 0.5, 4: 0.5}, [2, 4], 2, id="of equal ones the first"),
        pytest.param(BestMode.MAX, {2: float("nan"), 4: -1}, [2, 4], 4, id="no number competes not"),
    ],
)
def test_the_best(mode: BestMode, values: dict[int, float], recorded: list[int], best: int | None) -> None:
    found = best_of(SPEC.model_copy(update={"mode": mode}), measured(values, recorded))
    assert (None if found is None else found.version) == best
    assert found is None or (found.folder, found.value) == (name(found.version), values[found.version])


def test_values_of_another_metric_are_none() -> None:
    assert best_of(SPEC, measured({2: 0.5}, [2], metric="loss")) is None


def test_a_record_ends_the_hopes_of_those_whose_folders_go() -> None:
    known = measured({1: 0.5, 2: 0.75, 3: 0.25, 4: 0.5, 5: 0.5, 7: 1}, [2, 3, 4])
    after = after_record(SPEC, known, 6, name(6), Retention(2))
    assert sorted(after.folders) == [2, 4, 6]
    assert after.candidates.values == {2: 0.75, 4: 0.5, 7: 1}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 3),
    st.sampled_from(BestMode),
)
def test_the_best_of_all_that_was_recorded_is_there(
    versions: list[tuple[float, bool]], keep: int, mode: BestMode
) -> None:
    """Its value may come before its record (a step's) or after it (an evaluation's)."""
    spec, known, disk = SPEC.model_copy(update={"mode": mode}), measured({}, []), list[str]()
    recorded: dict[int, float] = {}
    for version, (value, is_late) in enumerate(versions, start=1):
        recorded[version] = value
        if not is_late:
            known = with_value(known, version, value)
        known = after_record(spec, known, version, name(version), Retention(keep))
        best = best_of(spec, known)
        disk.append(name(version))
        folders = [found for one in disk if isinstance(found := parse_folder(one, is_recorded=True), CheckpointFolder)]
        gone = folders_to_delete(folders, name(version), 1, Retention(keep), None if best is None else best.folder)
        disk = [one for one in disk if one not in gone]
        if is_late:
            known = with_value(known, version, value)
        best = best_of(spec, known)
        assert best is not None
        assert best.folder in disk
        assert best.value == (max if mode is BestMode.MAX else min)(recorded.values())


@pytest.mark.parametrize(
    ("keep", "every", "stay"),
    [
        pytest.param(1, None, {3, 12}, id="the newest, and the best"),
        pytest.param(2, None, {3, 11, 12}, id="two of the newest, and the best"),
        pytest.param(1, 4, {3, 4, 8, 12}, id="multiples stay for ever"),
        pytest.param(3, 5, {3, 5, 10, 11, 12}, id="multiples among the newest and before them"),
        pytest.param(1, 3, {3, 6, 9, 12}, id="the best is one that stays anyway"),
        pytest.param(1, 1, set(range(1, 13)), id="all stay"),
    ],
)
def test_a_value_is_known_for_as_long_as_its_folder_stays(keep: int, every: int | None, stay: set[int]) -> None:
    values = {version: 1.0 if version == 3 else version / 100 for version in range(1, 13)}
    known, disk = measured({}, []), Disk(Retention(keep, every))
    for version, value in values.items():
        known = disk.record(with_value(known, version, value), version, epoch=1)
    assert disk.versions() == set(known.folders) == set(known.candidates.values) == stay
    before = restored(known, None, 2)  # a restart from before the best one
    assert before is not None
    assert set(before.folders) == {version for version in stay if version <= 2}


class Disk:
    """Recorded folders, as retention leaves them."""

    def __init__(self, retention: Retention, spec: KeepBestSpec = SPEC) -> None:
        self.retention = retention
        self.spec = spec
        self.names: list[str] = []

    def record(self, known: Measured, version: int, epoch: int) -> Measured:
        """The known values with another version recorded, without those that it makes superfluous."""
        recorded = f"{version}-e{epoch}-0123456789ab"
        self.names.append(recorded)
        known = after_record(self.spec, known, version, recorded, self.retention)
        best = best_of(self.spec, known)
        folders = [
            found for one in self.names if isinstance(found := parse_folder(one, is_recorded=True), CheckpointFolder)
        ]
        gone = folders_to_delete(folders, recorded, epoch, self.retention, None if best is None else best.folder)
        self.names = [one for one in self.names if one not in gone]
        return known

    def versions(self) -> set[int]:
        return {int(one.partition("-")[0]) for one in self.names}


@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    restarts=st.dictionaries(st.integers(1, 20), st.integers(0, 5), max_size=4),
    keep=st.integers(1, 3),
    every=st.none() | st.integers(1, 6),
    mode=st.sampled_from(BestMode),
)
def test_the_best_of_all_folders_that_are_left_is_the_best_whatever_a_restart_goes_back_to(
    values: list[float], restarts: dict[int, int], keep: int, every: int | None, mode: BestMode
) -> None:
    """A restart begins with any version that has a folder: of `restarts`, after how many records, and which of them."""
    spec, epoch, version = SPEC.model_copy(update={"mode": mode}), 1, 0
    known, disk, given = measured({}, []), Disk(Retention(keep, every), spec), dict[int, float]()
    for number, value in enumerate(values, start=1):
        version += 1
        given[version] = value
        known = disk.record(with_value(known, version, value), version, epoch)
        if number in restarts:
            left = sorted(disk.versions())
            version, epoch = left[restarts[number] % len(left)], epoch + 1
            after = restored(known, None, version)
            assert after is not None
            known = after
        there = {one for one in disk.versions() if one <= version}
        best = best_of(spec, known)
        assert best is not None
        assert best.value == (max if mode is BestMode.MAX else min)(given[one] for one in there)
        assert best.folder in disk.names


def with_value(known: Measured, version: int, value: float) -> Measured:
    values = {**known.candidates.values, version: value}
    return known.model_copy(update={"candidates": MetricValues(metric="reward", values=values)})
