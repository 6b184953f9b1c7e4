"""A folder that is none of a model is answered with the one that was meant, in every field that names one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_cli.checks.findings import Level
from rljob_cli.checks.manifests import examine
from tests.unit.api.manifests import changed

GOOD_LINE = '{"prompt": "12=", "label": "21"}\n'
FIELDS: dict[str, dict[str, Any]] = {
    "spec.model.path": {},
    "spec.model.tokenizerPath": {},
    "spec.roles.critic.modelPath": {"spec.algorithm.advantage": "Gae"},
    "spec.roles.reference.modelPath": {"spec.roles.reference": {}},
}
"""With what else a job needs to have it."""


def a_run(folder: Path) -> str:
    record = folder / "run/checkpoints/2-e1-6a40e020ff79"
    record.mkdir(parents=True)
    (folder / "run/run.json").write_text("{}")
    (folder / "run/checkpoints/latest").symlink_to(record.name)
    return "run"


def checkpoints(folder: Path) -> str:
    return f"{a_run(folder)}/checkpoints"


def a_young_run(folder: Path) -> str:
    (folder / "run/checkpoints").mkdir(parents=True)
    (folder / "run/run.json").write_text("{}")
    return "run"


def an_adapter(folder: Path) -> str:
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text("{}")
    return "adapter"


def of_the_cache(folder: Path) -> str:
    (folder / "models--Qwen--Qwen3-0.6B/snapshots").mkdir(parents=True)
    return "models--Qwen--Qwen3-0.6B"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(
            a_run, "./run is the folder of a run. Give its last checkpoint: ./run/checkpoints/latest.", id="a run"
        ),
        pytest.param(
            checkpoints,
            "./run/checkpoints holds the checkpoints of a run. Give its last checkpoint: ./run/checkpoints/latest.",
            id="its checkpoints",
        ),
        pytest.param(
            a_young_run,
            "./run is the folder of a run that has saved no checkpoint. Give the folder of a model.",
            id="a run without one",
        ),
        pytest.param(
            an_adapter,
            "./adapter holds an adapter and no model. RLJob does not have LoRA and other adapters: all weights are"
            " trained. Merge an adapter into its model before (merge_and_unload of peft)"
            " (docs/coming-from.md#what-there-is-not).",
            id="an adapter",
        ),
        pytest.param(
            of_the_cache,
            "./models--Qwen--Qwen3-0.6B is where the cache of huggingface_hub has all revisions of a model. Give"
            " hf:Qwen/Qwen3-0.6B.",
            id="a folder of the cache",
        ),
        pytest.param(
            lambda _: "Qwen/Qwen3-0.6B",
            " If it is Qwen/Qwen3-0.6B of the Hugging Face hub, give hf:Qwen/Qwen3-0.6B.",
            id="a name of the hub",
        ),
    ],
)
def test_what_was_meant(field: str, make: Callable[[Path], str], expected: str, tmp_path: Path) -> None:
    assert expected in _of_field(field, make(tmp_path), tmp_path)


@pytest.mark.parametrize("path", ["/nowhere/model", "model", "models/Qwen3-4B", "a/b/model", "../../../../nowhere/x y"])
def test_a_path_that_is_no_name_of_the_hub_gets_no_hint(path: str, tmp_path: Path) -> None:
    assert "hub" not in _of_field("spec.model.path", path, tmp_path)


def _of_field(field: str, path: str, folder: Path) -> str:
    """Findings at the field, with the folder written as a dot."""
    (folder / "prompts.jsonl").write_text(GOOD_LINE)
    changes = {**FIELDS[field], field: path} | ({"spec.model": {"path": path}} if field == "spec.model.path" else {})
    (folder / "job.yaml").write_text(yaml.safe_dump(changed(changes)))
    found = examine(folder / "job.yaml").findings.of(Level.PROBLEM)
    (sentence,) = (text for text in found if text.startswith(f"{field}: "))
    return sentence.replace(str(folder), ".")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(
            lambda _: "Qwen/Qwen3-0.6B",
            "./Qwen/Qwen3-0.6B is not a folder. Give the folder of a Hugging Face checkpoint. If it is Qwen/Qwen3-0.6B"
            " of the Hugging Face hub, give hf:Qwen/Qwen3-0.6B.",
            id="a name of the hub",
        ),
        pytest.param(
            a_run, "./run is the folder of a run. Give its last checkpoint: ./run/checkpoints/latest.", id="a run"
        ),
        pytest.param(
            a_young_run,
            "./run is the folder of a run that has saved no checkpoint. Give the folder of a model.",
            id="a run without a checkpoint",
        ),
        pytest.param(
            lambda _: "models/mine",
            "./models/mine is not a folder. Give the folder of a Hugging Face checkpoint.",
            id="nothing",
        ),
        pytest.param(lambda _: ".", None, id="a folder"),
        pytest.param(lambda _: "hf:Qwen/Qwen3-0.6B", None, id="a name of the hub as ours are written"),
    ],
)
def test_a_path_beside_a_config_is_answered_too(
    make: Callable[[Path], str], expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "prompts.jsonl").write_text(GOOD_LINE)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"spec.model.path": make(tmp_path)})))
    both, *found = examine(tmp_path / "job.yaml").findings.problems
    assert both == (
        "spec.model.path: exactly one of path and config must be given. Give path for a checkpoint folder, or config"
        " for random weights, and null for the other."
    )
    assert [text.replace(str(tmp_path), ".") for text in found] == (
        [] if expected is None else [f"spec.model.path: {expected}"]
    )
