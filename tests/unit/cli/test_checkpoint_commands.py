"""`rljob checkpoint`: what a person sees of a record and of an export, how the commands exit, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, Role
from rljob_api.wire.checkpoint_report import CheckpointQuestion, ExportQuestion, Progress
from rljob_cli.jobs import checkpoints
from rljob_cli.jobs.checkpoints import CheckpointRefused, ask_workers, job_of
from rljob_cli.main import cli
from rljob_cli.ui.checkpoint import progress_text
from rljob_operator.local.run_record import CheckpointOwner
from tests.records import NAME, cut_up, made_weights, make_record


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *map(str, arguments)])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a record."""
    out = tmp_path_factory.mktemp("run") / "out"
    weights = made_weights()
    make_record(out / "checkpoints", weights, cut_up(weights))
    (out / "job.json").write_text(json.dumps({"metadata": {"name": "echo"}, "spec": {"checkpoint": {"path": None}}}))
    return out


def test_the_latest_record_of_a_run_is_shown(out: Path) -> None:
    result = run("show", out)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"{out}/checkpoints/{NAME} (the latest record of {out}/checkpoints)"
    assert lines[1] == "  job        echo"
    assert lines[2] == "  version    4 (after rollout 3), epoch 1, lineage 1"
    assert lines[4].endswith("; verified: all are what was written")
    assert lines[5].startswith("  actor      qwen3 (Qwen3ForCausalLM), ")
    assert " parameters in bfloat16, " in lines[5]
    assert lines[5].endswith(" in 2 files")
    assert lines[6].startswith("             state of 3 ranks after 12 optimizer steps: first moments ")
    assert ", exact weights " in lines[6]


def test_the_best_of_the_records_is_marked(out: Path) -> None:
    best = {"version": 4, "folder": NAME, "metric": "eval/held-out/mean@8", "mode": "Max", "value": 0.9375}
    (out / "checkpoints" / "best.json").write_text(json.dumps(best))
    result = run("show", out, "--no-verify")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2] == (
        "  version    4 (after rollout 3), epoch 1, lineage 1 (kept as the best: eval/held-out/mean@8 0.9375, the"
        " largest)"
    )
    report = json.loads(run("show", out, "--no-verify", "--output", "json").output)
    assert report["best"] == best
    (out / "checkpoints" / "best.json").write_text(json.dumps({**best, "folder": "2-e1-0123456789ab"}))
    assert "kept as the best" not in run("show", out, "--no-verify").output


def test_programs_get_the_same_as_json(out: Path) -> None:
    result = run("show", out / "checkpoints" / NAME, "--no-verify", "--output", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["job"], report["version"], report["isIntact"], report["latestOf"]) == ("echo", 4, None, None)
    assert [role["state"]["optimizerSteps"] for role in report["roles"]] == [12]


def test_damage_is_an_exit_code_of_its_own(tmp_path: Path) -> None:
    record = make_record(tmp_path, made_weights(), [])
    (record / "tokenizer.json").write_text("{}")
    result = run("show", record)
    assert result.exit_code == EXIT_FAILED
    assert "; DAMAGED: 1 of them\n" in result.output
    assert f"\nDAMAGED: {record}/tokenizer.json has checksum " in result.output
    assert "\n  job        not known here: the record lies outside of its run\n" in result.output


def test_a_folder_is_exported_and_written_over_by_nothing(out: Path, tmp_path: Path) -> None:
    to = tmp_path / "exact"
    result = run("export", out, "--to", to, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{to}: qwen3 (Qwen3ForCausalLM), ")
    assert f"  of         {out}/checkpoints/{NAME} (the latest record of {out}/checkpoints)\n" in result.output
    assert f"  tensors    {len(made_weights())} of the exact weights in the state\n" in result.output
    assert f'AutoModelForCausalLM.from_pretrained("{to}")' in result.output
    assert json.loads((to / "config.json").read_bytes())["dtype"] == "float32"
    result = run("export", out, "--to", to)
    assert (result.exit_code, result.stdout) == (EXIT_BAD_MANIFEST, "")
    assert result.stderr == f"--to: {to} is not empty. Give a folder that does not exist yet, or an empty one.\n"


@pytest.mark.parametrize("command", [["show"], ["export", "--to", "new"]])
def test_a_folder_without_records_is_refused_in_a_sentence(tmp_path: Path, command: list[str]) -> None:
    missing = run(*command, tmp_path / "none")
    assert (missing.exit_code, missing.stdout) == (EXIT_BAD_MANIFEST, "")
    assert missing.stderr.startswith(f"{tmp_path}/none is not a folder. Give the folder of a run (its --out), ")
    empty = run(*command, tmp_path)
    assert (empty.exit_code, empty.stdout) == (EXIT_BAD_MANIFEST, "")
    assert empty.stderr.startswith(f"{tmp_path} has no record of a checkpoint: nothing was saved there yet, or ")
    (tmp_path / "job.json").write_text('{"metadata": {"name": "new"}, "spec": {}}')
    young = run(*command, tmp_path)
    assert (young.exit_code, young.stdout) == (EXIT_BAD_MANIFEST, "")
    assert young.stderr == (
        f"{tmp_path} is the folder of a run that has no checkpoint yet: {tmp_path}/checkpoints is not there. Ask again"
        " later.\n"
    )


def test_checkpoints_elsewhere_know_their_job(tmp_path: Path) -> None:
    """By the note of their owner; a job whose run folder has checkpoints of its own does not count."""
    out, elsewhere = tmp_path / "out", tmp_path / "volume/echo"
    out.mkdir()
    elsewhere.mkdir(parents=True)
    assert job_of(elsewhere / NAME) is None
    CheckpointOwner(run="1", out=str(out), digest="2").write(elsewhere)
    named = {"metadata": {"name": "echo"}, "spec": {"checkpoint": {"path": str(elsewhere)}}}
    (out / "job.json").write_text(json.dumps(named))
    assert job_of(elsewhere / NAME) == "echo"
    (out / "job.json").write_text('{"metadata": {"name": "echo"}, "spec": {}}')
    assert job_of(elsewhere / NAME) is None
    (elsewhere / "run.json").write_text("{}")
    assert job_of(elsewhere / NAME) is None


def test_without_the_workers_packages_the_install_is_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(
        CheckpointRefused, match=r"torch, which is not installed\. Install rljob\[worker\]\."
    ) as refused:
        ask_workers(CheckpointQuestion(folder="/", is_verified=False), lambda _: None)
    assert refused.value.exit_code == EXIT_FAILED


def test_a_process_that_ends_without_an_answer_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_PROGRAM", "rljob_workers.no_such_program")
    with pytest.raises(CheckpointRefused, match=r"ended with 1: .*No module named rljob_workers\.no_such_program"):
        ask_workers(CheckpointQuestion(folder="/", is_verified=False), lambda _: None)


def test_progress_is_a_share() -> None:
    assert progress_text(Progress(what="verified", done_bytes=3 << 20, total_bytes=12 << 20)) == (
        "verified 3.0 MiB of 12.0 MiB (25%)"
    )


def test_an_interrupt_ends_the_process_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal that it can answer, and only then the command ends."""
    monkeypatch.setattr(checkpoints, "_PROGRAM", "tests.unit.cli.endless_export")
    to = tmp_path / "ended"
    question = ExportQuestion(folder="/", to=str(to), role=Role.ACTOR, dtype=None, is_verified=False)

    def interrupt(progress: Progress) -> None:
        assert progress.what == "written"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_workers(question, interrupt)
    assert to.exists()
