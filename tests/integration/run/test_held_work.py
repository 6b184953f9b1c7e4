"""A replica that does nothing holds up no one, long before it is known to be dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, make_simulated, stop

PATIENT = {"heartbeatTimeoutSeconds": 300, "stallTimeoutSeconds": 600, "table": {"rollout": "InPlace"}}
"""No one is given up in the time of the test."""


@pytest.mark.long
def test_a_job_goes_on_without_a_replica_that_is_stopped_and_with_it_when_it_comes_back(tmp_path: Path) -> None:
    manifest = make_simulated(tmp_path, restartPolicy=PATIENT, roles={"reference": {}, "rollout": {"replicas": 2}})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        victim = job.rank_pid("rollout")
        stop(victim)
        job.wait_for_step(job.step() + 4)  # without its work no more than maxStaleness + 1 steps
        os.kill(victim, signal.SIGCONT)
        job.assert_succeeded(epochs=1)
        assert not [event for event in job.events() if event["reason"] in ("Hang", "RankExited")]
