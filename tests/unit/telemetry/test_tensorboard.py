"""TensorBoard's own reader finds one run in what was written over a restart and by two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_workers.telemetry.trackers.base import TrackedRun

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed: make install brings it")


def tracked(folder: Path, next_step: int, given_lines: int, next_version: int = 0) -> TrackedRun:
    return TrackedRun("demo-0123456789ab", "demo", {"seed": 3}, folder, next_step, next_version, given_lines)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def texts(folder: Path, tag: str) -> list[tuple[int, str]]:
    return [(one.step, one.tensor_proto.string_val[0].decode()) for one in read(folder).Tensors(tag)]


def sample(response: str) -> dict[str, object]:
    return {
        "reward": 0.5,
        "responseTokens": 3,
        "finishReason": "stop",
        "epoch": 1,
        "prompt": "1 + 1",
        "response": response,
    }


def test_what_is_read_back_over_a_restart_of_the_job_and_of_the_process(tmp_path: Path) -> None:
    from rljob_workers.telemetry.trackers.tensorboard_files import TensorBoardFiles

    first = TensorBoardFiles(tracked(tmp_path, 0, 0))
    for step in range(4):
        first.step(step, {"reward/mean": float(step), "step/epoch": 1.0})
    first.events(0, [{"time": "now", "reason": "RankExited", "message": "actor-0.0"}])
    first.samples(3, [sample("*two*\n2")])
    first.forget(2)  # the job goes on from version 2
    for step in (2, 3):
        first.step(step, {"reward/mean": 20.0 + step, "step/epoch": 2.0})
    first.close()  # its cursor says that step 3 was not given
    second = TensorBoardFiles(tracked(tmp_path, 3, 9))
    for step in (3, 4):
        second.step(step, {"reward/mean": 20.0 + step, "step/epoch": 2.0})
    second.events(1, [{"time": "now", "reason": "Ready", "message": "every role"}])
    second.close()

    found = read(tmp_path / "metrics").Scalars("reward/mean")
    assert [(one.step, one.value) for one in found] == [(0, 0.0), (1, 1.0), (2, 22.0), (3, 23.0), (4, 24.0)]
    assert texts(tmp_path / "events", "events") == [
        (0, "now **RankExited** actor-0.0"),
        (1, "now **Ready** every role"),
    ]
    assert [text for _, text in texts(tmp_path / "events", "config")] == ['    {\n     "seed": 3\n    }']
    assert texts(tmp_path / "samples", "sample/0") == [
        (3, "reward 0.5000, 3 tokens, stop, epoch 1\n\n    1 + 1\n\n    *two*\n    2")
    ]


def test_evaluations_are_read_back_by_their_version_over_a_restart_of_the_job_and_of_the_process(
    tmp_path: Path,
) -> None:
    from rljob_workers.telemetry.trackers.tensorboard_files import TensorBoardFiles

    TensorBoardFiles(tracked(tmp_path, 0, 0)).close()
    assert not (tmp_path / "evaluations").exists()
    first = TensorBoardFiles(tracked(tmp_path, 0, 3))
    for step in range(6):
        first.step(step, {"reward/mean": float(step)})
    for version in (0, 2, 4):
        first.evaluation(version, {"eval/dev/mean@4": float(version), "evaluation/epoch": 1.0})
    first.forget(2)  # the job goes on from version 2
    first.step(2, {"reward/mean": 22.0})
    first.forget_evaluations(4)
    first.evaluation(4, {"eval/dev/mean@4": 24.0, "evaluation/epoch": 2.0})
    first.close()  # its cursor says that version 4 was not given
    second = TensorBoardFiles(tracked(tmp_path, 3, 9, next_version=3))
    second.step(3, {"reward/mean": 23.0})
    second.evaluation(4, {"eval/dev/mean@4": 24.0, "evaluation/epoch": 2.0})
    second.close()

    found = read(tmp_path / "evaluations").Scalars("eval/dev/mean@4")
    assert [(one.step, one.value) for one in found] == [(0, 0.0), (2, 2.0), (4, 24.0)]
    assert [one.step for one in read(tmp_path / "metrics").Scalars("reward/mean")] == [0, 1, 2, 3]


def test_the_command_gives_the_rest_of_a_run_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"metadata": {"name": "demo"}, "spec": {}}))
    (tmp_path / "run.json").write_text(json.dumps({"run": "0123456789ab"}))
    lines = [{"step": step, "epoch": 1, "reward/mean": step / 2} for step in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    evaluated = {"time": 1.0, "version": 3, "epoch": 1, "samples": 2, "eval/dev/mean@1": 0.5}
    (tmp_path / "evaluations.jsonl").write_text(f"{json.dumps(evaluated)}\n")
    command = [sys.executable, "-m", "rljob_workers.telemetry.trackers", str(tmp_path), "tensorboard", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "trackers/tensorboard/metrics").Scalars("reward/mean")
    assert [(one.step, one.value) for one in found] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    (of_version,) = read(tmp_path / "trackers/tensorboard/evaluations").Scalars("eval/dev/mean@1")
    assert (of_version.step, of_version.value) == (3, 0.5)
