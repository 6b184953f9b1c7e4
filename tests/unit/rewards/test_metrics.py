"""Which metrics of a user's reward are taken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rljob_workers.rewards import RewardFailed, RewardRefused, Score
from rljob_workers.rewards.metrics import checked_metrics, is_reward, of_component


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "tool/calls", "x" * 64])
def test_names_that_a_report_can_have_are_taken(name: str) -> None:
    assert checked_metrics("here", {name: 1}) == {name: 1.0}


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        pytest.param({"": 1.0}, r"here returned the metric '' = 1\.0\. Its name", id="no name"),
        pytest.param({"a b": 1.0}, r"the metric 'a b' = 1\.0\. Its name", id="a space"),
        pytest.param({"a/": 1.0}, "the metric 'a/' = ", id="a slash at the end"),
        pytest.param({"/a": 1.0}, "the metric '/a' = ", id="a slash at the beginning"),
        pytest.param({"x" * 65: 1.0}, "Its name is at most 64", id="too long"),
        pytest.param({3: 1.0}, "the metric 3 = ", id="a number as name"),
        pytest.param({"mean": 1.0}, "Every step reports reward/mean of the whole reward", id="a name of the report"),
        pytest.param({"a": "1"}, "the metric 'a' = '1'. A metric is a finite float", id="a number as text"),
        pytest.param({"a": None}, "the metric 'a' = None. A metric is a finite float", id="None"),
        pytest.param([("a", 1.0)], r"a Score whose metrics are \[\('a', 1\.0\)\]", id="no mapping"),
    ],
)
def test_others_are_refused_by_name_and_value(metrics: Any, sentence: str) -> None:
    with pytest.raises(RewardRefused, match=sentence):
        checked_metrics("here", metrics)


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (10**400, "1000")])
def test_a_metric_that_is_not_finite_fails_its_answer(value: float, shown: str) -> None:
    with pytest.raises(RewardFailed, match=f"the metric 'a' = {shown}.*A metric is a finite float"):
        checked_metrics("here", {"a": value})


@pytest.mark.parametrize(("number", "expected"), [(3.4e38, True), (-3.5e38, False), (math.nan, False), (0.0, True)])
def test_a_reward_is_finite_as_float32(number: float, expected: bool) -> None:
    assert is_reward(number) is expected


def test_metrics_of_a_component_have_its_name() -> None:
    assert of_component("format", 0.5) == {"format": 0.5}
    assert of_component("format", Score(0.5, {"length": 3.0})) == {"format": 0.5, "format/length": 3.0}
