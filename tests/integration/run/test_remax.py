"""Samples that are measured against a greedy answer, through whole jobs: with a role for advantages, and without."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, make_manifest, make_simulated


def baselines_of(steps: list[dict[str, Any]], samples: list[dict[str, Any]]) -> list[float]:
    """Of each group what its samples were measured against, which must be one number, and the mean of each step's."""
    found = []
    for r, step in enumerate(steps):
        of_step = [sample for sample in samples if sample["rollout"] == r]
        baselines = []
        for group in sorted({sample["group"] for sample in of_step}):
            against = [s["reward"] - s["advantage"] for s in of_step if s["group"] == group]
            assert against == pytest.approx([against[0]] * len(against), abs=1e-6)
            baselines.append(against[0])
        assert step["rollout/greedy_reward"] == pytest.approx(statistics.mean(baselines), abs=1e-6)
        found += baselines
    return found


@pytest.mark.long
def test_the_rollout_measures_its_samples_where_there_is_no_role_for_it(tmp_path: Path) -> None:
    """By a model that trains, in two optimizer steps of a rollout."""
    manifest = make_manifest(
        tmp_path,
        rollout={"numRollouts": 4, "reward": {"characterMatch": {}}},
        algorithm={"advantage": "ReMax", "noVariance": "LeaveOut"},
        training={"globalBatchSize": 16},
        roles={"advantages": None},
    )
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        assert "advantages" not in {role["name"] for role in job.status()["roles"]}
        steps, samples = job.metrics(), read_generations(job.out)
    baselines = baselines_of(steps, samples)
    assert len(baselines) == 32
    assert all(0.0 <= one <= 1.0 for one in baselines), "rewards of answers"
    assert all(step["optimizer/grad_norm"] > 0.0 for step in steps)
    assert any(sample["advantage"] != 0.0 for sample in samples)


def test_one_sample_of_a_prompt_is_enough_beside_a_greedy_answer(tmp_path: Path) -> None:
    manifest = make_simulated(
        tmp_path,
        rollout={"numRollouts": 6, "batchSize": 32, "samplesPerPrompt": 1, "reward": {"characterMatch": {}}},
        algorithm={"advantage": "ReMax"},
    )
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        steps, samples = job.metrics(), read_generations(job.out)
    assert len(baselines_of(steps, samples)) == 6 * 32
    assert any(sample["advantage"] != 0.0 for sample in samples)
