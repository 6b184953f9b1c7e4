"""A reference that two ranks hold together: each of them killed and stopped recovers in place, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, stop


def make_sharded(folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    manifest = make_manifest(
        folder,
        rollout={"numRollouts": 40},
        roles={"actor": {"backend": "Fsdp"}, "reference": reference},
        restartPolicy={"heartbeatTimeoutSeconds": 10, "stallTimeoutSeconds": 120, "threshold": 9},
    )
    return at_leisure(manifest, folder)


def suffer(job: RunningJob, do: Callable[[int], None], replica: int, rank: int) -> None:
    """The rank is named, both begin again in place, and steps go on."""
    job.wait_for("all to be ready", job.ready)
    job.wait_for_step(job.step() + 2)
    known = len(in_place(job))
    do(job.rank_pid("reference", replica, rank))
    name = f"reference-{replica}.{rank}"
    job.wait_for(f"a restart for {name}", lambda: len(in_place(job)) > known)
    message = "was killed by SIGKILL" if do is kill else "has not beaten in"
    assert in_place(job)[-1].startswith(f"{name} {message}"), job.stated()
    job.wait_for("all to be ready", job.ready)


def in_place(job: RunningJob) -> list[str]:
    """The message of each restart of the reference."""
    found = [event for event in job.events() if event.get("scope") == "InPlace" and event.get("role") == "reference"]
    return [event["message"] for event in found]


def survive(job: RunningJob, num_faults: int) -> None:
    """Each fault was one restart, all in the first epoch, and each row was trained once."""
    job.assert_succeeded(epochs=1)
    assert len(in_place(job)) == num_faults, job.stated()
    kl = [line["policy/kl_reference"] for line in job.metrics()]
    assert all(0 <= value < 0.5 for value in kl), f"rows were measured against another version: {kl}"


@pytest.mark.long
def test_ranks_of_one_pod(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_sharded(tmp_path, {"ranksPerPod": 2, "shards": 2})) as job:
        suffer(job, kill, 0, 1)
        suffer(job, stop, 0, 0)
        survive(job, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_of_two_pods(tmp_path: Path) -> None:
    faults = [(do, replica) for do in (kill, stop) for replica in (0, 1)]
    with RunningJob(tmp_path, make_sharded(tmp_path, {"replicas": 2, "shards": 2})) as job:
        for do, replica in faults:
            suffer(job, do, replica, 0)
        survive(job, len(faults))
