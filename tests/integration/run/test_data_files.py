"""Prompts from Parquet with a template and a system prompt, through a whole job: what the model sees."""

import shutil
from pathlib import Path

import pytest
import yaml

from rljob_api.manifest import load_manifest, resolve_paths
from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob, new_interpreter

EXAMPLE = Path(__file__).parents[3] / "examples" / "grade-school" / "job.yaml"


class AsAUserStartsIt(RunningJob):
    """The environment names a cache before anything has looked for it."""

    begin = staticmethod(new_interpreter)


def cached(folder: Path, file: Path) -> Path:
    """A cache of huggingface_hub with one data set, `school/problems`, of this file."""
    repository = folder / "hub" / "datasets--school--problems"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    shutil.copy(file, repository / "snapshots" / ("0" * 40) / "train-0.parquet")
    return folder / "hub"


def test_problems_of_a_parquet_file_of_the_hub_reach_the_model_as_the_template_has_them(tmp_path: Path) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    job = resolve_paths(load_manifest(EXAMPLE), EXAMPLE.parent)
    data = job.spec.data.model_dump(mode="json", exclude_unset=True)
    manifest["spec"]["data"] = {**data, "prompts": "hf:school/problems@main/train-*.parquet"}
    manifest["spec"]["telemetry"] = {"sampleLog": True, "generationsPerRollout": 32}
    cache = cached(tmp_path, EXAMPLE.with_name("problems.parquet"))
    with AsAUserStartsIt(tmp_path, manifest, env={"HF_HUB_CACHE": str(cache)}) as running:
        running.assert_succeeded()
        samples, steps = read_generations(running.out), running.metrics()
    assert len(samples) == 64
    for step in steps:  # of two rewards, each in the metrics by its name
        assert step["reward/mean"] == pytest.approx(step["reward/right"] + 0.1 * step["reward/boxed"], abs=1e-6)
    system = "<|system|>\nReason step by step. End with the number in \\boxed{}.\n<|user|>\n"
    assert all(sample["prompt"].startswith(system) for sample in samples)
    assert all(sample["prompt"].endswith("<|assistant|>\n<think></think>\n") for sample in samples)
    assert len({sample["prompt"] for sample in samples}) == 16
