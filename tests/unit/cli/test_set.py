"""`--set` on the command line: what it sets is shown, refused with 64, named as its own, and completed by a shell."""

from pathlib import Path

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.commands.run import _resume
from rljob_cli.main import cli
from tests.unit.api.manifests import changed


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(changed({})))
    return path


def test_render_shows_what_was_set(good: Path) -> None:
    given = ["--set", "training.optimizer.learningRate=1e-6", "--set", "metadata.name=slow"]
    result = CliRunner().invoke(cli, ["render", str(good), *given])
    shown = yaml.safe_load(result.stdout)
    assert (shown["metadata"]["name"], shown["spec"]["training"]["optimizer"]["learningRate"]) == ("slow", 1e-6)


@pytest.mark.parametrize(
    "command", [["render"], ["validate"], ["validate", "--cluster"], ["run"], ["run", "--dry-run"]]
)
def test_a_wrong_value_ends_with_64_and_does_not_blame_a_line_of_the_file(good: Path, command: list[str]) -> None:
    result = CliRunner().invoke(cli, [*command, str(good), "--set", "rollout.batchSize=-1"])
    assert (result.exit_code, result.stdout) == (EXIT_BAD_MANIFEST, "")
    (first, *_) = result.stderr.splitlines()
    assert first == "--set: spec.rollout.batchSize: -1 is below the minimum 1. Give a value of at least 1."


@pytest.mark.parametrize("command", ["render", "validate", "run"])
def test_an_unknown_field_ends_with_64_and_the_nearest_name(good: Path, command: str) -> None:
    result = CliRunner().invoke(cli, [command, str(good), "--set", "learningRat=1"])
    assert result.exit_code == EXIT_BAD_MANIFEST
    assert result.stderr.startswith(
        "--set: spec.learningRat: there is no such field. Did you mean training.optimizer.learningRate"
    )


def test_what_is_not_a_field_and_a_value_is_refused_before_the_manifest_is_read() -> None:
    result = CliRunner().invoke(cli, ["run", "absent.yaml", "--set", "seed", "--set", "=1"])
    assert (result.exit_code, result.stderr.count("\n"), "absent" in result.stderr) == (EXIT_BAD_MANIFEST, 2, False)


def test_a_problem_of_another_field_has_its_line(good: Path) -> None:
    good.write_text(good.read_text().replace("maxNewTokens: 4", "maxNewTokens: 0"))
    result = CliRunner().invoke(cli, ["validate", str(good), "--set", "seed=1"])
    assert result.stderr.startswith(f"{good}:")


def test_what_was_set_stands_in_the_command_that_goes_on() -> None:
    given = ["model.path=/a b", "seed=1"]
    assert _resume(Path("job.yaml"), given, Path("out")) == (
        "rljob run job.yaml --set 'model.path=/a b' --set seed=1 --out out"
    )


def test_a_manifest_comes_from_standard_input(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(good.parent)
    result = CliRunner().invoke(cli, ["validate", "-"], input=good.read_text())
    assert (result.exit_code, result.output) == (0, "- is valid.\n")


def test_a_shell_completes_fields() -> None:
    found = ShellComplete(cli, {}, "rljob", "_RLJOB_COMPLETE").get_completions(
        ["run", "job.yaml", "--set"], "training.optimizer.learn"
    )
    assert [item.value for item in found] == ["training.optimizer.learningRate="]
