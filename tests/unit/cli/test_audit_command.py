"""`rljob audit`: what it says, how it exits, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus, TrainingStatus
from rljob_cli.main import cli

JOB = RLJob.model_validate(
    {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "audited"},
        "spec": {
            "model": {"config": {}},
            "data": {"prompts": "p.jsonl"},
            "rollout": {"numRollouts": 2, "batchSize": 1, "samplesPerPrompt": 2},
            "training": {"globalBatchSize": 2, "microBatchSize": 2},
        },
    }
)


def make_run(folder: Path, *, steps: int = 2, phase: Phase = Phase.SUCCEEDED, recorded: int = 2) -> list[str]:
    """A run folder without its sample log, and the lines that belong into it."""
    (folder / "job.json").write_text(JOB.model_dump_json(by_alias=True))
    status = RLJobStatus(phase=phase, training=TrainingStatus(checkpoint=recorded))
    (folder / "status.json").write_text(status.model_dump_json(by_alias=True))
    return [
        json.dumps(
            {
                "partition": f"train_{step}",
                "group": 0,
                "index": index,
                "weightVersion": max(0, step - 1),
                "step": step,
                "epoch": 1,
                "pass": 0,
                "reward": 1.0,
            }
        )
        + "\n"
        for step in range(steps)
        for index in range(2)
    ]


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["audit", *arguments])


def test_a_whole_log_holds(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("".join(make_run(tmp_path)))
    result = audit(str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Holds: every sample was trained exactly once.\n")
    assert "staleness  at most 1 of 1 allowed" in result.output


def test_a_doubled_and_a_missing_sample_are_named(tmp_path: Path) -> None:
    lines = make_run(tmp_path)
    (tmp_path / "samples.jsonl").write_text("".join([lines[0], *lines[:3]]))
    result = audit(str(tmp_path))
    assert result.exit_code == 1
    assert "FAILED: 1 samples were never trained, e.g. train_1 group 0 index 1 pass 0." in result.output
    assert "FAILED: 1 samples were trained more than once, e.g. train_0 group 0 index 0 pass 0." in result.output


def test_programs_get_json(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("".join(make_run(tmp_path)))
    report = json.loads(audit(str(tmp_path), "--output", "json").output)
    assert report["holds"] is True
    assert (report["lines"], report["steps"], report["max_staleness"], report["problems"]) == (4, 2, 1, [])


@pytest.mark.parametrize(
    ("recorded", "exit_code"),
    [
        pytest.param(1, 0, id="steps beyond the recorded checkpoint may be missing"),
        pytest.param(2, 1, id="recorded steps may not"),
    ],
)
def test_of_an_unfinished_run_what_is_recorded_is_audited(recorded: int, exit_code: int, tmp_path: Path) -> None:
    lines = make_run(tmp_path, steps=1, phase=Phase.INTERRUPTED, recorded=recorded)
    (tmp_path / "samples.jsonl").write_text("".join(lines))
    assert audit(str(tmp_path)).exit_code == exit_code


def test_a_folder_without_a_sample_log_is_refused_with_the_cure(tmp_path: Path) -> None:
    assert "is not the folder of a run" in audit(str(tmp_path)).output
    make_run(tmp_path)
    result = audit(str(tmp_path))
    assert result.exit_code == 64
    assert result.output == (
        f"{tmp_path} has no samples.jsonl: its run did not log samples. Run the job with --audit, "
        "or set telemetry.sampleLog.\n"
    )
    assert "is not a folder" in audit(str(tmp_path / "none")).output
