"""The reference's own folder: what of it is taken, what is refused, and that its log-probs are its model's."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.names import Lineage, Role, Stream
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import ModelSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.scoring.teacher import Teacher
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model
from rljob_workers.trainers.data_parallel import SingleRank
from tests.unit.api.manifests import changed

TOKENIZER = {"kind": "Character", "alphabet": "0123456789="}
LARGER = ModelSpec.model_validate({"config": {"hiddenSize": 48, "numLayers": 3, "tokenizer": TOKENIZER, "seed": 5}})


def save(folder: Path, model: ModelSpec) -> Path:
    tokenizer = build_tokenizer(model)
    save_folder(folder, build_config(model, tokenizer), tokenizer, initial_state(model, tokenizer))
    return folder


def spec(folder: Path, changes: dict[str, Any] | None = None) -> RLJobSpec:
    """A job whose policy is not of a folder."""
    reference = {"spec.roles.reference": {"modelPath": str(folder)}}
    return RLJobSpec.model_validate(changed({**reference, **(changes or {})})["spec"])


@pytest.mark.parametrize("backend", [None, "Fsdp"])
def test_its_log_probs_are_those_of_its_own_model(tmp_path: Path, backend: str | None) -> None:
    """By the backend of the policy, which would be another one for a model of a folder."""
    job = spec(save(tmp_path / "teacher", LARGER), {"spec.roles.actor": {"backend": backend}})
    teacher = Teacher.of(job)
    assert teacher is not None
    assert teacher.spec.trainer_backend is job.trainer_backend
    assert job.roles.reference == teacher.spec.roles.reference
    given = teacher.receiver(Lineage(3)).await_newer(Stream.REFERENCE, None, deadline=time.monotonic())
    assert given is not None
    assert (given.id.lineage, given.id.version) == (3, 0), "version 0 is alive in every lineage"
    tokens = Jagged.from_rows([torch.tensor([1, 2, 10, 2, 1, 11], dtype=torch.int32)])
    lengths = torch.tensor([3])
    tokenizer = build_tokenizer(job.model)
    model = teacher.model(tokenizer, Role.REFERENCE, SingleRank())
    model.load(given.source)
    found = model.score(tokens, lengths, Output.LOG_PROBS, 1.0).values
    own = build_forward_model(job.model_copy(update={"model": LARGER}), tokenizer, Role.ACTOR_FWD, SingleRank())
    own.load(Folder(tmp_path / "teacher" / "model.safetensors"))
    torch.testing.assert_close(found, own.score(tokens, lengths, Output.LOG_PROBS, 1.0).values)


def test_its_weights_come_once(tmp_path: Path) -> None:
    teacher = Teacher.of(spec(save(tmp_path / "teacher", LARGER)))
    assert teacher is not None
    receiver = teacher.receiver(Lineage(1))
    given = receiver.await_newer(Stream.REFERENCE, None, deadline=0)
    assert given is not None
    assert given.source == Folder(tmp_path / "teacher")
    assert receiver.await_newer(Stream.REFERENCE, given.id, deadline=0) is None
    receiver.close()
    assert (tmp_path / "teacher" / "model.safetensors").exists()


def test_a_reference_without_a_folder_is_no_teacher() -> None:
    for changes in ({}, {"spec.roles.reference": None, "spec.algorithm.kl.coefficient": 0}):
        assert Teacher.of(RLJobSpec.model_validate(changed(changes)["spec"])) is None


def test_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    other = {**TOKENIZER, "alphabet": "0123456789+"}
    model = ModelSpec.model_validate({"config": {"tokenizer": other}})
    job = spec(save(tmp_path / "teacher", model))
    with pytest.raises(ValueError, match=r"^roles\.reference\.modelPath: .* the id 10 is '\+' there, but '=' to the"):
        Teacher.of(job)
    (tmp_path / "teacher" / "tokenizer.json").unlink()
    assert Teacher.of(job) is not None, "its files do not say, and it has as many ids"
    config = json.loads((tmp_path / "teacher" / "config.json").read_bytes())
    (tmp_path / "teacher" / "config.json").write_text(json.dumps({**config, "vocab_size": 14}))
    with pytest.raises(ValueError, match=r"has a vocabulary of 14 tokens, and the policy one of 13"):
        Teacher.of(job)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = spec(save(tmp_path / "teacher", LARGER))
    shutil.rmtree(tmp_path / "teacher")
    with pytest.raises(ValueError, match=rf"^roles\.reference\.modelPath: {tmp_path}/teacher has neither"):
        Teacher.of(job)


def test_a_family_that_is_not_computed_is_named_by_the_field_of_the_teacher(tmp_path: Path) -> None:
    """On a cluster no command has read its folder before."""
    file = save(tmp_path / "teacher", LARGER) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "model_type": "gpt2"}))
    job = spec(tmp_path / "teacher")
    teacher = Teacher.of(job)
    assert teacher is not None
    with pytest.raises(ValueError, match=r"^roles\.reference\.modelPath: its config\.json has model_type 'gpt2'"):
        teacher.model(build_tokenizer(job.model), Role.REFERENCE, SingleRank())
