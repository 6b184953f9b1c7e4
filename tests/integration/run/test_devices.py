"""A whole job with devices that are not there: each process has its slice, none twice, and keeps it over a restart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .job import RunningJob, at_leisure, kill, make_manifest

SIX = {"RLJOB_DEVICES": "fake:6"}
ROLES: dict[str, Any] = {
    "actor": {"gpus": 2},
    "rollout": {"gpus": 2, "engine": {"kind": "Torch"}},
    "actorFwd": {"gpus": 1},
    "reference": {"gpus": 1},
}
SLICES = {
    "actor-0.0": "fake-0",
    "actor-0.1": "fake-1",
    "rollout-0.engine.0": "fake-2",
    "rollout-0.engine.1": "fake-3",
    "actor_fwd-0.0": "fake-4",
    "reference-0.0": "fake-5",
    "rollout-0.0": "",
    "rollout-0.1": "",
    "advantages-0.0": "",
}
"""Ranks that drive engines compute nothing on devices themselves."""


def processes(job: RunningJob) -> dict[str, dict[str, Any]]:
    """What each process wrote down of its own environment when it began, by name."""
    return {path.stem: json.loads(path.read_text()) for path in (job.out / "devices").glob("*.json")}


def slices(job: RunningJob) -> dict[str, str]:
    return {name: record["devices"] for name, record in processes(job).items()}


def test_every_process_sees_its_own_devices_and_keeps_them_over_a_restart(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, roles=ROLES, rollout={"numRollouts": 20})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), env=SIX) as job:
        job.wait_for_step(1)
        before = processes(job)
        assert slices(job) == SLICES
        kill(int(job.pod("actor")["launcherPid"]))
        job.wait_for("the next epoch", lambda: job.epoch() == 2 and job.ready())
        after = processes(job)
        assert slices(job) == SLICES
        renewed = {name for name in before if before[name]["pid"] != after[name]["pid"]}
        assert renewed == {name for name in SLICES if "engine" not in name}, "engines outlive an epoch"
        job.assert_succeeded()


def test_too_few_devices_are_refused_before_anything_starts(tmp_path: Path) -> None:
    manifest = make_manifest(
        tmp_path, roles={**ROLES, "actor": {"gpus": 4}, "rollout": {"gpus": 3, "engine": {"kind": "Torch"}}}
    )
    manifest["spec"]["training"]["microBatchSize"] = 8
    with RunningJob(tmp_path, manifest, env={"RLJOB_DEVICES": "fake:8"}) as job:
        assert job.finish() == 64
        place, _, sentence = job.output().partition(": ")
        assert re.search(r"\.yaml:\d+$", place)
        assert sentence == (
            "spec.roles: 9 devices are wanted (actor 4 + rollout 3 + actorFwd 1 + reference 1), but this machine has 8"
            " by RLJOB_DEVICES=fake:8. Lower replicas or gpus, or let roles use the actor's devices with"
            " shareDevicesWith: actor.\n"
        )
        assert not (job.out / "status.json").exists()


def test_a_whole_job_shares_one_device(tmp_path: Path) -> None:
    sharing = {"gpus": 1, "shareDevicesWith": "actor"}
    rollout = {**sharing, "engine": {"kind": "Torch"}}
    roles = {"actor": {"gpus": 1}, "rollout": rollout, "actorFwd": {}, "reference": {}}  # those share by default
    manifest = make_manifest(tmp_path, roles=roles, rollout={"numRollouts": 3})
    with RunningJob(tmp_path, manifest, env={"RLJOB_DEVICES": "fake:1"}) as job:
        job.assert_succeeded()
        everyone = ("actor-0.0", "rollout-0.engine", "actor_fwd-0.0", "reference-0.0")
        assert {name for name, devices in slices(job).items() if devices == "fake-0"} == set(everyone)
