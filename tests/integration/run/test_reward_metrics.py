"""Several rewards with weights and metrics, through a whole job: what each step reports is what its rows say."""

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, make_manifest, make_simulated

EXAMPLE = Path(__file__).parents[3] / "examples" / "several-rewards"

_SPECIAL = re.compile(r"<\|\w+\|>")
"""Tokens that the log of generations shows and a reward does not see."""

REWARD = {
    "sum": [
        {"name": "right", "characterMatch": {}},
        {
            "name": "brief",
            "weight": 0.2,
            "custom": {"function": "reward:brief", "path": str(EXAMPLE), "perSample": True},
        },
    ]
}


def test_the_metrics_of_each_reward_are_means_over_the_samples_of_the_step(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 3, "reward": REWARD})
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}  # all of them
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        steps, samples = job.metrics(), read_generations(job.out)
    assert len(steps) == 3
    for r, step in enumerate(steps):
        shown = recomputed([sample for sample in samples if sample["rollout"] == r])
        assert {figure: step[figure] for figure in shown} == pytest.approx(shown, abs=1e-6)


def recomputed(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Of samples whose label is their prompt without its end."""
    assert len(samples) == 32
    right, off = [], []
    for sample in samples:
        response, label = _SPECIAL.sub("", sample["response"]), sample["prompt"].removesuffix("=")
        agreeing = sum(given == wanted for given, wanted in zip(response, label, strict=False))
        right.append(agreeing / max(len(response), len(label)))
        off.append(abs(sample["responseTokens"] - len(label) - 1))
    return {
        "reward/mean": statistics.mean(sample["reward"] for sample in samples),
        "reward/right": statistics.mean(right),
        "reward/brief": statistics.mean(1 / (1 + count) for count in off),
        "reward/brief/tokens_off": statistics.mean(off),
        "reward/brief/cut_off": statistics.mean(sample["finishReason"] == "length" for sample in samples),
    }


def test_the_metrics_of_all_ranks_are_in_the_report(tmp_path: Path) -> None:
    """Two ranks train, each on half of the rows; what is reported belongs to the reward over all of them."""
    rollout = {"numRollouts": 4, "reward": REWARD}
    manifest = make_simulated(tmp_path, rollout=rollout, roles={"actor": {"replicas": 2}})
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        steps = job.metrics()
    assert len(steps) == 4
    for step in steps:
        assert step["samples"] == 32
        assert step["reward/mean"] == pytest.approx(step["reward/right"] + 0.2 * step["reward/brief"], abs=1e-6)
