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
    after = after_record(SPEC, known, 6, name(6), keep=2)
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
        known = after_record(spec, known, version, name(version), keep)
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


def with_value(known: Measured, version: int, value: float) -> Measured:
    values = {**known.candidates.values, version: value}
    return known.model_copy(update={"candidates": MetricValues(metric="reward", values=values)})
