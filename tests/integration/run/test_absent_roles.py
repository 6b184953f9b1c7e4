"""Roles that a job does without: actor_fwd, advantages, and a reference whose log-probs no one reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated, stop

SEVERAL_STEPS = {"epochsPerRollout": 2, "globalBatchSize": 16, "microBatchSize": 4}
STEPS = (
    pytest.param({"itersPerTrainUpdate": 2}, {"replicas": 2}, id="one optimizer step a rollout"),
    pytest.param(SEVERAL_STEPS, {"ranksPerPod": 2}, id="two passes of two optimizer steps", marks=pytest.mark.long),
    pytest.param(SEVERAL_STEPS, {"backend": "Fsdp", "ranksPerPod": 2}, id="the same, sharded", marks=pytest.mark.long),
)
"""What training is, and the actor that trains."""


@pytest.mark.parametrize(("training", "actor"), STEPS)
def test_a_job_without_actor_fwd_loses_and_repeats_nothing(
    tmp_path: Path, training: dict[str, Any], actor: dict[str, Any]
) -> None:
    roles = {"actor": actor, "actorFwd": None}
    manifest = make_manifest(tmp_path, roles=roles, training=training, rollout={"numRollouts": 20})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        assert "actor_fwd" not in {role["name"] for role in job.status()["roles"]}
        kill(job.rank_pid("actor"))
        job.wait_for_event("RankExited", role="actor", scope="Global")
        job.assert_succeeded()


def test_the_engines_log_probs_are_the_proximal_ones(tmp_path: Path) -> None:
    """No one computes them again: staleness, of rows that the version before made, is in the ratio."""
    algorithm = {"proximal": "Rollout", "correction": {"kind": "None"}}
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 8}, algorithm=algorithm)
    del manifest["spec"]["roles"]["actorFwd"]
    del manifest["spec"]["training"]["itersPerTrainUpdate"]
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(1)
        assert "actor_fwd" not in {role["name"] for role in job.status()["roles"]}
        job.assert_succeeded()
        steps = job.metrics()
        begun = json.loads((job.out / "job.json").read_bytes())
    assert begun["spec"]["training"]["itersPerTrainUpdate"] == 2, "two slices, each of a micro-batch"
    assert all(step.get("mismatch/kl", 0.0) == step.get("staleness/kl", 0.0) == 0.0 for step in steps)
    assert "correction/weight" not in steps[0]
    assert any(step["policy/approx_kl"] > 0.0 for step in steps), "one optimizer step, and a ratio that is not 1"


def test_the_rollout_makes_advantages_where_there_is_no_role_for_them(tmp_path: Path) -> None:
    """By default, with the column that leaves out groups without variance; a rank of it is killed, and nothing lost."""
    algorithm = {"advantage": "Rloo", "noVariance": "LeaveOut"}
    roles = {"rollout": {"replicas": 2}}
    manifest = make_simulated(tmp_path, algorithm=algorithm, roles=roles, rollout={"numRollouts": 16})
    del manifest["spec"]["roles"]["advantages"]
    manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        assert "advantages" not in {role["name"] for role in job.status()["roles"]}
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="Global")
        job.assert_succeeded()
        samples = read_generations(job.out)
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for sample in samples:
        key = (sample["epoch"], sample["rollout"], sample["group"])
        groups.setdefault(key, []).append((sample["reward"], sample["advantage"]))
    whole = [group for group in groups.values() if len(group) == 4]
    assert any(advantage != 0.0 for group in whole for _, advantage in group)
    for group in whole:
        mean = sum(reward for reward, _ in group) / 4
        for reward, advantage in group:
            assert advantage == pytest.approx((reward - mean) * 4 / 3, abs=1e-5)


def test_no_one_waits_for_a_reference_that_no_kl_term_reads(tmp_path: Path) -> None:
    """It is stopped for as long as it takes to train and record many rollouts; their rows go all the same."""
    patience = {"heartbeatTimeoutSeconds": 300, "stallTimeoutSeconds": 600}
    manifest = make_simulated(
        tmp_path, rollout={"numRollouts": 80}, algorithm={"kl": {"coefficient": 0}}, restartPolicy=patience
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=0.2)) as job:
        job.wait_for("all roles", job.ready)
        stopped = job.rank_pid("reference")
        stop(stopped)
        job.wait_for_step(job.step() + 8)
        with job.control() as control:
            job.wait_for("a record", lambda: int(control.hget("q:meta", "recorded") or 0) >= 8)
            recorded = int(control.hget("q:meta", "recorded") or 0)
            retained = [int(name) for name in control.zrange("q:partitions", 0, -1)]
            assert min(retained, default=recorded) >= recorded
            job.wait_for("the bytes of what is recorded to go", lambda: no_rows_below(control, recorded))
        kill(stopped)
        job.wait_for_event("RankExited", role="reference", scope="InPlace")
        job.assert_succeeded()


def no_rows_below(control: Any, recorded: int) -> bool:
    return not any(list(control.scan_iter(f"p:{r}:*")) for r in range(recorded))
