"""Troubles that steps show: a table of signs, each reported once, whatever is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.manifest import load_manifest, parse_manifest
from rljob_api.names import Epoch, Role, WeightVersion
from rljob_api.spec import RLJobSpec
from rljob_api.wire.checkpoints import CheckpointRecord, Health
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_api.wire.observation import EvaluationReport
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator.health import SIGNS as HEALTH_SIGNS
from rljob_workers.dcs.coordinator.health import Seen, Trouble, after_evaluation, after_step, restored
from tests.unit.dcs import recorded_steps

ROOT = Path(__file__).parents[3]
MANIFEST = """
metadata: {name: job}
spec:
  model: {config: {}}
  data: {prompts: prompts.jsonl}
  rollout: {numRollouts: 100, batchSize: 8, samplesPerPrompt: 4, reward: {exactMatch: {}}}
  training: {globalBatchSize: 32, microBatchSize: 32}
"""
HEALTHY = {
    "reward/mean": 0.25,
    "reward/std": 0.4,
    "groups/all_right": 0.125,
    "groups/all_wrong": 0.25,
    "groups/no_variance": 0.375,
    "response_length/max": 64.0,
    "response_length/truncated_share": 0.125,
    "samples/invalid_share": 0.0,
    "samples/learnt_share": 1.0,
    "policy/entropy": 0.5,
    "optimizer/grad_norm": 0.25,
    "mismatch/kl": 1e-4,
}
COLLAPSED = {"groups/no_variance": 1.0, "groups/all_right": 0.0, "policy/entropy": 0.0, "optimizer/grad_norm": 0.0}


def spec_with(**fields: Any) -> RLJobSpec:
    return parse_manifest(with_fields(fields), "job").spec


def with_fields(fields: Mapping[str, Any]) -> str:
    job = yaml.safe_load(MANIFEST)
    for name, value in fields.items():
        *above, last = name.split("__")
        inner = job["spec"]
        for one in above:
            inner = inner.setdefault(one, {})
        inner[last] = value
    return yaml.safe_dump(job)


def report(step: int, metrics: Mapping[str, float]) -> StepReport:
    key = RankKey(role=Role.ACTOR, replica=0)
    return StepReport(
        incarnation=Incarnation(key=key, epoch=Epoch(1), generation=0, id="a" * 12),
        step=step,
        version=WeightVersion(step + 1),
        reward=metrics.get("reward/mean", 0.0),
        loss=0.0,
        metrics=dict(metrics),
        staleness=0,
        samples=32,
        tokens=320,
        seconds=1.0,
    )


def reported(spec: RLJobSpec, steps: Iterable[Mapping[str, float]]) -> list[tuple[int, Trouble]]:
    """Troubles that are reported of these steps, each with the step after which it is."""
    health, found = Health(), []
    for step, changes in enumerate(steps):
        examined = after_step(spec, health, report(step, {**HEALTHY, **changes}))
        health = Health.model_validate_json(examined.health.model_dump_json())
        found += [(step, trouble) for trouble in examined.troubles]
    return found


SIGNS = [
    pytest.param({}, [{}] * 60, [], id="a healthy job has none"),
    pytest.param({}, [COLLAPSED] * 30, [(9, "NoVariance"), (9, "EntropyCollapsed")], id="a policy that has collapsed"),
    pytest.param({}, [COLLAPSED] * 9 + [{}] + [COLLAPSED] * 9, [], id="nine steps in a row are not enough"),
    pytest.param(
        {},
        [COLLAPSED] * 10 + [{}] * 50 + [COLLAPSED] * 40,
        [(9, "NoVariance"), (9, "EntropyCollapsed")],
        id="one that recovers and falls back is no news",
    ),
    pytest.param(
        {},
        [{**COLLAPSED, "groups/all_right": 1.0, "reward/mean": 1.0}] * 40,
        [],
        id="a task that is solved has no variance, no entropy and no gradient either",
    ),
    pytest.param(
        {},
        [{**COLLAPSED, "groups/all_right": 0.75}] * 40,
        [(9, "NoVariance"), (9, "EntropyCollapsed")],
        id="three prompts of four are solved, and the fourth is tried no more",
    ),
    pytest.param({}, [{"policy/entropy": 0.002}] * 40, [], id="the entropy of the quickstart at its end"),
    pytest.param({}, [{"optimizer/grad_norm": 0.0}] * 20, [(1, "NoGradient")], id="rewards differ, and no gradient"),
    pytest.param(
        {"algorithm__noVariance": "LeaveOut"},
        [{"samples/learnt_share": 0.0, "groups/no_variance": 1.0, "optimizer/grad_norm": 0.0}] * 20,
        [(1, "NothingLearnt"), (9, "NoVariance")],
        id="every group is left out",
    ),
    pytest.param(
        {"algorithm__noVariance": "LeaveOut"},
        [{"samples/learnt_share": 0.0, "groups/no_variance": 1.0, "groups/all_right": 1.0}] * 20,
        [],
        id="every group is left out, since all are right",
    ),
    pytest.param(
        {},
        [{**COLLAPSED, "response_length/truncated_share": 1.0, "groups/all_wrong": 1.0, "policy/entropy": 0.5}] * 20,
        [(9, "AllCutOff")],
        id="all are cut off, and none is worth anything",
    ),
    pytest.param(
        {}, [{"response_length/truncated_share": 1.0}] * 40, [], id="answers of a fixed length that are rewarded"
    ),
    pytest.param(
        {}, [{}] * 10 + [{"mismatch/kl": 0.02}] * 20, [(19, "MismatchRising")], id="engine and trainer come apart"
    ),
    pytest.param({}, [{"mismatch/kl": 0.02}] * 40, [], id="they were apart from the start"),
    pytest.param({}, [{"mismatch/kl": 1e-9}] * 10 + [{"mismatch/kl": 1e-3}] * 30, [], id="both are small"),
    pytest.param(
        {"algorithm__advantage": "Gae", "roles__critic": {}, "rollout__samplesPerPrompt": 4},
        [{"groups/no_variance": 1.0}] * 40,
        [],
        id="a critic's advantages do not compare groups",
    ),
    pytest.param(
        {"algorithm__advantage": "Gae", "roles__critic": {}},
        [{"groups/no_variance": 1.0, "reward/std": 0.0, "optimizer/grad_norm": 0.0}] * 40,
        [(9, "NoVariance")],
        id="but all answers alike teach them nothing",
    ),
    pytest.param(
        {"algorithm__advantage": "Gae", "roles__critic": {}, "training__criticOnlySteps": 30},
        [COLLAPSED] * 30 + [{}] * 10,
        [],
        id="while the critic alone is trained nothing is said of the policy",
    ),
    pytest.param(
        {"algorithm__advantage": "ReMax", "rollout__samplesPerPrompt": 1, "training__globalBatchSize": 8},
        [{"groups/no_variance": 1.0}] * 40,
        [],
        id="one sample of a prompt is a group without variance",
    ),
    pytest.param(
        {"roles__rollout__engine__kind": "Sim", "training__globalBatchSize": 32},
        [COLLAPSED | {"samples/learnt_share": 0.0}] * 40,
        [],
        id="a simulated model has no loss",
    ),
]


@pytest.mark.parametrize(("fields", "steps", "expected"), SIGNS)
def test_each_sign_is_reported_once_after_steps_in_a_row(
    fields: Mapping[str, Any], steps: Sequence[Mapping[str, float]], expected: list[tuple[int, str]]
) -> None:
    assert [(step, trouble.kind.value) for step, trouble in reported(spec_with(**fields), steps)] == expected


SENTENCES = [
    pytest.param(
        {"algorithm__sampleFilter": "f:none"},
        {"samples/learnt_share": 0.0, "samples/filtered_share": 1.0},
        "steps 0 to 1: the policy has learnt from no sample. algorithm.sampleFilter left out 100% of them: have it "
        "return True for some.",
        id="a filter",
    ),
    pytest.param(
        {"algorithm__truncated": "Mask"},
        {"samples/learnt_share": 0.0, "response_length/truncated_share": 0.75, "samples/invalid_share": 0.25},
        "steps 0 to 1: the policy has learnt from no sample. algorithm.truncated: Mask left out 75%, which were cut "
        "off: raise sampling.maxNewTokens; 25% have no score: look at the reward.",
        id="answers that were cut off, and others without a score",
    ),
    pytest.param(
        {"algorithm__noVariance": "LeaveOut"},
        {"samples/learnt_share": 0.0, "groups/no_variance": 1.0},
        "steps 0 to 1: the policy has learnt from no sample. algorithm.noVariance: LeaveOut left out 100% of the "
        "groups, whose rewards were all equal: correct a reward that is the same for every answer, or give prompts of "
        "which some answers are right.",
        id="groups without variance",
    ),
]


@pytest.mark.parametrize(("fields", "metrics", "sentence"), SENTENCES)
def test_a_sentence_names_what_left_samples_out(
    fields: Mapping[str, Any], metrics: Mapping[str, float], sentence: str
) -> None:
    ((_, trouble),) = reported(spec_with(**fields), [metrics] * 2)
    assert trouble.message == sentence


def test_rewards_without_variance_may_be_the_functions_fault() -> None:
    constant = {"groups/no_variance": 1.0, "reward/mean": 0.5, "reward/std": 0.0}
    ((_, trouble),) = reported(spec_with(), [constant] * 10)
    assert trouble.message == (
        "steps 0 to 9: all samples of a prompt have one reward, whichever prompt: every advantage is 0, and rewards "
        "teach nothing (reward 0.5, entropy 0.5 nats). If that is the best reward there is, let spec.stopWhen end the "
        "job. If the reward is the same for every answer, correct its function: `rljob reward` shows what it gives. If "
        "the policy has collapsed, go back to a checkpoint and lower training.optimizer.learningRate; if no answer is "
        "ever right, begin with easier prompts."
    )


MINE = {"stopWhen": {"metric": "reward/mine", "above": 0.5}, "rollout__reward": {"custom": {"function": "r:one"}}}


@pytest.mark.parametrize(
    ("fields", "steps", "expected"),
    [
        pytest.param(
            MINE,
            [{"reward/yours": 1.0}] * 12,
            [
                (
                    0,
                    "step 0 reports no reward/mine, which spec.stopWhen.metric names; it has reward/mean, reward/std, "
                    "reward/yours. As long as it does not come the job ends with its last rollout. Correct the name, "
                    "or have it reported.",
                )
            ],
            id="a metric of a reward comes with the first step",
        ),
        pytest.param(MINE, [{"reward/mine": 1.0}, {}, {}], [], id="one that came may be absent later"),
        pytest.param(
            MINE,
            [{"samples/invalid_share": 1.0}] * 3 + [{"reward/mine": 1.0}],
            [],
            id="no sample of the first steps has a score",
        ),
        pytest.param(
            {"stopWhen": {"metric": "loss/mine", "above": 1}, "algorithm__loss": "l:loss"},
            [{"optimizer/skipped_steps": 1.0}] * 3 + [{"loss/mine": 0.5}],
            [],
            id="the first steps were skipped as not finite",
        ),
        pytest.param(
            {"checkpoint__keepBest": {"metric": "loss/mine"}, "algorithm__loss": "l:loss"},
            [{}] * 12,
            [
                (
                    0,
                    "step 0 reports no loss/mine, which spec.checkpoint.keepBest.metric names. As long as it does not "
                    "come no checkpoint is kept by it. Correct the name, or have it reported.",
                )
            ],
            id="a metric of a loss, which keepBest goes by",
        ),
        pytest.param(
            {"stopWhen": {"metric": "staleness/kl", "above": 1}},
            [{}] * 9 + [{"staleness/kl": 0.0}],
            [],
            id="ours may come later",
        ),
        pytest.param(
            {"stopWhen": {"metric": "optimizer/skipped_steps", "above": 3}}, [{}] * 40, [], id="no step was skipped"
        ),
        pytest.param({"stopWhen": {"metric": "reward", "above": 3}}, [{}] * 40, [], id="a field of the report"),
    ],
)
def test_a_metric_that_never_came_is_named(
    fields: Mapping[str, Any], steps: Sequence[Mapping[str, float]], expected: list[tuple[int, str]]
) -> None:
    assert [(step, trouble.message) for step, trouble in reported(spec_with(**fields), steps)] == expected


def test_a_metric_of_evaluations_is_missed_after_one_alone() -> None:
    evaluation = {
        "sets": [{"name": "a", "data": {"prompts": "held-out.jsonl", "sourceKey": "source"}, "samplesPerPrompt": 1}],
        "everySteps": 5,
    }
    spec = spec_with(evaluation=evaluation, stopWhen={"metric": "eval/a/algebra/mean@1", "above": 0.5})
    assert reported(spec, [{}] * 40) == []
    found = after_evaluation(spec, Health(), evaluated({"eval/a/mean@1": 0.5, "eval/a/geometry/mean@1": 0.5}))
    assert [trouble.message for trouble in found.troubles] == [
        "the evaluation reports no eval/a/algebra/mean@1, which spec.stopWhen.metric names. As long as it does not "
        "come the job ends with its last rollout. Correct the name, or have it reported."
    ]
    assert after_evaluation(spec, found.health, evaluated({"eval/a/mean@1": 0.5})).troubles == ()
    came = after_evaluation(spec, Health(), evaluated({"eval/a/algebra/mean@1": 0.5})).health
    assert after_evaluation(spec, came, evaluated({"eval/a/mean@1": 0.5})).troubles == ()


def evaluated(metrics: dict[str, float]) -> EvaluationReport:
    return EvaluationReport(version=WeightVersion(5), samples=8, metrics=metrics)


def recorded(health: Health, version: int) -> CheckpointRecord:
    return CheckpointRecord(
        id=WeightId(lineage=1, version=WeightVersion(version)),
        epoch=1,
        folder="f",
        checksums={},
        ancestry={},
        health=health,
    )


@given(
    ailing=st.sets(st.integers(0, 39)),
    restarts=st.lists(st.tuples(st.integers(1, 39), st.integers(0, 39), st.booleans()), max_size=4),
)
def test_restarts_that_repeat_steps_change_neither_what_is_reported_nor_how_often(
    ailing: set[int], restarts: list[tuple[int, int, bool]]
) -> None:
    """A restart at a step goes back to an earlier one; with or without the control state."""
    spec = spec_with()
    steps = [COLLAPSED if step in ailing else {} for step in range(40)]
    health, step, found = Health(), 0, []
    pending = list(restarts)
    while step < 40:
        examined = after_step(spec, health, report(step, {**HEALTHY, **steps[step]}))
        health = examined.health
        found += [trouble.kind for trouble in examined.troubles]
        step += 1
        if pending and step >= pending[0][0]:
            _, back, is_lost = pending.pop(0)
            step = min(back, step)
            known = restored(None if is_lost else health, recorded(health, step), step)
            assert known is not None
            health = known
    assert sorted(found) == sorted(trouble.kind for _, trouble in reported(spec, steps))


def test_nothing_is_known_where_nothing_was() -> None:
    assert restored(None, None, 0) is None
    assert restored(None, recorded(Health(reported={"NoVariance": 9}), 20), 20) == Health(reported={"NoVariance": 9})


RECORDED = recorded_steps.recorded()


@pytest.mark.parametrize("example", RECORDED)
def test_no_step_of_an_example_shows_anything(example: str) -> None:
    """Whole runs, as `recorded_steps` recorded them: solved tasks have neither variance nor entropy."""
    spec = load_manifest(ROOT / "examples" / example).spec
    columns, health = RECORDED[example], Health()
    for step, values in enumerate(zip(*columns.values(), strict=True)):
        metrics = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
        examined = after_step(spec, health, report(step, metrics))
        health = examined.health
        assert examined.troubles == (), step
    assert step + 1 == spec.rollout.num_rollouts


class Asked(dict[str, float]):
    """Metrics of a step, which keep the names that are asked for."""

    def __init__(self, metrics: Mapping[str, float]) -> None:
        super().__init__(metrics)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def test_every_metric_that_decides_a_sign_is_recorded() -> None:
    """A metric that the record lacks has its default in all steps, by which its sign could not show."""
    critic = {"algorithm__advantage": "Gae", "roles__critic": {}}
    full = Health(first_mismatches=dict.fromkeys(range(10), 1e-4))
    asked: set[str] = set()
    for spec in (spec_with(), spec_with(**critic)):
        for changes in ({}, COLLAPSED, {"response_length/truncated_share": 1.0}):
            metrics = Asked({**HEALTHY, **changes})
            for sign in HEALTH_SIGNS:
                sign.shows(Seen(spec, metrics, full, step=20))
            asked |= metrics.names
    assert asked | {"reward/mean"} == set(recorded_steps.COLUMNS)
    has = {
        name for columns in RECORDED.values() for name, row in columns.items() if any(one is not None for one in row)
    }
    assert set(recorded_steps.COLUMNS) <= has
