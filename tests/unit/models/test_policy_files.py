"""Files beside a policy's weights, and those that an engine is started with: the same tokens end an answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Dtype, ModelConfig, ModelSpec
from rljob_workers.engines.sglang.model_folder import write_model_folder
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.ends import ends_of_model
from rljob_workers.models.policy_files import policy_files
from rljob_workers.models.saved_templates import saved_template
from rljob_workers.models.tokenizers import build_tokenizer
from tests.unit.api.manifests import changed

MADE = ModelSpec(config=ModelConfig.model_validate({"tokenizer": {"alphabet": "0123456789="}}))
EOS = 11


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 13 tokens, of which the twelfth ends a sequence."""
    tokenizer = build_tokenizer(MADE)
    save_folder(tmp_path / "base", build_config(MADE, tokenizer), tokenizer, initial_state(MADE, tokenizer))
    return tmp_path / "base"


def job(**changes: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(changed({f"spec.{path}": value for path, value in changes.items()})["spec"])


def job_of(folder: Path, **sampling: Any) -> RLJobSpec:
    return job(model={"path": str(folder)}, rollout={**changed({})["spec"]["rollout"], "sampling": sampling})


def saved(spec: RLJobSpec, to: Path) -> Path:
    to.mkdir()
    tokenizer = build_tokenizer(spec.model)
    for name, content in policy_files(spec, tokenizer, saved_template(spec.data, tokenizer)).items():
        (to / name).write_bytes(content)
    return to


def test_what_a_folder_had_is_saved_with_the_jobs_dtype_and_all_of_its_ends(folder: Path, tmp_path: Path) -> None:
    described = json.loads((folder / "config.json").read_bytes())
    foreign = {**described, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(foreign))
    (folder / "generation_config.json").write_bytes(b'{"top_p": 0.9, "eos_token_id": [10, 3]}')
    spec = job_of(folder, stopTokenIds=[4])
    to = saved(
        spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": Dtype.BFLOAT16})}), tmp_path / "to"
    )
    del foreign["torch_dtype"]
    assert json.loads((to / "config.json").read_bytes()) == {**foreign, "dtype": "bfloat16"}
    assert json.loads((to / "generation_config.json").read_bytes()) == {"top_p": 0.9, "eos_token_id": [3, 4, 10, EOS]}
    read = GenerationConfig.from_pretrained(to)
    assert (read.eos_token_id, read.top_p) == ([3, 4, 10, EOS], 0.9)


def test_a_made_model_states_where_it_ends(tmp_path: Path) -> None:
    to = saved(job(model={"config": MADE.config}), tmp_path / "to")
    assert GenerationConfig.from_pretrained(to).eos_token_id == EOS


def test_an_engine_reads_the_ends_and_no_default_of_sampling(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.01, "repetition_penalty": 1.9, "eos_token_id": 10}'
    )
    model = ModelSpec(path=str(folder))
    write_model_folder(tmp_path / "engine", model)
    found = json.loads((tmp_path / "engine" / "generation_config.json").read_bytes())
    assert found == {"eos_token_id": [10, EOS]}
    assert set(found["eos_token_id"]) == ends_of_model(model, build_tokenizer(model))


def test_an_added_token_that_sglang_always_ends_at_ends_with_every_engine(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    tokenizer.add_tokens(["<|eom_id|>"], special_tokens=True)
    tokenizer.save_pretrained(str(folder))
    described = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**described, "vocab_size": len(tokenizer)}))
    model = ModelSpec(path=str(folder))
    assert ends_of_model(model, build_tokenizer(model)) == {EOS, tokenizer.convert_tokens_to_ids("<|eom_id|>")}
