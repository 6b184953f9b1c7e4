"""Prompts that are too long: passed over, counted, and the same ones after every restart."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, at_leisure, kill, make_simulated

LONG = "0123456789" * 4


def with_long_prompts(folder: Path, *, every: int, **rollout: Any) -> dict[str, Any]:
    """Every so many-th prompt has 41 tokens, the others have 3."""
    manifest = make_simulated(folder, rollout={"numRollouts": 12, **rollout})
    prompts = [f"{LONG}=" if number % every == 0 else f"{number:02d}=" for number in range(100)]
    path = Path(manifest["spec"]["data"]["prompts"])
    path.write_text("".join(json.dumps({"prompt": prompt, "label": "00"}) + "\n" for prompt in prompts))
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}
    return manifest


def test_they_are_passed_over_and_nothing_is_trained_on_them(tmp_path: Path) -> None:
    manifest = with_long_prompts(tmp_path, every=3, maxPromptTokens=40, maxAttempts=1)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout")
        job.assert_succeeded()
        job.assert_epoch(2)
        retained = read_generations(job.out)
        assert len(retained) == 12 * 32
        assert {sample["promptTokens"] for sample in retained} == {3}
        counted = [line["prompts_passed_over"] for line in job.metrics()]
        assert counted[-1] >= max(counted) > 0
        assert (
            ", since they have more than 40 tokens (rollout.maxPromptTokens)"
            in (job.out / "logs" / "rollout-0.0.log").read_text()
        )


@pytest.mark.parametrize(
    ("rollout", "positions", "sentence"),
    [
        pytest.param(
            {"maxPromptTokens": 40},
            64,
            "rollout.maxPromptTokens: 1000 prompts in a row have more than 40",
            id="by rule",
        ),
        pytest.param({}, 32, "data.prompts: 1000 prompts in a row have more than 31 tokens, the last 41", id="no room"),
    ],
)
def test_data_of_which_nothing_fits_fail_the_job_by_name(
    tmp_path: Path, rollout: dict[str, Any], positions: int, sentence: str
) -> None:
    manifest = with_long_prompts(tmp_path, every=1, **rollout)
    manifest["spec"]["model"]["config"]["maxPositionEmbeddings"] = positions
    with RunningJob(tmp_path, manifest) as job:
        (message,) = job.refused()
        assert message.startswith(f"rollout-0: {sentence}")
