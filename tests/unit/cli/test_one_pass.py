"""Beside a refused field all others are checked in the same pass; only what depends on that field is not said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.main import cli
from tests.unit.api.manifests import changed

ROWS = '{"prompt": "12=", "label": "21"}\n{"prompt": "34=", "label": "43"}\n'
REWARD = {"spec.rollout.reward": {"custom": {"function": "graders_of_one_pass:broken", "path": "."}}}
TYPO = {"spec.roles.actor": {"gpu": 1}}
KEY, LABEL = {"spec.data.promptKey": "question"}, {"spec.data.labelKey": "answer"}
ABSENT = {"spec.data.prompts": "absent", "spec.model": {"path": "absent"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text(ROWS)
    (tmp_path / "graders_of_one_pass.py").write_text("def broken(answers):\n    return answers.missing\n")
    return tmp_path


def fields(
    folder: Path, changes: dict[str, Any], *options: str, kind: str = "problems", devices: str = ""
) -> list[str]:
    """The field of each sentence of one kind, in their order."""
    (folder / "job.yaml").write_text(yaml.safe_dump(changed(changes), sort_keys=False))
    command = ["validate", str(folder / "job.yaml"), "--output", "json", *options]
    done = CliRunner().invoke(cli, command, env={"RLJOB_DEVICES": devices or None})
    assert done.stdout, done.output
    return [text.split(": ")[1] for text in json.loads(done.stdout)[kind]]


STATED = [
    pytest.param(
        {**TYPO, **ABSENT}, ["spec.roles.actor.gpu", "spec.model.path", "spec.data.prompts"], id="files beside a role"
    ),
    pytest.param(
        {**TYPO, **REWARD},
        ["spec.roles.actor.gpu", "spec.rollout.reward.custom.function"],
        id="a reward that is tried, beside a role",
    ),
    pytest.param(
        {"spec.rollout.batchSize": "many", **REWARD},
        ["spec.rollout.batchSize", "spec.rollout.reward.custom.function"],
        id="or beside a size of rollouts",
    ),
    pytest.param(
        {
            "spec.data.promptKey": 5,
            "spec.roles.rollout": {"engine": {"kind": "SGLang", "python": "/nowhere/python"}},
        },
        ["spec.data.promptKey", "spec.roles.rollout.engine.python"],
        id="what the machine lacks, beside data",
    ),
    pytest.param(
        {"spec.data.promptKey": 5, "spec.data.prompts": "absent"},
        ["spec.data.promptKey", "spec.data.prompts"],
        id="a file that is absent, beside a key",
    ),
    pytest.param(
        {"spec.rollout.reward": {"custom": {"path": "."}}, "spec.model": {"path": "absent"}},
        ["spec.rollout.reward.custom.function", "spec.model.path"],
        id="beside an object whose required text is absent",
    ),
    pytest.param(
        {"spec.rollout": 5, **ABSENT},
        ["spec.rollout", "spec.model.path", "spec.data.prompts"],
        id="beside a required object that is none",
    ),
    pytest.param(
        {"spec.model": {"dtype": 5}},
        ["spec.model.dtype", "spec.model.path"],
        id="a rule between other fields of the same object",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), STATED)
def test_is_stated_in_the_same_pass(folder: Path, changes: dict[str, Any], expected: list[str]) -> None:
    assert fields(folder, changes) == expected


def test_rules_of_a_cluster_hold_beside_a_refused_field(folder: Path) -> None:
    roles = {"actor": {"gpus": 1, "thread": 1}, "rollout": {"gpus": 1}, "reference": {}}
    found = fields(folder, {"spec.roles": roles, "spec.seed": "one"}, "--cluster", "--static")
    assert sorted(found) == ["spec.roles.actor.thread", "spec.roles.reference", "spec.seed"]


def test_the_first_lines_that_are_wrong_are_those_that_depend_on_no_refused_field(folder: Path) -> None:
    (folder / "prompts.jsonl").write_text('{"question": "1=", "label": 1}\n' * 9 + '{"a"\n')
    assert fields(folder, {"spec.data.promptKeys": "question"}) == ["spec.data.promptKeys", "spec.data.prompts"]


UNSAID = [
    pytest.param({"spec.data.promptKey": 5, **LABEL}, "problems", ["spec.data.promptKey"], id="rows without a key"),
    pytest.param(
        {"spec.rollout.reward": 5, **KEY}, "problems", ["spec.rollout.reward"], id="labels for no known reward"
    ),
    pytest.param({**TYPO, **LABEL, **KEY}, "warnings", [], id="devices that may have been meant"),
    pytest.param(
        {**LABEL, "spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpu": 1}, **KEY},
        "problems",
        ["spec.roles.rollout.gpu"],
        id="a role without devices",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "expected"), UNSAID)
def test_of_what_depends_on_a_refused_field_nothing_is_stated(
    folder: Path, changes: dict[str, Any], kind: str, expected: list[str]
) -> None:
    (folder / "prompts.jsonl").write_text('{"question": "1=", "answer": "1"}\n{"question": "2=", "answer": "2"}\n')
    assert fields(folder, changes, "--static", kind=kind, devices="fake:8") == expected
