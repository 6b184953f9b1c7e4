"""Prompts from Parquet with a template and a system prompt, through a whole job: what the model sees."""

from pathlib import Path

import yaml

from rljob_api.manifest import load_manifest, resolve_paths
from rljob_cli.jobs.sample_log import read_generations

from .job import RunningJob

EXAMPLE = Path(__file__).parents[3] / "examples" / "grade-school" / "job.yaml"


def test_word_problems_of_a_parquet_file_reach_the_model_as_the_template_has_them(tmp_path: Path) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    job = resolve_paths(load_manifest(EXAMPLE), EXAMPLE.parent)
    manifest["spec"]["data"] = job.spec.data.model_dump(mode="json", exclude_unset=True)
    manifest["spec"]["rollout"]["reward"] = job.spec.rollout.reward.model_dump(mode="json", exclude_unset=True)
    manifest["spec"]["telemetry"] = {"sampleLog": True, "generationsPerRollout": 32}
    with RunningJob(tmp_path, manifest) as running:
        running.assert_succeeded()
        samples = read_generations(running.out)
    assert len(samples) == 64
    system = "<|system|>\nReason step by step. End with the number in \\boxed{}.\n<|user|>\n"
    assert all(sample["prompt"].startswith(system) for sample in samples)
    assert all(sample["prompt"].endswith("<|assistant|>\n<think></think>\n") for sample in samples)
    assert any("Maya sold 52 cookies" in sample["prompt"] for sample in samples) or len(
        {sample["prompt"] for sample in samples}
    ) == 16
