"""Commands for a cluster say a sentence where there is none, and `rljob run` says what it does not look at."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, Role
from rljob_cli.commands.restart import has_role
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

ASKS = [["restart", "demo", "--reason", "a test"], ["clone", "demo", "--from-checkpoint"]]


@pytest.mark.parametrize("arguments", ASKS, ids=lambda arguments: arguments[0])
def test_without_a_cluster_there_is_a_sentence(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (EXIT_FAILED, "")
    assert result.stderr.startswith("There is no cluster to ask: ")
    assert result.stderr.endswith("Set KUBECONFIG to a file that kubectl can use.\n")


@pytest.mark.parametrize("arguments", ASKS, ids=lambda arguments: arguments[0])
def test_a_cluster_that_does_not_answer_is_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}
    named |= {
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump({**named, "current-context": "x"}))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (EXIT_FAILED, "")
    assert "The API server does not answer about the RLJob demo" in result.stderr


def test_a_role_that_comes_by_default_can_be_restarted_alone() -> None:
    """The API server fills in none of those that depend on the rest of the job."""
    job: dict[str, Any] = {"spec": {"roles": {"reference": {}, "advantages": None}}, "status": {}}
    assert [role for role in Role if has_role(job, role)] == [Role.REFERENCE]
    job["status"]["roles"] = [{"name": "reference"}, {"name": "actor_fwd"}, {"name": "advantages"}]
    assert [role for role in Role if has_role(job, role)] == [Role.ACTOR_FWD, Role.REFERENCE, Role.ADVANTAGES]


def _run(folder: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """`rljob run` up to where the supervisor would start."""
    monkeypatch.setattr("rljob_operator.local.start.run_job", lambda *_, **__: 0)
    (folder / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    (folder / "job.yaml").write_text(yaml.safe_dump(changed(changes)))
    result = CliRunner().invoke(cli, ["run", str(folder / "job.yaml")])
    return result.exit_code, result.stderr


def test_a_run_states_which_fields_mean_nothing_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"spec.image": "i", "spec.roles.actor": {"resources": {"limits": {"cpu": "2"}}}}
    assert _run(tmp_path, changes, monkeypatch) == (
        0,
        "spec.roles.actor.resources, spec.image mean nothing on one machine.\n",
    )


def test_a_plain_manifest_runs_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(tmp_path, {}, monkeypatch) == (0, "")


def test_a_suspended_job_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, message = _run(tmp_path, {"spec.suspend": True}, monkeypatch)
    assert code == EXIT_BAD_MANIFEST
    assert message.endswith(": spec.suspend: true asks that nothing runs. Set it to false; Ctrl-C stops a run.\n")
