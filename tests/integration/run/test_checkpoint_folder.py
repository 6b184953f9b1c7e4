"""A checkpoint is a Hugging Face folder: transformers loads it, and so does another job's `model.path`."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_api.spec.model import ModelSpec
from rljob_workers.models.blob import read_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer

from .job import RunningJob, make_manifest


def test_transformers_loads_what_was_trained(tmp_path: Path) -> None:
    checkpoint = {"everySteps": 2, "keep": 1, "keepEvery": 3}
    with RunningJob(tmp_path, make_manifest(tmp_path, rollout={"numRollouts": 4}, checkpoint=checkpoint)) as job:
        job.assert_succeeded()
        assert {path.name.partition("-")[0] for path in (job.out / "checkpoints").glob("*-e*")} == {"3", "4"}
        (folder,) = (job.out / "checkpoints").glob("4-e*")
    weights = read_blob(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in weights.items())
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    assert tokenizer.decode(tokenizer.encode("12=")) == "12="
    spec = ModelSpec(path=str(folder))
    again = initial_state(spec, build_tokenizer(spec))
    assert {name: tensor.shape for name, tensor in again.items()} == {name: t.shape for name, t in weights.items()}
