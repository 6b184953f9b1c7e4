"""The surface of the command: names, exit codes, what is printed where, and what is not imported."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_SUCCEEDED
from rljob_cli.main import SUBCOMMANDS, cli
from tests.unit.api.manifests import changed

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "transformers", "numpy", "fastapi", "redis", "reasoning_gym", "rljob_workers", "kopf", "kubernetes"}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    return _written(tmp_path, changed({}))


def _written(folder: Path, manifest: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def _imported_by(*arguments: str) -> set[str]:
    script = "import sys\nfrom rljob_cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    script += "print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_ctrl_c_before_anything_was_started_is_an_interruption(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    os.mkfifo(manifest)
    process = subprocess.Popen([sys.executable, "-m", "rljob_cli", "run", str(manifest)], stderr=subprocess.PIPE)
    with manifest.open("w"):  # opened as soon as the command reads it
        process.send_signal(signal.SIGINT)
    # Closed before the wait: a signal that comes between Python's last look for signals and read() ends no read.
    _, message = process.communicate(timeout=60)
    assert (process.returncode, message) == (EXIT_INTERRUPTED, b"")


def test_exit_codes_are_what_scripts_rely_on() -> None:
    assert (EXIT_SUCCEEDED, EXIT_FAILED, EXIT_BAD_MANIFEST, EXIT_INTERRUPTED) == (0, 1, 64, 130)


def test_the_commands_are_these() -> None:
    assert list(SUBCOMMANDS) == [
        "init",
        "run",
        "evaluate",
        "validate",
        "render",
        "reward",
        "logs",
        "samples",
        "audit",
        "checkpoint",
        "queue",
        "restart",
        "clone",
        "crd",
        "docs",
    ]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"Usage: cli {name}" in result.output


def test_help_lists_every_command_and_what_to_try() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert all(command.summary in " ".join(output.split()) for command in SUBCOMMANDS.values())
    assert "rljob run examples/quickstart.yaml" in output
    assert "64 bad manifest" in output


def test_help_imports_neither_models_nor_anything_heavy() -> None:
    assert not _imported_by("--help") & (HEAVY | {"pydantic", "rljob_api", "rljob_operator"})


@pytest.mark.parametrize("command", ["validate", "render"])
def test_looking_at_a_manifest_imports_nothing_heavy(command: str) -> None:
    assert not _imported_by(command, str(ROOT / "examples/quickstart.yaml")) & HEAVY


def test_a_good_manifest_is_valid(good: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", str(good)])
    assert (result.exit_code, result.output) == (0, f"{good} is valid.\n")


def test_a_bad_manifest_exits_with_64_and_its_sentences_on_stderr(tmp_path: Path) -> None:
    path = _written(tmp_path, changed({"spec.rollout.maxStaleness": -1}))
    result = CliRunner().invoke(cli, ["validate", str(path)])
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.stdout == ""
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "maxStaleness" in text)
    assert result.stderr.splitlines()[0] == (
        f"{path}:{line}: spec.rollout.maxStaleness: -1 is below the minimum 0. Give a value of at least 0."
    )


def test_programs_get_the_problems_as_json(tmp_path: Path, good: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", str(good), "--output", "json"])
    reported = json.loads(result.stdout)
    assert (result.exit_code, reported["valid"], reported["problems"], reported["warnings"]) == (0, True, [], [])
    assert reported["defaults"][0].endswith(
        "job.yaml:17: spec.roles.actorFwd: null, since one optimizer step is made per rollout, which has the log-probs"
        " itself"
    )
    path = _written(tmp_path, changed({"spec.mode": "Sync"}))
    result = CliRunner().invoke(cli, ["validate", str(path), "--output", "json"])
    reported = json.loads(result.stdout)
    assert (result.exit_code, reported["valid"]) == (EXIT_BAD_MANIFEST, False)
    (problem,) = reported["problems"]
    assert problem.endswith('spec.mode: "Sync" is not a known value. Known here: FullyAsync.')


def test_render_prints_defaults_and_leaves_paths_as_they_are(good: Path) -> None:
    result = CliRunner().invoke(cli, ["render", str(good)])
    spec = yaml.safe_load(result.stdout)["spec"]
    assert spec["data"]["prompts"] == "prompts.jsonl"
    assert spec["training"]["optimizer"]["weightDecay"] == 0.0


def test_render_states_how_often_a_model_of_this_size_is_saved(good: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["render", str(good)])
    assert "    everySteps: null # 1, by the model's size\n" in result.output
    elsewhere = yaml.safe_load(good.read_text())
    elsewhere["spec"]["model"] = {"path": "elsewhere"}
    (tmp_path / "elsewhere.yaml").write_text(yaml.safe_dump(elsewhere))
    result = CliRunner().invoke(cli, ["render", str(tmp_path / "elsewhere.yaml")])
    assert (result.exit_code, "    everySteps: null\n" in result.output) == (0, True)


def test_render_refuses_what_validate_refuses(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["render", str(tmp_path / "none.yaml")]).exit_code == EXIT_BAD_MANIFEST


def test_crd_prints_the_committed_definition() -> None:
    result = CliRunner().invoke(cli, ["crd"])
    assert result.stdout == (ROOT / "crds/rljob.dev_rljobs.yaml").read_text()


def test_an_unknown_command_is_wrong_use() -> None:
    assert CliRunner().invoke(cli, ["frobnicate"]).exit_code == 2
