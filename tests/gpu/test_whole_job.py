"""A whole job on one GPU: trainer, engine, actor_fwd and reference share it; audit exact, and it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.run.job import RunningJob, make_manifest

SHARING = {"gpus": 1, "shareDevicesWith": "actor"}


@pytest.mark.parametrize("backend", ["Flat", "Fsdp", "Megatron"])
def test_a_job_runs_on_one_device(tmp_path: Path, device: torch.device, backend: str) -> None:
    has_gpu = device.type == "cuda"
    others = SHARING if has_gpu else {}
    roles = {
        "actor": {"backend": backend, "gpus": 1 if has_gpu else 0},
        "rollout": {**others, "engine": {"kind": "Torch"}},
        "reference": others,
        "actorFwd": others,
    }
    manifest = make_manifest(tmp_path, roles=roles, rollout={"numRollouts": 20})
    manifest["spec"]["model"]["dtype"] = "bfloat16"
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        engine = next(job.out.glob("logs/rollout-0.engine.log")).read_text()
        assert f"computes on {device}" in engine
        assert len(job.metrics()) == 20


@pytest.mark.parametrize("backend", ["Flat", "Megatron"])
def test_a_job_with_a_critic_runs_on_one_device(tmp_path: Path, device: torch.device, backend: str) -> None:
    has_gpu = device.type == "cuda"
    others = SHARING if has_gpu else {}
    roles = {
        "actor": {"backend": backend, "gpus": 1 if has_gpu else 0},
        "critic": {**others, "backend": backend},
        "rollout": {**others, "engine": {"kind": "Torch"}},
        "reference": others,
        "actorFwd": others,
    }
    manifest = make_manifest(tmp_path, roles=roles, rollout={"numRollouts": 10})
    manifest["spec"]["model"]["dtype"] = "bfloat16"
    manifest["spec"]["algorithm"] = {"advantage": "Gae"}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        assert len(job.metrics()) == 10
