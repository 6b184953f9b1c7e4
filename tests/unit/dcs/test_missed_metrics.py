"""A metric that stopWhen or keepBest names and that has not come: when it is missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rljob_api.names import WeightVersion
from rljob_api.wire.checkpoints import Health
from rljob_api.wire.observation import EvaluationReport
from rljob_workers.dcs.coordinator.missed_metrics import PATIENCE, missed_in_evaluation, missed_in_step
from tests.unit.dcs.test_health import MINE, report, spec_with

OURS = {"stopWhen": {"metric": "staleness/kl", "above": 1}}
OF_POLICY = {"stopWhen": {"metric": "loss/mine", "above": 1}, "algorithm__loss": "l:loss"}
OF_SET = {
    "evaluation": {"sets": [{"name": "a", "data": {"prompts": "a.jsonl"}}], "everySteps": 5},
    "stopWhen": {"metric": "eval/a/mean@1", "above": 0.5},
}


@pytest.mark.parametrize(
    ("fields", "metrics", "trains_policy", "expected"),
    [
        pytest.param(MINE, {"reward/mean": 1.0}, True, 0, id="of a reward: with the first step"),
        pytest.param(MINE, {"samples/invalid_share": 1.0}, True, None, id="no sample has a score"),
        pytest.param(MINE, {"reward/mine": 1.0}, True, None, id="it comes"),
        pytest.param(OURS, {}, True, PATIENCE - 1, id="ours: after some steps"),
        pytest.param(OF_POLICY, {}, True, 0, id="of a loss"),
        pytest.param(OF_POLICY, {}, False, None, id="of a loss, while the critic alone is trained"),
        pytest.param(OF_SET, {}, True, None, id="of an evaluation: no step has it"),
    ],
)
def test_the_step_in_which_a_metric_is_missed(
    fields: Mapping[str, Any], metrics: Mapping[str, float], trains_policy: bool, expected: int | None
) -> None:
    spec, health, found = spec_with(**fields), Health(), []
    for step in range(2 * PATIENCE):
        missed = missed_in_step(spec, health, report(step, metrics), trains_policy=trains_policy)
        reported = health.reported | dict.fromkeys(missed.sentences, step)
        health = Health(rows=missed.rows, reported=reported, came=missed.came)
        found += [step] * len(missed.sentences)
    assert found == ([] if expected is None else [expected])


def test_an_evaluation_is_no_step() -> None:
    evaluation = EvaluationReport(version=WeightVersion(5), samples=8, metrics={})
    missed = missed_in_evaluation(spec_with(**OF_SET), Health(), evaluation)
    assert (list(missed.sentences), missed.rows) == (["MetricMissing/stopWhen.metric/eval/a/mean@1"], {})
    assert missed_in_evaluation(spec_with(**MINE), Health(), evaluation).sentences == {}
