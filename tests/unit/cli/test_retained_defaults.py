"""A run that is gone on with keeps the defaults that it began with, and says which of them a new one would not get."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.main import cli
from tests.unit.api.manifests import changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12=", "label": "21"}\n{"prompt": "34=", "label": "43"}\n')
    return tmp_path


def test_a_resumed_run_is_checked_with_the_defaults_that_it_has(folder: Path) -> None:
    """Its engine was Torch before there was another default: so it stays, and so does what Torch cannot do."""
    roles = {"actor": {"gpus": 1}, "rollout": {"gpus": 1}, "reference": {"gpus": 1, "shareDevicesWith": "actor"}}
    (folder / "job.yaml").write_text(yaml.safe_dump(changed({"spec.roles": roles})))
    command = ["run", str(folder / "job.yaml"), "--out", str(folder / "out"), "--dry-run", "--output", "json"]

    def engine() -> str:
        done = CliRunner().invoke(cli, command, env={"RLJOB_DEVICES": "fake:2"})
        assert done.exit_code == 0, done.output
        processes = json.loads(done.stdout.splitlines()[-1])["processes"]
        return str(next(one["settings"]["engine"] for one in processes if "engine" in one["settings"]))

    assert engine() == "SGLang"
    (folder / "out").mkdir()
    (folder / "out/job.json").write_text(json.dumps(changed({"spec.roles": roles})))
    assert engine() == "Torch"


def test_what_stays_as_a_run_began_is_named_where_a_new_one_would_get_something_else(folder: Path) -> None:
    """It began on the CPU; its actor gets devices, and its reference would stay where it is without a word."""
    (folder / "out").mkdir()
    (folder / "out/job.json").write_text(json.dumps(changed({"spec.model.dtype": "bfloat16"})))
    gpus = {"spec.model.dtype": "bfloat16", "spec.roles.actor": {"gpus": 2}, "spec.roles.rollout": {"gpus": 1}}
    command = ["run", str(folder / "job.yaml"), "--out", str(folder / "out"), "--dry-run"]

    def warned(changes: dict[str, Any]) -> list[str]:
        (folder / "job.yaml").write_text(yaml.safe_dump(changed(changes), sort_keys=False))
        done = CliRunner().invoke(cli, command, env={"RLJOB_DEVICES": "fake:4"})
        assert done.exit_code == 0, done.output
        return [line.removeprefix(f"warning: {folder}/job.yaml:") for line in done.stderr.splitlines() if line]

    assert [text.partition(": ")[2] for text in warned(gpus)] == [
        "spec.roles.actorFwd: {}, as the job began; a new job would get null, since one optimizer step is made per"
        " rollout, which has the log-probs itself. Give roles.actorFwd to say which is meant.",
        "spec.roles.advantages: {}, as the job began; a new job would get null, since algorithm.advantage Grpo needs no"
        " more than a group. Give roles.advantages to say which is meant.",
        "spec.roles.rollout.engine.kind: Torch, as the job began; a new job would get SGLang, the default with gpus."
        " Give roles.rollout.engine.kind to say which is meant.",
        "spec.roles.reference.gpus: 0, as the job began; a new job would get 2 with shareDevicesWith actor, since the"
        " actor has gpus. Give roles.reference.gpus to say which is meant.",
        "spec.model.headDtype: bfloat16, as the job began; a new job would get float32, the default with gpus. It"
        " cannot change once the job exists.",
    ]
    message: dict[str, Any] = {
        "spec.roles.actorFwd": None,
        "spec.roles.advantages": {},
        "spec.roles.reference": {"gpus": 0},
    }
    message |= {"spec.roles.rollout": {"gpus": 1, "engine": {"kind": "Torch"}}, "spec.model.dtype": "float32"}
    assert warned({**gpus, **message}) == []
    (alone,) = warned({**message, "spec.roles.actor": {"gpus": 2}, "spec.roles.rollout": {}})
    assert alone.endswith(
        "spec.roles.rollout.gpus: 0, as the job began; a new job would have to say it. Give roles.rollout.gpus to say"
        " which is meant."
    )


def test_sets_of_a_run_that_began_before_they_took_anything_from_training_go_on_so(folder: Path) -> None:
    (folder / "chat.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    template = {"spec.data.applyChatTemplate": True, "spec.data.chatTemplate": {"file": "chat.jinja"}}
    sets = [{"name": "a", "data": {"prompts": "prompts.jsonl"}, "sampling": {"temperature": 0}}]
    evaluation = {"spec.evaluation": {"sets": sets, "everySteps": 1}, "spec.rollout.sampling.maxNewTokens": 9}
    manifest = changed({**template, **evaluation, "spec.model.config.tokenizer": {"kind": "Byte"}})
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    command = ["run", str(folder / "job.yaml"), "--out", str(folder / "out"), "--dry-run"]

    def warned() -> list[str]:
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        return [line.partition(": spec.")[2] for line in done.stderr.splitlines() if "evaluation.sets" in line]

    assert warned() == []
    (folder / "out").mkdir()
    (folder / "out/job.json").write_text(json.dumps(manifest))
    assert warned() == [
        "evaluation.sets[0].data.applyChatTemplate: false, as the job began; a new job would get true, as"
        " spec.data.applyChatTemplate has it. Give evaluation.sets[0].data.applyChatTemplate to say which is meant.",
        "evaluation.sets[0].data.chatTemplate: null, as the job began; a new job would get"
        ' {"kwargs": {}, "tools": [], "file": "chat.jinja"}, as spec.data.chatTemplate has it. Give'
        " evaluation.sets[0].data.chatTemplate to say which is meant.",
        "evaluation.sets[0].sampling.maxNewTokens: 64, as the job began; a new job would get 9, as"
        " spec.rollout.sampling.maxNewTokens has it. Give evaluation.sets[0].sampling.maxNewTokens to say which is"
        " meant.",
    ]
    resolved = CliRunner().invoke(cli, ["render", str(folder / "job.yaml")])
    (folder / "out/job.json").write_text(json.dumps(yaml.safe_load(resolved.stdout)))
    assert warned() == []
