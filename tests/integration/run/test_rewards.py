"""Rewards of users that do what rewards should not: kill their process, sleep for ever, return nonsense."""

from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, make_simulated

ALL_PROMPTS = {"numRollouts": 13}
"""13 x 8 draws from 100 prompts: every prompt comes at least once."""


def with_reward(
    folder: Path, body: str, rollout: dict[str, Any] | None = None, **changes: dict[str, Any]
) -> dict[str, Any]:
    """A manifest whose reward runs `body` (with `answers` and `folder` at hand) before it scores."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    (folder / "graders.py").write_text(
        "import os, signal, time\nfrom pathlib import Path\n\n"
        f"folder = Path({str(folder)!r})\n\n"
        "def score(answers):\n"
        f"{lines}\n"
        "    return [float(answer.response == answer.label) for answer in answers]\n"
    )
    custom = {"function": "graders:score", "path": str(folder), "timeoutSeconds": 600}
    return make_simulated(folder, rollout={**ALL_PROMPTS, "reward": {"custom": custom}, **(rollout or {})}, **changes)


SLEEPS_ONCE = """
mark = folder / "slept"
if answers[0].prompt == "07=" and not mark.exists():
    mark.touch()
    time.sleep(1e6)
"""
KILLS = "if answers[0].prompt == '07=':\n    os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    "policy",
    [pytest.param({}, marks=pytest.mark.long), {"table": {"rollout": "InPlace"}, "threshold": 100}],
    ids=["Global", "InPlace"],
)
def test_a_prompt_that_kills_its_worker_is_named_and_set_aside(tmp_path: Path, policy: dict[str, Any]) -> None:
    manifest = with_reward(tmp_path, KILLS, {"maxPromptKills": 2}, restartPolicy=policy)
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        reported = [event["message"] for event in job.events() if event["reason"] == "PromptSetAside"]
        assert reported
        assert len(set(reported)) == len(reported)
        assert all(f"line 8 of {tmp_path}" in message and "was set aside" in message for message in reported)
        deaths = [event for event in job.events() if event["reason"] == "RankExited"]
        assert {(event["role"], event["scope"]) for event in deaths} == {("rollout", "InPlace" if policy else "Global")}
        assert len(deaths) >= 3  # among others twice, then alone


def test_a_group_that_has_no_draw_left_fails_the_job_by_name(tmp_path: Path) -> None:
    manifest = with_reward(tmp_path, KILLS, {"maxPromptKills": 1, "maxAttempts": 1})
    with RunningJob(tmp_path, manifest) as job:
        assert job.finish() == 1
        (event,) = [event for event in job.events() if event["reason"] == "ReportedFailure"]
        assert "has no draw left (rollout.maxAttempts)" in event["message"]
        assert f"line 8 of {tmp_path}" in event["message"]
        assert job.status()["phase"] == "Failed"
        job.wait_gone()


def test_a_reward_that_sleeps_for_ever_stalls_the_job_which_states_who_waits(tmp_path: Path) -> None:
    policy = {"heartbeatTimeoutSeconds": 10, "stallTimeoutSeconds": 15}
    manifest = with_reward(tmp_path, SLEEPS_ONCE, restartPolicy=policy)
    with RunningJob(tmp_path, manifest) as job:

        def stalls() -> list[dict[str, Any]]:
            return [event for event in job.events() if event["reason"] == "Stalled" and event["scope"] == "Global"]

        job.wait_for("the reward to sleep", (tmp_path / "slept").exists)
        before = len(stalls())  # a machine that is slow enough stalls a job
        job.wait_for("the stall", lambda: len(stalls()) > before)
        event = stalls()[before]
        assert "stallTimeoutSeconds 15" in event["message"]
        assert "actor-0.0 waits for batch 0 (32 rows) of train_" in event["message"]
        assert "rollout-0.0 is at work" in event["message"]
        job.assert_succeeded(epochs=len(stalls()) + 1)
        conditions = {condition["type"]: condition for condition in job.status()["conditions"]}
        assert conditions["Stalled"]["status"] == "False"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param("return [1.0]", "returned 1 values for the 4 answers", id="too few values"),
        pytest.param("raise ValueError('the table has no such row')", "the table has no such row", id="a ValueError"),
    ],
)
def test_a_reward_that_cannot_work_fails_the_job_at_once_with_its_sentence(
    tmp_path: Path, body: str, sentence: str
) -> None:
    with RunningJob(tmp_path, with_reward(tmp_path, body)) as job:
        (message,) = job.refused()
        assert message.startswith("rollout-0: rollout.reward.custom.function: graders:score ")
        assert sentence in message


def test_checkpoints_of_another_run_are_refused_with_a_sentence(tmp_path: Path) -> None:
    checkpoints = {"path": str(tmp_path / "kept"), "everySteps": 2}
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with RunningJob(first, make_simulated(first, rollout={"numRollouts": 4}, checkpoint=checkpoints)) as job:
        job.assert_succeeded()
    with RunningJob(second, make_simulated(second, checkpoint=checkpoints)) as job:
        assert job.finish() == 64
        assert f"spec.checkpoint.path: {tmp_path / 'kept'} has the checkpoints of another run" in job.output()
        job.wait_gone()
