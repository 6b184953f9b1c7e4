"""A model by its name on the hub: a whole job out of a filled cache without a network, and the refusal without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rljob_api.spec.model import ModelConfig, ModelSpec, TokenizerConfig
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer

from .job import RunningJob, make_manifest, new_interpreter

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHORT = {"numRollouts": 3}


class AsAUserStartsIt(RunningJob):
    """The environment names a cache before anything has looked for it."""

    begin = staticmethod(new_interpreter)


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and no way to the hub."""
    (tmp_path / "hub").mkdir()
    return {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}


def fill(cache: Path, repo: str, ref: str) -> Path:
    """A tiny model as huggingface_hub lays it out: bytes in blobs, a snapshot of links, a branch that names it."""
    spec = ModelSpec(
        config=ModelConfig(
            hidden_size=32, intermediate_size=64, head_dim=8, tokenizer=TokenizerConfig(alphabet="0123456789=")
        )
    )
    tokenizer = build_tokenizer(spec)
    root = cache / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    save_folder(snapshot, build_config(spec, tokenizer), tokenizer, initial_state(spec, tokenizer))
    (root / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        blob = root / "blobs" / f"{number:040x}"
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, file.parent))
    (root / "refs").mkdir()
    (root / "refs" / ref).write_text(COMMIT)
    return snapshot


@pytest.mark.long
def test_a_job_trains_a_model_of_the_hub_out_of_the_cache(tmp_path: Path, offline: dict[str, str]) -> None:
    snapshot = fill(tmp_path / "hub", "tiny/digits", "v1")
    before = (snapshot / "model.safetensors").read_bytes()
    manifest = make_manifest(tmp_path, rollout=SHORT)
    manifest["spec"]["model"] = {"path": "hf:tiny/digits@v1"}
    with AsAUserStartsIt(tmp_path, manifest, env=offline) as job:
        report = job.assert_succeeded(epochs=1)
        checkpoints = sorted((job.out / "checkpoints").rglob("model*.safetensors"))
        saved = json.loads((checkpoints[0].parent / "config.json").read_bytes())
    assert report.problems == []
    assert saved["hidden_size"] == 32
    assert checkpoints[-1].read_bytes() != before  # it has learned
    assert (snapshot / "model.safetensors").read_bytes() == before  # and the cache is as it was


def test_a_name_that_the_cache_lacks_ends_the_command_with_what_to_download(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    fill(tmp_path / "hub", "tiny/digits", "v1")
    manifest = make_manifest(tmp_path, rollout=SHORT)
    manifest["spec"]["model"] = {"path": "hf:tiny/digits@v2"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    ended = subprocess.run(
        [sys.executable, "-m", "rljob_cli", "run", "job.yaml", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 64
    assert (
        "model.path: hf:tiny/digits@v2 is not in the cache of huggingface_hub on this machine. Where there is a"
        " network, download it: hf download tiny/digits --revision v2."
    ) in " ".join(ended.stderr.split())
    assert not (tmp_path / "out").exists()
