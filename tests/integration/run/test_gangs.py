"""Four actor ranks in two pods: each fault costs one restart, names the rank that had it, and the audit is exact."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated, stop


class Rank(NamedTuple):
    replica: int
    rank: int

    def __str__(self) -> str:
        return f"actor-{self.replica}.{self.rank}"


FOUR = tuple(Rank(replica, rank) for replica in (0, 1) for rank in (0, 1))
Fault = tuple[Callable[[int], None], Rank]


def make_gang(
    folder: Path, *, make: Callable[..., dict[str, Any]] = make_simulated, roles: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    manifest = make(
        folder,
        rollout={"numRollouts": 50},
        training={"microBatchSize": 4},
        roles={"actor": {"replicas": 2, "ranksPerPod": 2}, **(roles or {})},
        restartPolicy={"heartbeatTimeoutSeconds": 10, "stallTimeoutSeconds": 120},
    )
    return at_leisure(manifest, folder, seconds=0.8)


def restarts(job: RunningJob) -> list[str]:
    """The message of each restart of the job."""
    return [event["message"] for event in job.events() if event.get("scope") == "Global"]


def suffer(job: RunningJob, faults: Sequence[Fault]) -> None:
    """One fault after the other, each at whatever the ranks are doing."""
    for do, rank in faults:
        job.wait_for("all to be ready", job.ready)
        job.wait_for_step(job.step() + 2)
        before = len(restarts(job))
        do(job.rank_pid("actor", *rank))
        job.wait_for(f"a restart for {rank}", lambda known=before: len(restarts(job)) > known)  # type: ignore[misc] # bound per turn
        message = "was killed by SIGKILL" if do is kill else "has not beaten in"
        assert restarts(job)[-1].startswith(f"{rank} {message}"), job.stated()
        assert "more at the same time" not in restarts(job)[-1]


def survive(job: RunningJob, num_faults: int) -> None:
    """Each was one restart, and nothing was trained twice or not at all."""
    job.assert_succeeded(epochs=num_faults + 1)
    assert len(restarts(job)) == num_faults, job.stated()
    job.assert_epoch(num_faults + 1)


def test_every_kind_of_fault_in_pods_of_two_ranks(tmp_path: Path) -> None:
    """A kill within a collective, a stopped rank, a death in place, an engine's rank."""
    marks = tmp_path / "failpoints"
    marks.mkdir()
    armed = {"RLJOB_FAILPOINTS": "collective.entered=60", "RLJOB_FAILPOINTS_DIR": str(marks)}
    roles = {name: {"ranksPerPod": 2} for name in ("rollout", "reference", "advantages")}
    with RunningJob(tmp_path, make_gang(tmp_path, roles=roles), armed) as job:
        job.wait_for("a death within a collective", lambda: len(restarts(job)) > 0)
        assert any(restarts(job)[0].startswith(f"{rank} was killed by SIGKILL") for rank in FOUR), job.stated()
        suffer(job, [(stop, FOUR[0])])
        job.wait_for("all to be ready", job.ready)
        other = job.rank_pid("reference", 0, 0)
        kill(job.rank_pid("reference", 0, 1))
        job.wait_for_event("RankExited", role="reference", scope="InPlace")
        job.wait_for("its peer to begin anew", lambda: job.rank_pid("reference", 0, 0) != other)
        job.wait_for("all to be ready", job.ready)
        kill(job.rank_pid("rollout", 0, 1))
        event = job.wait_for_event("RankExited", role="rollout", scope="Global")
        assert event["message"].startswith("rollout-0.1 was killed by SIGKILL")
        survive(job, 3)


def interrupt(job: RunningJob, seconds: float) -> None:
    """Ctrl-C so long after a step: what was trained is saved, and the command ends."""
    job.wait_for("all to be ready", job.ready)
    job.wait_for_step(job.step() + 1)
    time.sleep(seconds)
    job.interrupt()
    training = job.status()["training"]
    assert training["checkpoint"] == training["step"] + 1, job.stated()


@pytest.mark.long
def test_an_interrupted_gang_saves_together_and_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    manifest = make_gang(tmp_path)
    with RunningJob(tmp_path, manifest) as job:
        interrupt(job, 0.3)
        manifest["spec"]["roles"]["actor"] = {"ranksPerPod": 2}
        job.rewrite(manifest)
        job.start()
        job.assert_succeeded(epochs=2)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_any_moment(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with RunningJob(tmp_path, make_gang(tmp_path)) as job:
        for _ in range(6):
            interrupt(job, dice.uniform(0, 1.5))
            job.start()
        job.assert_succeeded()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_lost_pod_of_a_gang_is_one_restart_and_takes_its_ranks_along(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_gang(tmp_path)) as job:
        for number, replica in enumerate((1, 0), start=1):
            job.wait_for("all to be ready", job.ready)
            job.wait_for_step(job.step() + 2)
            kill(int(job.pod("actor", replica)["launcherPid"]))
            job.wait_for("a restart", lambda wanted=number: len(restarts(job)) == wanted)  # type: ignore[misc] # bound per turn
            assert restarts(job)[-1].startswith(f"the launcher of actor-{replica} was killed"), job.stated()
        survive(job, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_sharded_rank_that_hangs_among_others_that_beat_is_named(tmp_path: Path) -> None:
    """It goes on beating, as those do that wait for it: only how far each has come distinguishes them."""
    marks = tmp_path / "failpoints"
    marks.mkdir()
    armed = {"RLJOB_FAILPOINTS": "collective.section=hang:30", "RLJOB_FAILPOINTS_DIR": str(marks)}
    manifest = make_gang(tmp_path, make=make_manifest)
    manifest["spec"]["roles"]["actor"]["backend"] = "Fsdp"
    manifest["spec"]["rollout"]["numRollouts"] = 40
    manifest["spec"]["restartPolicy"] |= {"heartbeatTimeoutSeconds": 15, "collectiveTimeoutSeconds": 16}
    with RunningJob(tmp_path, manifest, armed) as job:
        job.wait_for("a restart", lambda: len(restarts(job)) > 0)
        message = restarts(job)[0]
        (named,) = [rank for rank in FOUR if message.startswith(f"{rank} has not come out of collective ")]
        others = [rank for rank in FOUR if "could not go through" in (job.out / f"logs/{rank}.log").read_text()]
        assert {named, *others} == set(FOUR), job.stated()
        assert named not in others
        assert job.status()["restart"]["reason"] == "Hang"
        survive(job, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("do", [kill, stop])
@pytest.mark.parametrize("backend", ["Flat", "Fsdp"])
def test_each_of_the_four(tmp_path: Path, backend: str, do: Callable[[int], None]) -> None:
    """After a kill within what meets the other ranks in a library, where the backend has such."""
    marks = tmp_path / "failpoints"
    marks.mkdir()
    armed = {"RLJOB_FAILPOINTS": "collective.section=50", "RLJOB_FAILPOINTS_DIR": str(marks)}
    manifest = make_gang(tmp_path, make=make_manifest)
    manifest["spec"]["roles"]["actor"]["backend"] = backend
    with RunningJob(tmp_path, manifest, armed) as job:
        if backend == "Fsdp":
            job.wait_for("a death within a collective", lambda: len(restarts(job)) > 0)
            assert any(restarts(job)[0].startswith(f"{rank} was killed by SIGKILL") for rank in FOUR), job.stated()
        suffer(job, [(do, rank) for rank in FOUR])
        survive(job, len(FOUR) + (backend == "Fsdp"))
