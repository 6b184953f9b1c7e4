"""Names of the hub: found in a cache that a test fills, and what to download where they are not. No network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rljob_api.manifest import absent_hub_names, parse_manifest, resolve_hub_names, resolve_paths
from rljob_api.model_files.hub_names import RepoKind, cached_path
from tests.unit.api.manifests import changed

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache in the place of the user's."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def fill(cache: Path, repo: str, files: dict[str, str], kind: str = "models", ref: str = "main") -> Path:
    """A snapshot of one commit, as huggingface_hub lays it out; gives its folder."""
    root = cache / f"{kind}--{repo.replace('/', '--')}"
    (root / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).write_text(COMMIT)
    folder = root / "snapshots" / COMMIT
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_model_by_branch_tag_and_commit(cache: Path) -> None:
    folder = fill(cache, "Qwen/Qwen3-0.6B", {"config.json": "{}"})
    fill(cache, "Qwen/Qwen3-0.6B", {}, ref="refs/pr/1")
    for name in ("hf:Qwen/Qwen3-0.6B", "@main", f"@{COMMIT}", "@refs%2Fpr%2F1"):
        name = name if name.startswith("hf:") else f"hf:Qwen/Qwen3-0.6B{name}"
        assert cached_path(name, RepoKind.MODEL) == folder, name


def test_files_of_a_data_set(cache: Path) -> None:
    folder = fill(cache, "openai/gsm8k", {"main/train-00000-of-00001.parquet": "PAR1"}, kind="datasets")
    name = "hf:openai/gsm8k/main/train-*.parquet"
    assert cached_path(name, RepoKind.DATASET) == folder / "main/train-*.parquet"
    with pytest.raises(
        ValueError, match=r"gsm8k/main/train-\*\.parquet is not in the cache .*: hf download openai/gsm8k\.$"
    ):
        cached_path(name, RepoKind.MODEL)  # another repository on the hub, though of the same name


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        pytest.param(
            "hf:a/b",
            RepoKind.MODEL,
            "hf:a/b is not in the cache of huggingface_hub on this machine. Where there is a network, download it: hf"
            " download a/b.",
            id="a model",
        ),
        pytest.param(
            "hf:a/b@v2/x.parquet",
            RepoKind.DATASET,
            "hf:a/b@v2/x.parquet is not in the cache of huggingface_hub on this machine. Where there is a network,"
            " download it: hf download a/b --repo-type dataset --revision v2.",
            id="a data set and a revision",
        ),
        pytest.param(
            "hf:Qwen3",
            RepoKind.MODEL,
            "hf:Qwen3 is no name of the hub. Write hf:OWNER/NAME, with @REVISION where you want one.",
            id="no owner",
        ),
        pytest.param(
            "hf:c/whole",
            RepoKind.MODEL,
            "hf:c/whole lacks model-2.safetensors in the cache of huggingface_hub on this machine. Where there is a"
            " network, download it: hf download c/whole.",
            id="a part of its weights",
        ),
        pytest.param(
            "hf:c/whole/sub",
            RepoKind.MODEL,
            "hf:c/whole/sub lacks sub in the cache of huggingface_hub on this machine. Where there is a network,"
            " download it: hf download c/whole.",
            id="no such folder",
        ),
    ],
)
def test_what_is_not_there_is_named_with_the_command(cache: Path, name: str, kind: RepoKind, sentence: str) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    fill(cache, "c/whole", {"model.safetensors.index.json": index, "model-1.safetensors": ""})
    with pytest.raises(ValueError, match=r"^hf:") as refused:
        cached_path(name, kind)
    assert str(refused.value) == sentence


def test_a_manifest_has_the_folders_of_the_cache(cache: Path) -> None:
    model = fill(cache, "o/m", {"config.json": "{}"})
    data = fill(cache, "o/d", {"train.jsonl": "{}"}, kind="datasets")
    changes = {"spec.model": {"path": "hf:o/m"}, "spec.data.prompts": "hf:o/d/train.jsonl"}
    job = parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml")
    for found in (resolve_paths(job, Path("/jobs")), resolve_hub_names(job)):
        assert (found.spec.model.path, found.spec.data.prompts) == (str(model), str(data / "train.jsonl"))
        assert list(absent_hub_names(found)) == []


def test_a_name_that_the_cache_lacks_stays_and_is_named_by_its_field(cache: Path) -> None:
    changes = {
        "spec.model": {"path": "hf:o/m"},
        "spec.data": {"sources": [{"prompts": "a.jsonl"}, {"prompts": "hf:o/d/b"}]},
    }
    job = resolve_paths(parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml"), Path("/jobs"))
    assert job.spec.model.path == "hf:o/m"
    fields = [sentence.split(": ")[0] for sentence in absent_hub_names(job)]
    assert fields == ["model.path", "data.sources[1].prompts"]
