"""Names of metrics that a manifest may refer to are those that the workers report."""

from __future__ import annotations

import pytest

from rljob_api.metric_names import OF_STEPS, is_of_set, is_of_steps
from rljob_api.spec.data import DataSpec
from rljob_api.spec.evaluation import EvaluationSetSpec
from rljob_workers.algorithms.aggregation import token_mean
from rljob_workers.algorithms.supervised import SupervisedObjective
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.evaluation import SampleResult, metrics_of
from rljob_workers.trainers.megatron.expert_load import EXPERT_METRICS
from rljob_workers.training.step_metrics import CRITIC_METRICS, METRICS
from tests.objectives import clip_objective


def test_all_metrics_of_steps_are_known() -> None:
    policy = clip_objective(token_mean, kl=0.1, cap=2.0).metrics
    tables = (METRICS, policy, ValueObjective.metrics, CRITIC_METRICS, EXPERT_METRICS, SupervisedObjective.metrics)
    assert sorted(OF_STEPS) == sorted({one.name for table in tables for one in table})


@pytest.mark.parametrize("samples", [1, 2, 3, 8])
def test_all_metrics_of_an_evaluation_are_known(samples: int) -> None:
    of_set = EvaluationSetSpec(name="a", data=DataSpec(prompts="a.jsonl"), samples_per_prompt=samples)
    results = [
        SampleResult("a", prompt, "xy"[prompt % 2], float(sample % 2), 3, truncated=False)
        for prompt in range(4)
        for sample in range(samples)
    ]
    for name in metrics_of(results, [of_set]):
        assert is_of_set(name, "a", samples), name


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("reward", True),
        ("reward/format", True),
        ("rollout/turns", True),
        ("reward/", False),
        ("rewards", False),
        ("policy/kl", False),
        ("eval/a/mean@1", False),
    ],
)
def test_a_step_has_a_metric(name: str, is_known: bool) -> None:
    assert is_of_steps(name) is is_known
