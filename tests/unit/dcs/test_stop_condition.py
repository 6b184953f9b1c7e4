"""When stopWhen holds: a table, and what no order of steps that are repeated can change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.measured import StopWhenSpec
from rljob_api.wire.checkpoints import CheckpointRecord, Measured, MetricValues
from rljob_workers.dcs.coordinator.measures import restored
from rljob_workers.dcs.coordinator.stop_condition import reached

NAN = float("nan")
EVALUATED = "eval/a/mean@1"


def asked(metric: str = "reward", **fields: Any) -> StopWhenSpec:
    return StopWhenSpec.model_validate({"metric": metric, **fields})


@pytest.mark.parametrize(
    ("condition", "values", "version", "sentence"),
    [
        pytest.param(asked(above=0.5), {}, 0, None, id="nothing is known"),
        pytest.param(asked(above=0.5), {3: 0.5}, 3, None, id="a bound is not above itself"),
        pytest.param(
            asked(above=0.5), {3: 0.75}, 3, "stopWhen holds: reward of step 2 is 0.75, above 0.5", id="a step above"
        ),
        pytest.param(asked(below=0.5), {3: 0.5}, 3, None, id="nor below itself"),
        pytest.param(
            asked(below=0), {3: -0.25}, 3, "stopWhen holds: reward of step 2 is -0.25, below 0", id="a step below"
        ),
        pytest.param(asked(above=0.5), {2: 0.75}, 3, None, id="the step before is past"),
        pytest.param(asked(above=0.5), {3: 0.25, 4: 0.75}, 3, None, id="a later version has not come"),
        pytest.param(asked(above=0.5, forSteps=2), {4: 0.75}, 4, None, id="one of two"),
        pytest.param(asked(above=0.5, forSteps=2), {2: 0.75, 4: 0.75}, 4, None, id="a step without a value"),
        pytest.param(asked(above=0.5, forSteps=2), {3: 0.75, 4: NAN}, 4, None, id="no number"),
        pytest.param(asked(above=0.5, forSteps=2), {3: 0.25, 4: 0.75}, 4, None, id="the first of them is below"),
        pytest.param(
            asked(above=0.5, forSteps=2),
            {2: 0.25, 3: 0.625, 4: 0.75},
            4,
            "stopWhen holds: reward was above 0.5 in 2 steps in a row (0.625, 0.75), the last one that of step 3",
            id="two in a row",
        ),
        pytest.param(
            asked(EVALUATED, above=0.5),
            {20: 0.75},
            23,
            "stopWhen holds: eval/a/mean@1 of version 20 is 0.75, above 0.5",
            id="the last evaluation holds until the next",
        ),
        pytest.param(
            asked(EVALUATED, above=0.5, forSteps=2),
            {10: 0.25, 20: 0.75, 30: 1},
            30,
            "stopWhen holds: eval/a/mean@1 was above 0.5 in 2 evaluations in a row (0.75, 1), the last one that of"
            " version 30",
            id="two evaluations in a row",
        ),
        pytest.param(asked(EVALUATED, above=0.5, forSteps=2), {20: 0.75, 30: 0.25}, 30, None, id="one of them below"),
    ],
)
def test_the_condition_holds(
    condition: StopWhenSpec, values: dict[int, float], version: int, sentence: str | None
) -> None:
    assert reached(condition, values, version) == sentence


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=30), st.integers(1, 5), st.data())
def test_steps_that_a_restart_repeats_change_nothing(rewards: list[float], wanted: int, data: st.DataObject) -> None:
    """An undisturbed job and one that goes back to an earlier version end at the same one."""
    condition = asked(above=0.5, forSteps=wanted)
    plain = Measured(stop=MetricValues(metric="reward"))
    ends, values = None, dict[int, float]()
    for version, reward in enumerate(rewards, start=1):
        values[version] = reward
        if ends is None and reached(condition, values, version):
            ends = version
    done = min(ends or len(rewards), data.draw(st.integers(0, len(rewards))))
    back = data.draw(st.integers(0, done))
    before = {version: rewards[version - 1] for version in range(1, done + 1)}
    known = restored(plain.model_copy(update={"stop": MetricValues(metric="reward", values=before)}), None, back)
    assert known is not None
    again, ended = dict(known.stop.values), None
    for version in range(back, len(rewards) + 1):
        if version > back:
            again[version] = rewards[version - 1]
        if ended is None and reached(condition, again, version):
            ended = version
    assert ended == ends


def test_a_record_has_the_values_that_the_control_redis_has_lost() -> None:
    measured = Measured(
        stop=MetricValues(metric="reward", values={3: 0.5, 4: 0.75}),
        candidates=MetricValues(metric=EVALUATED, values={2: 0.25, 4: 0.5}),
        folders={2: "2-e1-a", 4: "4-e1-a"},
    )
    record = CheckpointRecord.model_validate(
        {
            "id": {"lineage": 1, "version": 4},
            "epoch": 1,
            "folder": "4-e1-a",
            "checksums": {},
            "ancestry": {},
            "measured": measured,
        }
    )
    assert restored(None, record, 4) == measured
    assert restored(None, None, 4) is None
    assert restored(measured, None, 3) == Measured(
        stop=MetricValues(metric="reward", values={3: 0.5}),
        candidates=MetricValues(metric=EVALUATED, values={2: 0.25}),
        folders={2: "2-e1-a"},
    )
