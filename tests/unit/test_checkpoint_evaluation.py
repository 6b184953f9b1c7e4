"""What a checkpoint is evaluated with: the list of samples, and the weights of a folder."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import EngineKind, Lineage, WeightVersion
from rljob_api.spec import RLJob
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.evaluated import find_weights, first_difference, require_model, verify_weights
from rljob_workers.dcs.errors import CheckpointDamaged
from rljob_workers.evaluation import SampleResult
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.rollout.checkpoint_evaluation import SampleList
from rljob_workers.transfer_queue.types import EvaluationWaits
from tests.records import NAME, SPEC, made_files, made_weights, make_record
from tests.unit.api.manifests import changed

WEIGHT = WeightId(lineage=Lineage(0), version=WeightVersion(0))


def result(number: int) -> bytes:
    return SampleResult("held", number, "x", 1.0, 3, truncated=False).dump()


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=60))
def test_each_sample_is_had_by_one_at_a_time_and_none_is_lost(num_samples: int, turns: list[tuple[int, bool]]) -> None:
    work = SampleList()
    scored: set[int] = set()

    def claim(limit: int) -> list[int]:
        answer = work.claim(WEIGHT, "", num_samples, limit, ())
        return [] if isinstance(answer, EvaluationWaits) else answer

    for limit, is_scored in turns:
        numbers = claim(limit)
        assert len(numbers) <= limit
        assert scored.isdisjoint(numbers)
        if is_scored:
            assert work.put(WEIGHT.version, {number: result(number) for number in numbers}) == len(numbers)
            scored.update(numbers)
        else:
            work.hand_back(numbers)
    while numbers := claim(7):
        work.put(WEIGHT.version, {number: result(number) for number in numbers})
    assert sorted(work.results) == list(range(num_samples))
    assert work.claim(WEIGHT, "", num_samples, 1, ()) is EvaluationWaits.OVER


def test_what_others_have_is_waited_for_and_the_first_result_counts() -> None:
    work = SampleList()
    assert work.claim(WEIGHT, "", 1, 5, ()) == [0]
    assert work.claim(WEIGHT, "", 1, 5, ()) is EvaluationWaits.TAKEN
    assert work.put(WEIGHT.version, {0: result(0)}) == 1
    assert work.put(WEIGHT.version, {0: result(7)}) == 0
    assert work.results[0].prompt == 0


def exported(folder: Path) -> Path:
    """A Hugging Face folder, which knows nothing of records."""
    record = make_record(folder / "records", made_weights(), [])
    to = folder / "policy"
    to.mkdir()
    for path in record.iterdir():
        if path.suffix == ".safetensors" or path.name in {"model.safetensors.index.json", *made_files()}:
            shutil.copyfile(path, to / path.name)
    return to


def test_a_record_the_latest_one_and_an_exported_folder_have_weights(tmp_path: Path) -> None:
    to, record = exported(tmp_path), tmp_path / "records" / NAME
    by_folder = {folder: find_weights(folder) for folder in (record, record.parent, to)}
    assert [(found.folder, found.version) for found, _ in by_folder.values()] == [(record, 4), (record, 4), (to, None)]
    for found, named in by_folder.values():
        assert [file.name for file in found.files] == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]
        assert (named is None) == (found.folder == to)


def test_only_the_weights_are_linked(tmp_path: Path) -> None:
    weights, _ = find_weights(exported(tmp_path))
    (weights.folder / "actor-0.safetensors").write_bytes(b"state")
    weights.link_in(tmp_path / "linked")
    names = sorted(path.name for path in (tmp_path / "linked").iterdir())
    assert names == sorted([*(file.name for file in weights.files), "model.safetensors.index.json"])


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--checkpoint: .* has no record of a checkpoint: nothing was saved there"):
        find_weights(tmp_path)
    partial = tmp_path / ".partial-4-e1-0123456789ab"
    shutil.copytree(exported(tmp_path), partial)
    with pytest.raises(ValueError, match=r"^--checkpoint: .* is no record: it is still being written"):
        find_weights(partial)
    to = tmp_path / "policy"
    (to / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"^--checkpoint: .* lacks model-00002-of-00002.safetensors"):
        find_weights(to)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    record = make_record(tmp_path, made_weights(), [])
    weights, found = find_weights(record)
    assert found is not None
    verify_weights(weights, found)
    damaged = bytearray(weights.files[1].read_bytes())
    damaged[-1] ^= 1
    weights.files[1].write_bytes(damaged)
    with pytest.raises(CheckpointDamaged, match=r"is damaged: .*model-00002-of-00002.safetensors has checksum"):
        verify_weights(weights, found)


def test_weights_of_another_model_are_refused_by_the_first_field_that_differs(tmp_path: Path) -> None:
    weights, _ = find_weights(make_record(tmp_path, made_weights(), []))
    tokenizer = build_tokenizer(SPEC)
    job = RLJob.model_validate(changed({})).spec.model_copy(update={"model": SPEC})
    assert job.roles.rollout.engine.kind is EngineKind.TORCH
    require_model(weights, job, tokenizer)
    assert SPEC.config is not None
    wider = {"config": SPEC.config.model_copy(update={"hidden_size": 64})}
    other = job.model_copy(update={"model": SPEC.model_copy(update=wider)})
    with pytest.raises(ValueError, match=r"its hidden_size is 32, and spec.model has 64"):
        require_model(weights, other, tokenizer)
    config = json.loads((weights.folder / "config.json").read_bytes())
    (weights.folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(ValueError, match="do not fit: tensor"):  # its config lies
        require_model(weights, other, tokenizer)


@pytest.mark.parametrize(
    ("theirs", "ours", "different"),
    [
        pytest.param({"hidden_size": 1}, {"hidden_size": 1}, None, id="the same"),
        pytest.param({"head_dim": None}, {"head_dim": 8}, None, id="one does not say it"),
        pytest.param({"rope_theta": 1}, {"rope_theta": 2}, None, id="no size"),
        pytest.param({"head_dim": 1, "vocab_size": 1}, {"head_dim": 2, "vocab_size": 2}, "head_dim", id="the first"),
    ],
)
def test_sizes_and_family_make_another_model(
    theirs: dict[str, object], ours: dict[str, object], different: str | None
) -> None:
    assert first_difference(theirs, ours) == different
