"""Names of metrics that a manifest may refer to are those that the workers report."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api.metric_names import OF_GREEDY_ANSWERS, OF_STEPS, is_of_set, is_of_steps
from rljob_api.spec import RLJob
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec
from rljob_workers.algorithms.aggregation import token_mean
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.evaluation import SampleResult, metrics_of
from rljob_workers.rollout.group_rows import GREEDY_REWARD
from rljob_workers.trainers.megatron.expert_load import EXPERT_METRICS
from rljob_workers.trainers.objectives import policy_objective
from rljob_workers.training.row_metrics import OF_ROLLOUT
from rljob_workers.training.step_metrics import CRITIC_METRICS, METRICS
from tests.objectives import clip_objective
from tests.unit.api.manifests import changed


def test_all_metrics_of_steps_are_known() -> None:
    policy = clip_objective(token_mean, kl=0.1, cap=2.0).metrics
    tables = (METRICS, policy, ValueObjective.metrics, CRITIC_METRICS, EXPERT_METRICS)
    assert sorted(OF_STEPS) == sorted({one.name for table in tables for one in table})


@pytest.mark.parametrize("samples", [1, 2, 3, 8])
def test_all_metrics_of_an_evaluation_are_known(samples: int) -> None:
    of_set = EvaluationSetSpec(name="a", data=EvaluationDataSpec(prompts="a.jsonl"), samples_per_prompt=samples)
    results = [
        SampleResult("a", prompt, "xy"[prompt % 2], float(sample % 2), 3, truncated=False)
        for prompt in range(4)
        for sample in range(samples)
    ]
    for name in metrics_of(results, [of_set]):
        assert is_of_set(name, "a", samples, has_sources=True), name
        assert is_of_set(name, "a", samples, has_sources=False) is not name.startswith(("eval/a/x/", "eval/a/y/")), name


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


def test_the_reward_of_greedy_answers_is_known_by_its_name() -> None:
    assert f"{OF_ROLLOUT}{GREEDY_REWARD}" == OF_GREEDY_ANSWERS


def _may_stop_at(metric: str, changes: dict[str, Any]) -> bool:
    try:
        RLJob.model_validate(changed({**changes, "spec.stopWhen": {"metric": metric, "above": 0}}))
    except ValidationError as error:
        if f"stopWhen.metric: {metric} " not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"kl": {"coefficient": 0.5, "estimator": "K2"}},
        {"kl": {"coefficient": 0.5, "placement": "Reward"}},
        {"correction": {"kind": "None"}},
        {"correction": {"kind": "None", "mask": {"cap": 2}}},
        {"kl": {"coefficient": 0.5}, "correction": {"kind": "IcePop"}, "entropyBonus": 0.1},
    ],
)
def test_a_job_may_stop_at_the_metrics_of_its_objective_and_no_others(algorithm: dict[str, Any]) -> None:
    changes = {"spec.algorithm": algorithm}
    spec = RLJob.model_validate(changed(changes)).spec
    reported = {one.name for one in policy_objective(spec.algorithm, 4).metrics}
    others = {one.name for one in clip_objective(token_mean, kl=0.1, cap=2.0).metrics} - reported
    assert {name: _may_stop_at(name, changes) for name in (*reported, *others)} == {
        **dict.fromkeys(reported, True),
        **dict.fromkeys(others, False),
    }


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("critic/loss", {"spec.roles.critic": {}, "spec.algorithm.advantage": "Gae"}),
        ("groups/draws", {"spec.rollout.dynamicSampling": {}}),
        ("groups/put_off", {"spec.rollout.order": "Swap"}),
        ("staleness/too_old_share", {"spec.rollout.order": "Swap", "spec.rollout.partial": {}}),
        ("samples/filtered_share", {"spec.algorithm.sampleFilter": "a:b"}),
        ("kl/in_reward", {"spec.algorithm.kl.placement": "Reward"}),
        ("seconds/log_probs", {"spec.training.epochsPerRollout": 2}),
        (
            "experts/z_loss",
            {
                "spec.roles.actor.backend": "Megatron",
                "spec.model": {"path": "m"},
                "spec.training.experts": {"zLossCoefficient": 0.1},
            },
        ),
        ("reward/format", {"spec.rollout.reward.custom": {"function": "a:b"}}),
        ("reward/format", {"spec.rollout.function": {"function": "a:b"}}),
        ("reward/right", {"spec.rollout.reward.sum": [{"name": "right"}]}),
        ("reward/right/own", {"spec.rollout.reward.sum": [{"name": "right", "custom": {"function": "a:b"}}]}),
        ("reward/overlong", {"spec.rollout.reward.overlong": {"buffer": 2}}),
        ("rollout/turns", {"spec.rollout.function": {"function": "a:b"}}),
        ("rollout/greedy_reward", {"spec.algorithm.advantage": "ReMax"}),
    ],
)
def test_a_job_that_has_what_a_metric_needs_may_stop_at_it(metric: str, changes: dict[str, Any]) -> None:
    assert _may_stop_at(metric, changes)


def test_a_simulated_job_stops_at_nothing_that_is_computed() -> None:
    """Its trainer's steps have no totals."""
    changes = {"spec.roles.rollout.engine.kind": "Sim", "spec.roles.critic": {}, "spec.algorithm.advantage": "Gae"}
    computed = [*clip_objective(token_mean, kl=0.1, cap=2.0).metrics, *ValueObjective.metrics]
    assert not any(_may_stop_at(one.name, changes) for one in computed)
    assert _may_stop_at("critic/loss", changes)
