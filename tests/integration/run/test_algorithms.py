"""Losses, corrections and advantages other than the default, through a whole job."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, make_manifest

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom-algorithm"

ALGORITHMS: dict[str, dict[str, Any]] = {
    "Gspo and IcePop": {
        "loss": "Gspo",
        "lossAggregation": "SequenceMean",
        "correction": {"kind": "IcePop", "floor": 0.9, "cap": 1.1},
    },
    "ReinforcePlusPlus, pulled to the reference in its rewards": {
        "advantage": "ReinforcePlusPlus",
        "kl": {"coefficient": 0.01, "estimator": "K1", "placement": "Reward"},
    },
    "the user's own": {"loss": "algorithm:cispo", "advantage": "algorithm:centred", "path": str(EXAMPLE)},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_job_trains_by_it(tmp_path: Path, name: str) -> None:
    """In two optimizer steps of a rollout: after the first the ratio is no longer 1."""
    training = {"globalBatchSize": 16}
    manifest = make_manifest(
        tmp_path,
        rollout={"numRollouts": 3, "reward": {"characterMatch": {}}},
        algorithm=ALGORITHMS[name],
        training=training,
    )
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}  # all of them
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        steps, samples = job.metrics(), read_generations(job.out)
    assert len(steps) == 3
    for step in steps:
        assert step["optimizer/grad_norm"] > 0.0
        assert step["policy/ratio_max"] >= step["policy/ratio"] > 0.0
    assert any(step["policy/ratio_max"] != 1.0 for step in steps)
    in_reward = ALGORITHMS[name].get("kl", {}).get("placement") == "Reward"
    assert ["kl/in_reward" in step for step in steps] == [in_reward] * 3
    for r, step in enumerate(steps):
        shown = recomputed([sample for sample in samples if sample["rollout"] == r], r)
        assert {figure: step[figure] for figure in shown} == pytest.approx(shown, abs=1e-6)


def recomputed(samples: list[dict[str, Any]], r: int) -> dict[str, float]:
    """Figures of a step by the samples of its rollout, one by one."""
    rewards = [sample["reward"] for sample in samples]
    lengths = [sample["responseTokens"] for sample in samples]
    groups = [[s["reward"] for s in samples if s["group"] == group] for group in {s["group"] for s in samples}]
    ages = [(r - v["version"], v["end"] - v["start"]) for sample in samples for v in sample["versions"]]
    return {
        "reward/mean": statistics.mean(rewards),
        "reward/std": statistics.stdev(rewards),
        "groups/all_right": statistics.mean(min(group) >= 1 for group in groups),
        "groups/all_wrong": statistics.mean(max(group) <= 0 for group in groups),
        "groups/no_variance": statistics.mean(len(set(group)) == 1 for group in groups),
        "response_length/mean": statistics.mean(lengths),
        "response_length/max": max(lengths),
        "response_length/truncated_share": statistics.mean(s["finishReason"] == "length" for s in samples),
        "prompt_length/mean": statistics.mean(sample["promptTokens"] for sample in samples),
        "staleness/mean": sum(age * count for age, count in ages) / sum(count for _, count in ages),
        "staleness/max": max(age for age, _ in ages),
    }
