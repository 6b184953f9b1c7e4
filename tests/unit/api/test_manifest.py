"""Manifests in and out: examples, rendering, paths, and YAML as kubectl reads it."""

from pathlib import Path

import pytest
import yaml

from rljob_api.manifest import ManifestError, load_manifest, parse_manifest, render_manifest, resolve_paths
from tests.unit.api.manifests import changed

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_read(path: Path) -> None:
    assert load_manifest(path).spec.rollout.num_rollouts > 0


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"quickstart.yaml", "reasoning-gym.yaml", "cluster.yaml", "job.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_rendered_manifest_is_the_same_job(path: Path) -> None:
    job = load_manifest(path)
    assert parse_manifest(render_manifest(job), "rendered") == job


def test_defaults_are_filled_in_where_nothing_was_written() -> None:
    rendered = yaml.safe_load(render_manifest(parse_manifest(yaml.safe_dump(changed({})), "job.yaml")))
    assert rendered["spec"]["rollout"]["maxStaleness"] == 1
    assert rendered["spec"]["roles"]["rollout"] == {
        "replicas": 1,
        "ranksPerPod": None,
        "threads": 1,
        "gpus": 0,
        "gpuResource": "nvidia.com/gpu",
        "deviceClass": None,
        "shareDevicesWith": None,
        "resources": {"requests": {}, "limits": {}},
        "template": {},
        "engine": {
            "kind": "Torch",
            "args": [],
            "env": {},
            "python": None,
            "startupTimeoutSeconds": None,
            "tensorParallel": 1,
        },
        "autoscaling": None,
    }


def test_a_null_where_a_default_stands_is_as_if_it_were_not_there() -> None:
    # As the API server has it; where null means something (data.labelKey) it stays.
    changes = {"spec.training.optimizer": None, "spec.seed": None, "spec.restartPolicy": {"failureRules": None}}
    nulls = changed({**changes, "spec.roles.rollout": {"replicas": None}})
    assert parse_manifest(yaml.safe_dump(nulls), "job.yaml") == parse_manifest(yaml.safe_dump(changed({})), "job.yaml")


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    # kubectl turns YAML into JSON, where 32.0 is 32.
    job = parse_manifest(yaml.safe_dump(changed({"spec.rollout.batchSize": 32.0})), "job.yaml")
    assert job.spec.rollout.batch_size == 32


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.e-6", "0.000001", "1.0e-06"])
def test_a_learning_rate_may_be_written_as_people_write_it(text: str) -> None:
    manifest = yaml.safe_dump(changed({})).replace("training:", f"training:\n    optimizer: {{learningRate: {text}}}")
    assert parse_manifest(manifest, "job.yaml").spec.training.optimizer.learning_rate == 1e-6


def test_what_looks_like_a_date_is_text() -> None:
    manifest = yaml.safe_dump(changed({})).replace("prompts.jsonl", "2026-01-01")
    assert parse_manifest(manifest, "job.yaml").spec.data.prompts == "2026-01-01"


def test_paths_are_relative_to_the_manifest() -> None:
    changes = {
        "spec.model": {"path": "model", "tokenizerPath": "../tokenizer"},
        "spec.data.prompts": "/data/prompts.jsonl",
        "spec.rollout.reward": {"custom": {"function": "a:b", "path": "."}},
        "spec.rollout.dynamicSampling": {"filter": "a:c", "path": "filters"},
        "spec.rollout.curriculum": {"function": "a:d", "path": "../lessons"},
        "spec.checkpoint": {"path": "saved"},
    }
    spec = resolve_paths(parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml"), Path("/jobs/demo")).spec
    assert spec.model.path == "/jobs/demo/model"
    assert spec.model.tokenizer_path == "/jobs/tokenizer"
    assert spec.data.prompts == "/data/prompts.jsonl"
    assert spec.rollout.reward.custom is not None
    assert spec.rollout.reward.custom.path == "/jobs/demo"
    assert spec.rollout.dynamic_sampling is not None
    assert spec.rollout.dynamic_sampling.path == "/jobs/demo/filters"
    assert spec.rollout.curriculum is not None
    assert spec.rollout.curriculum.path == "/jobs/lessons"
    assert spec.checkpoint.path == "saved"  # relative to the run folder, which is not known yet


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as refused:
        load_manifest(tmp_path / "job.yaml")
    assert refused.value.problems == (
        f"{tmp_path}/job.yaml: cannot be read (No such file or directory). Give the path of a manifest.",
    )


def test_a_manifest_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ManifestError, match=r"job\.yaml: has a byte that is not UTF-8 \(number 3\)\. Save it"):
        load_manifest(tmp_path / "job.yaml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_manifest_may_have_a_mark_and_no_other_encoding(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"metadata.name": "named"})), encoding=encoding)
    if encoding.startswith("utf-8"):
        assert load_manifest(tmp_path / "job.yaml").metadata.name == "named"
        return
    with pytest.raises(ManifestError, match=r"job\.yaml: is UTF-16 or UTF-32\. Save it as UTF-8, or convert it: iconv"):
        load_manifest(tmp_path / "job.yaml")
