"""Records of a real job, of two backends: shown, exported as transformers loads them, exactly as they were trained."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rljob_cli.main import cli
from tests.integration.run.job import RunningJob, make_manifest
from tests.integration.run.test_models import save_model

PAGE = Path(__file__).parents[3] / "docs/running.md"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def run_page() -> dict[str, str]:
    """What each command of the page prints, by the folder that it makes; that of `show` has no name."""
    shown = re.findall(r"^\$ rljob checkpoint (.*)$", PAGE.read_text(), re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in shown]
    return {
        (arguments[arguments.index("--to") + 1] if "--to" in arguments else ""): run(*arguments)
        for arguments in commands
    }


def exact_weights(folder: Path, role: str) -> dict[str, torch.Tensor]:
    """What all ranks of a role have written of their float32 weights, put together by hand."""
    whole: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob(f"{role}-*.safetensors")):
        places = json.loads(file.with_suffix(".json").read_bytes())["slices"]
        for key, values in load_file(file).items():
            kind, _, name = key.partition("/")
            if kind == "parameter":
                name = name.partition("@")[0]
                target = whole.setdefault(name, torch.full(places[key]["shape"], float("nan")))
                target[tuple(slice(at, at + size) for at, size in zip(places[key]["offset"], values.shape))] = values  # noqa: B905 - of one length
    return whole


def test_what_was_trained_is_shown_and_exported_by_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor is Fsdp's, of two ranks; the critic is Flat's. Both publish bfloat16 and train float32."""
    roles = {"actor": {"backend": "Fsdp", "ranksPerPod": 2}, "critic": {"backend": "Flat"}, "actorFwd": {}}
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 2}, roles=roles, algorithm={"advantage": "Gae"})
    manifest["spec"]["model"] = {"path": str(save_model(tmp_path / "model", factor=1.0)), "dtype": "bfloat16"}
    # Returns that are not 0, so that the critic's head moves in the first step, and what is below it in the second.
    (tmp_path / "lengths.py").write_text(
        "def score(answers, /):\n    return [1 + len(one.response) for one in answers]\n"
    )
    manifest["spec"]["rollout"]["reward"] = {"custom": {"function": "lengths:score", "path": str(tmp_path)}}
    manifest["spec"]["data"] |= {"applyChatTemplate": True, "systemPrompt": "0="}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
    report = json.loads(run("show", job.out, "--output", "json"))
    assert (report["job"], report["version"], report["isIntact"], report["isRecorded"]) == ("test", 2, True, True)
    actor, critic = report["roles"]
    assert (actor["role"], actor["state"]["ranks"], actor["state"]["optimizerSteps"]) == ("actor", 2, 2)
    assert (critic["role"], critic["state"]["ranks"], critic["state"]["optimizerSteps"]) == ("critic", 1, 2)
    for role in (actor, critic):
        assert list(role["model"]["dtypes"]) == ["bfloat16"]
        kinds = {kind["kind"]: kind["bytes"] for kind in role["state"]["kinds"]}
        assert kinds["parameter"] == kinds["exp_avg"] == kinds["exp_avg_sq"] == 4 * role["model"]["parameters"]
    record = Path(report["folder"])
    (tmp_path / "rljob-out").mkdir()
    (tmp_path / "rljob-out/job").symlink_to(job.out)
    monkeypatch.chdir(tmp_path)
    printed = run_page()
    assert printed.keys() == {"", "policy", "exact", "values"}
    assert "state of 2 ranks after 2 optimizer steps" in printed[""]
    assert "as they were published" in printed["policy"]
    assert AutoModelForCausalLM.from_pretrained("policy").dtype is torch.bfloat16
    text = torch.tensor([AutoTokenizer.from_pretrained("policy").encode("12=12")])
    for folder in ("policy", "exact", "values"):
        asked = AutoTokenizer.from_pretrained(folder).apply_chat_template(
            [{"role": "user", "content": "1="}], tokenize=False, add_generation_prompt=True
        )
        assert asked == "0=<|eos|>1=", "the system's prompt of the job goes before"
    [snippet] = re.findall(r"^```python\n(from transformers .*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(snippet, {})
    made: dict[str, tuple[str, Any]] = {
        "actor": ("exact", AutoModelForCausalLM),
        "critic": ("values", AutoModelForSequenceClassification),
    }
    for role, (folder, model) in made.items():
        place = record / ("" if role == "actor" else role)
        weights = exact_weights(place, role)
        assert f"  tensors    {len(weights)} of the exact weights in the state\n" in printed[folder]
        loaded = model.from_pretrained(folder)
        found = loaded.state_dict()
        assert loaded.dtype is torch.float32
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
        plain = model.from_config(loaded.config).eval()
        missing, unexpected = plain.load_state_dict(weights, strict=False)
        assert (set(missing) - {"lm_head.weight"}, unexpected) == (set(), [])
        published = model.from_pretrained(place, dtype=torch.float32)
        with torch.no_grad():
            states = [one.model(text).last_hidden_state for one in (loaded, plain, published)]
            outputs = [one(text).logits for one in (loaded, plain)]
        assert torch.equal(states[0], states[1])
        assert not torch.equal(states[0], states[2]), "rounded weights would not be seen"
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0].log_softmax(-1), outputs[1].log_softmax(-1))
        rounded = load_file(place / "model.safetensors") if (place / "model.safetensors").exists() else {}
        for file in place.glob("model-*.safetensors"):
            rounded |= load_file(file)
        assert all(torch.equal(tensor.to(torch.bfloat16), rounded[name]) for name, tensor in weights.items())
