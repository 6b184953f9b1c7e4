"""Where a sentence about a field stands in the manifest, for every command that refuses one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.checks.findings import Lines
from rljob_cli.commands import run
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

MERGED = """\
defaults: &gpus
  replicas: 1
  gpus: 2
other: &other {threads: 3, gpus: 4}
spec:
  roles:
    actor:
      <<: *gpus
      threads: 1
    rollout:
      <<: [*other, *gpus]
    reference: {<<: {<<: *gpus}}
"""
PLACES = [
    pytest.param("spec.roles.actor.threads", 9, id="a field of its own"),
    pytest.param("spec.roles.actor.gpus", 3, id="one that was merged"),
    pytest.param("spec.roles.rollout.gpus", 4, id="the first of several that are merged wins"),
    pytest.param("spec.roles.rollout.replicas", 2, id="one of the second"),
    pytest.param("spec.roles.reference.gpus", 3, id="merged into what is merged"),
    pytest.param("spec.roles.actor.backend", 7, id="an absent one has its parent's"),
]


@pytest.mark.parametrize(("field", "line"), PLACES)
def test_a_field_has_the_line_that_gives_its_value(field: str, line: int) -> None:
    assert Lines("job.yaml", MERGED).located(f"{field}: is wrong.") == f"job.yaml:{line}: {field}: is wrong."


LACKING = "spec.roles.rollout.engine.kind: SGLang is not installed here."
REFUSED: list[Any] = [
    pytest.param(["--dry-run"], {"spec.roles": {"actor": {"gpus": 8}, "rollout": {"gpus": 1}}}, id="devices, planned"),
    pytest.param([], {"spec.roles": {"actor": {"gpus": 8}, "rollout": {"gpus": 1}}}, id="devices"),
    pytest.param(
        ["--dry-run"],
        {"spec.rollout.reward": {"custom": {"function": "graders_of_lines:broken", "path": "."}}},
        id="a reward, planned",
    ),
    pytest.param([], {"spec.roles.rollout": {"engine": {"kind": "SGLang"}}}, id="an engine"),
    pytest.param([], {"spec.suspend": True}, id="a field that asks for the opposite"),
]


@pytest.mark.parametrize(("options", "changes"), REFUSED)
def test_run_names_the_line_of_what_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], changes: dict[str, Any]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n')
    (tmp_path / "graders_of_lines.py").write_text("def broken(answers):\n    return answers.missing\n")
    manifest = changed({"spec.algorithm.kl.coefficient": 0, "spec.roles": {}, **changes})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    monkeypatch.setattr(run, "engine_problem", lambda engine: LACKING if engine.kind.value == "SGLang" else None)
    command = ["run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), *options]
    done = CliRunner().invoke(cli, command, env={"RLJOB_DEVICES": "fake:2"})
    assert done.exit_code == 64, done.output
    assert done.stderr.splitlines()[-1].startswith(f"{tmp_path}/job.yaml:"), done.stderr


def test_render_names_the_line_of_what_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"spec.roles": {"actor": {"gpu": 1}}}), sort_keys=False))
    done = CliRunner().invoke(cli, ["render", str(tmp_path / "job.yaml")])
    assert f"{tmp_path}/job.yaml:28: spec.roles.actor.gpu: there is no such field." in done.stderr
