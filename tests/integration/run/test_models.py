"""Models that are read from a folder: one that gives no numbers ends the job with a sentence, not in a silent loop."""

from pathlib import Path

import pytest

from rljob_api.spec.model import ModelConfig, ModelSpec, TokenizerConfig
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer
from tests.integration.run.job import RunningJob, make_manifest


def save_model(folder: Path, *, factor: float) -> Path:
    """A Hugging Face folder with random weights times `factor`."""
    spec = ModelSpec(config=ModelConfig(tokenizer=TokenizerConfig(alphabet="0123456789=")))
    tokenizer = build_tokenizer(spec)
    state = {name: tensor * factor for name, tensor in initial_state(spec, tokenizer).items()}
    save_folder(folder, build_config(spec, tokenizer), tokenizer, state)
    return folder


def test_a_job_trains_a_model_from_a_folder(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 3})
    manifest["spec"]["model"] = {"path": str(save_model(tmp_path / "model", factor=1.0))}
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()


@pytest.mark.long
def test_an_engine_that_only_refuses_ends_the_job_with_its_sentence(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, restartPolicy={"maxGlobalRestarts": 0})
    manifest["spec"]["model"] = {"path": str(save_model(tmp_path / "model", factor=float("nan")))}
    with RunningJob(tmp_path, manifest) as job:
        assert job.finish() == 1
        assert "The model's logits are not finite under weights v0" in job.status()["conditions"][-1]["message"]
        job.wait_gone()
