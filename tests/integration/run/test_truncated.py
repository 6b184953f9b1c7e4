"""Samples that were cut off, and groups without variance: trained on, or left out of the loss."""

from pathlib import Path
from typing import Any

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, make_manifest


def first_step(folder: Path, **algorithm: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first step of a job whose samples are a function of its seed, and the samples that it was made of."""
    folder.mkdir()
    rollout = {"numRollouts": 1, "reward": {"characterMatch": {}}}
    manifest = make_manifest(folder, rollout=rollout, algorithm=algorithm)
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}
    with RunningJob(folder, manifest) as job:
        job.assert_succeeded()
        return job.metrics()[0], read_generations(job.out)


def test_the_loss_is_over_all_samples_or_over_those_that_came_to_their_end(tmp_path: Path) -> None:
    retained, samples = first_step(tmp_path / "keep")
    masked, same = first_step(tmp_path / "mask", truncated="Mask")
    assert samples == same
    cut_off = sum(sample["finishReason"] == "length" for sample in samples)
    assert 0 < cut_off < len(samples) == 32
    assert all(sample["responseTokens"] == 3 for sample in samples if sample["finishReason"] == "length")
    for step in (retained, masked):
        assert step["response_length/truncated_share"] == cut_off / 32
        assert step["reward"] == retained["reward"], "a reward counts, cut off or not"
    # On the first step ratio and correction are 1: the loss is minus the mean advantage of the tokens in it.
    for step, counted in ((retained, samples), (masked, [s for s in samples if s["finishReason"] == "stop"])):
        tokens = sum(sample["responseTokens"] for sample in counted)
        mean = sum(sample["advantage"] * sample["responseTokens"] for sample in counted) / tokens
        assert abs(step["loss"] + mean) < 1e-3


def test_groups_without_variance_count_in_the_loss_or_not(tmp_path: Path) -> None:
    step, samples = first_step(tmp_path / "left-out", noVariance="LeaveOut")
    rewards = {group: {s["reward"] for s in samples if s["group"] == group} for group in (s["group"] for s in samples)}
    counted = [sample for sample in samples if len(rewards[sample["group"]]) > 1]
    assert 0 < len(counted) < len(samples) == 32, "the test needs groups of both kinds"
    assert step["groups/no_variance"] == 1 - len(counted) / 32
    tokens = sum(sample["responseTokens"] for sample in counted)
    mean = sum(sample["advantage"] * sample["responseTokens"] for sample in counted) / tokens
    assert abs(step["loss"] + mean) < 1e-3
