"""startupDeadlineSeconds under `rljob run`: a job that is not Ready in time ends by that name, and may go on later."""

from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, make_simulated

REWARD = """
import time

time.sleep(SECONDS)


def character_match(answers, /):
    return [sum(a == b for a, b in zip(answer.response, answer.label)) / len(answer.label) for answer in answers]
"""


def made(folder: Path, seconds: float, limit: int) -> dict[str, Any]:
    """A job whose rollout takes so long to load its reward."""
    (folder / "late.py").write_text(REWARD.replace("SECONDS", str(seconds)))
    reward = {"custom": {"function": "late:character_match", "path": str(folder)}}
    manifest = make_simulated(folder, rollout={"reward": reward, "numRollouts": 4})
    return {**manifest, "spec": {**manifest["spec"], "startupDeadlineSeconds": limit}}


@pytest.mark.long  # a cluster's job that is not ready in time is in test_startup
def test_a_job_that_is_not_ready_in_time_ends_and_the_same_folder_goes_on_with_more_time(tmp_path: Path) -> None:
    with RunningJob(tmp_path, made(tmp_path, 600, 6)) as job:
        assert job.finish() == 1, job.stated()
        event = job.events()[-1]
        assert event["reason"] == "StartupDeadlineExceeded", job.stated()
        why = event["message"].removeprefix("the job has not been Ready for startupDeadlineSeconds (6 s): ")
        # On a slow machine the coordinator has not opened the epoch by then: all ranks are waited for.
        is_named = why.startswith("waiting for ") and "rollout-0" in why
        assert is_named or why.startswith("the epoch is not open yet"), why
        assert (job.status()["phase"], job.status()["reason"]) == ("Failed", "StartupDeadlineExceeded")
        job.wait_gone()

        job.rewrite(made(tmp_path, 0, 600))
        job.start()
        job.assert_succeeded()
