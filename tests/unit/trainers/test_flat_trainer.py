"""Training: equal however a batch is cut, exact on resume, and nothing trained where something does not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import part_file, write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.slices import EXP_AVG, PARAMETER, state_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model, build_trainer
from rljob_workers.trainers.base import ForwardModel, OptimizerStepResult, Trainer, TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from tests.near import BACKWARD, FORWARD, assert_moved_alike, assert_near
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, make_spec, select_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With version 0 of every model that a test makes of the default spec."""
    write_version_0(make_spec(), tmp_path / "v0.safetensors")
    return tmp_path


def write_version_0(spec: RLJobSpec, blob: Path) -> None:
    write_blob(blob, initial_state(spec.model, build_tokenizer(spec.model)))


def make_trainer(folder: Path, spec: RLJobSpec | None = None) -> Trainer:
    spec = spec or make_spec()
    trainer = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    trainer.load(Folder(folder / "v0.safetensors"))
    return trainer


def make_forward(folder: Path) -> ForwardModel:
    spec = make_spec()
    forward = build_forward_model(spec, build_tokenizer(spec.model), Role.ACTOR_FWD, SingleRank())
    forward.load(Folder(folder / "v0.safetensors"))
    return forward


def train(trainer: Trainer, *batches: TrainRows) -> OptimizerStepResult:
    for rows in batches:
        trainer.accumulate(rows)
    return trainer.optimizer_step()


def save(trainer: Trainer, folder: Path) -> None:
    """As the checkpoint store does on a single rank."""
    folder.mkdir()
    write_blob(folder / "model.safetensors", trainer.stage_weights())
    state = trainer.stage_state()
    tensors, description = state_files("actor", 0)
    write_blob(folder / tensors, state.tensors())
    (folder / description).write_bytes(state.description())


def moments(trainer: Trainer, kind: str) -> dict[str, torch.Tensor]:
    return {one.name: one.values for one in trainer.stage_state().slices if one.kind == kind}


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


def test_long_work_gives_a_pulse_after_every_micro_batch(tmp_path: Path) -> None:
    spec = make_spec(micro_batch_size=4)
    write_version_0(spec, tmp_path / "v0.safetensors")
    rows, signs = make_rows(0), []
    trainer = make_trainer(tmp_path, spec)
    trainer.accumulate(rows, lambda: signs.append("accumulate"))
    for model in (trainer, build_forward_model(spec, build_tokenizer(spec.model), Role.ACTOR_FWD, SingleRank())):
        model.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0, lambda: signs.append("log_probs"))
    assert signs == ["accumulate"] * 4 + ["log_probs"] * 8


def test_actor_fwd_and_actor_agree_bit_for_bit_on_the_same_rows(folder: Path) -> None:
    rows = make_rows(1, longest=50)
    args = (rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3)
    assert torch.equal(make_trainer(folder).score(*args).values, make_forward(folder).score(*args).values)


def test_an_output_that_a_model_does_not_give_is_refused_in_one_sentence(folder: Path) -> None:
    rows = make_rows(1)
    for model in (make_trainer(folder), make_forward(folder)):
        with pytest.raises(ValueError, match=r"^values: this model computes log_probs.* only\. Ask one that has"):
            model.score(rows.tokens, rows.response_lengths, Output.VALUES, 1.0)


def test_log_probs_do_not_depend_on_the_packing(folder: Path) -> None:
    rows = make_rows(1, longest=50)
    forward = make_forward(folder)
    together = forward.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0)
    order = list(reversed(range(len(rows.tokens))))
    for start in range(0, len(order), 3):
        part = select_rows(rows, order[start : start + 3])
        alone = forward.score(part.tokens, part.response_lengths, Output.LOG_PROBS, 1.0)
        expected = together.select(order[start : start + 3])
        assert_near(alone.values, expected.values, FORWARD, "log-probs")
        assert alone.lengths.tolist() == part.response_lengths.tolist()


@pytest.mark.parametrize("aggregation", ["TokenMean", "SequenceMean"])
def test_a_step_does_not_depend_on_how_the_batch_is_cut(folder: Path, aggregation: str) -> None:
    rows = make_rows(5)
    whole = make_trainer(folder, make_spec(aggregation=aggregation))
    cut = make_trainer(folder, make_spec(aggregation=aggregation, micro_batch_size=4))
    before = whole.stage_weights()
    expected = train(whole, rows)
    got = train(cut, select_rows(rows, list(range(5))), select_rows(rows, list(range(5, 16))))
    assert got.loss == pytest.approx(expected.loss, abs=1e-5)
    assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert got.metrics == pytest.approx(dict(expected.metrics), abs=1e-5)
    # After one step this is a tenth of the gradient: linear in it, where the step itself is not.
    found, wanted = (torch.cat([one.flatten() for one in moments(each, EXP_AVG).values()]) for each in (cut, whole))
    assert_near(found, wanted, BACKWARD)
    for name, weight in whole.stage_weights().items():
        assert_moved_alike(cut.stage_weights()[name], weight, before[name], 1e-2, name)


def test_training_moves_log_probs_along_the_advantages(folder: Path) -> None:
    rows = make_rows(6)
    trainer = make_trainer(folder)
    before = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0).values
    for _ in range(6):
        train(trainer, rows)
    moved = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0).values - before
    counted = rows.columns[Column.LOSS_MASKS].values > 0
    assert float((moved * rows.columns[Column.ADVANTAGES].values)[counted].mean()) > 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_bitwise(tmp_path: Path, dtype: str) -> None:
    spec = make_spec(dtype=dtype)
    write_version_0(spec, tmp_path / "v0.safetensors")
    straight, first = make_trainer(tmp_path, spec), make_trainer(tmp_path, spec)
    for seed in range(3):
        train(straight, make_rows(seed))
        train(first, make_rows(seed))
    save(first, tmp_path / "checkpoint")
    second = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    second.accumulate(make_rows(99))  # a gradient that the restore must drop
    second.restore(tmp_path / "checkpoint")
    for seed in range(3, 6):
        assert train(straight, make_rows(seed)) == train(second, make_rows(seed))
    assert_same(straight.stage_weights(), second.stage_weights())
    assert_same(straight.stage_state().tensors(), second.stage_state().tensors())
    assert straight.stage_state().values == second.stage_state().values == {"optimizer.steps": 6}


def test_random_state_resumes(folder: Path) -> None:
    trainer = make_trainer(folder)
    torch.manual_seed(11)
    save(trainer, folder / "checkpoint")
    expected = torch.rand(3)
    torch.manual_seed(12)
    trainer.restore(folder / "checkpoint")
    assert torch.equal(torch.rand(3), expected)


def test_staged_copies_are_not_touched_by_later_training(folder: Path) -> None:
    trainer = make_trainer(folder)
    weights, state = trainer.stage_weights(), trainer.stage_state()
    retained = {name: tensor.clone() for name, tensor in weights.items()}
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    train(trainer, make_rows(1))
    assert_same(weights, retained)
    assert_same(state.tensors(), before)
    assert not torch.equal(trainer.stage_weights()["model.norm.weight"], retained["model.norm.weight"])


def test_staged_weights_are_those_that_a_forward_model_gets_back(folder: Path) -> None:
    rows = make_rows(2)
    trainer, forward = make_trainer(folder), make_forward(folder)
    train(trainer, rows)
    write_blob(folder / "v1.safetensors", trainer.stage_weights())
    forward.load(Folder(folder / "v1.safetensors"))
    args = (rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0)
    assert torch.equal(forward.score(*args).values, trainer.score(*args).values)


def test_a_folder_of_parts_is_loaded_like_one_file(folder: Path, tmp_path: Path) -> None:
    trainer, forward, rows = make_trainer(folder), make_forward(folder), make_rows(3)
    train(trainer, rows)
    staged = trainer.stage_weights()
    names = list(staged)
    (tmp_path / "parts").mkdir()
    for index in range(3):
        write_blob(tmp_path / "parts" / part_file(index, 3), {name: staged[name] for name in names[index::3]})
    write_blob(tmp_path / "whole.safetensors", staged)
    log_probs = []
    for path in (tmp_path / "parts", tmp_path / "whole.safetensors"):
        forward.load(Folder(path))
        log_probs.append(forward.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0).values)
    assert torch.equal(*log_probs)


def test_published_weights_have_the_dtype_of_the_model_and_the_checkpoint_the_exact_ones(tmp_path: Path) -> None:
    spec = make_spec(dtype="bfloat16")
    write_version_0(spec, tmp_path / "v0.safetensors")
    trainer = make_trainer(tmp_path, spec)
    train(trainer, make_rows(1))
    assert {tensor.dtype for tensor in trainer.stage_weights().values()} == {torch.bfloat16}
    exact = moments(trainer, PARAMETER)
    assert {tensor.dtype for tensor in exact.values()} == {torch.float32}
    for name, weight in trainer.stage_weights().items():
        assert torch.equal(exact[name].to(torch.bfloat16), weight), name


def test_a_fully_masked_batch_steps_without_moving_the_policy(folder: Path) -> None:
    rows = make_rows(3)
    trainer = make_trainer(folder)
    before = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0)
    masked = Jagged(torch.zeros_like(rows.columns[Column.LOSS_MASKS].values), rows.columns[Column.LOSS_MASKS].offsets)
    result = train(trainer, replaced(rows, loss_masks=masked))
    assert (result.loss, result.grad_norm) == (0.0, 0.0)
    after = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.0)
    torch.testing.assert_close(after.values, before.values, atol=0.05, rtol=0)  # weight decay alone


def test_a_step_that_is_not_finite_is_skipped_and_names_its_rows(folder: Path) -> None:
    rows = make_rows(3)
    trainer, other = make_trainer(folder), make_trainer(folder)
    before = trainer.stage_weights()
    result = train(trainer, _poisoned(rows, 2, 5))
    assert result.skipped == (
        "optimizer step 1 has loss nan and a gradient of norm nan: the loss of rows 102, 105 is not finite. "
        "It is skipped, 1 in a row."
    )
    assert_same(trainer.stage_weights(), before)
    assert train(trainer, rows) == train(other, rows)  # nothing of it is left
    assert_same(trainer.stage_weights(), other.stage_weights())


def test_more_skipped_steps_in_a_row_than_allowed_are_the_users_to_cure(folder: Path) -> None:
    rows, trainer = make_rows(3), make_trainer(folder)
    broken = _poisoned(rows, 4)
    for batch in (broken, broken, rows, broken, broken, broken):  # a step that is taken ends the row
        train(trainer, batch)
    with pytest.raises(ValueError, match=r"^training\.maxSkippedSteps: 4 optimizer steps .* limit is 3;.* row 104 "):
        train(trainer, broken)


def test_a_budget_of_tokens_bounds_micro_batches(folder: Path) -> None:
    spec = make_spec()
    training = spec.training.model_copy(update={"max_tokens_per_micro_batch": 30})
    trainer, whole = make_trainer(folder, spec.model_copy(update={"training": training})), make_trainer(folder)
    rows, signs = make_rows(5), []
    trainer.accumulate(rows, lambda: signs.append("micro-batch"))
    assert len(signs) == trainer.num_micro_batches(rows) > 1
    assert trainer.optimizer_step().loss == pytest.approx(train(whole, rows).loss, abs=1e-5)


def test_weights_that_do_not_fit_are_refused_and_none_is_loaded(folder: Path) -> None:
    trainer = make_trainer(folder)
    before = dict(trainer.stage_weights())
    changed = {name: tensor + 1 for name, tensor in before.items()}
    changed["model.norm.weight"] = torch.zeros(5)
    write_blob(folder / "bad.safetensors", changed)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is of shape \[5\]"):
        trainer.load(Folder(folder / "bad.safetensors"))
    assert_same(trainer.stage_weights(), before)


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_restored(folder: Path, tmp_path: Path) -> None:
    spec = make_spec(architecture="Llama")
    write_version_0(spec, tmp_path / "llama.safetensors")
    other = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    other.load(Folder(tmp_path / "llama.safetensors"))
    save(other, tmp_path / "checkpoint")
    trainer = make_trainer(folder)
    before = trainer.stage_weights()
    with pytest.raises(ValueError, match="is of another model"):
        trainer.restore(tmp_path / "checkpoint")
    assert_same(trainer.stage_weights(), before)


def _poisoned(rows: TrainRows, *places: int) -> TrainRows:
    """With an advantage that is not a number in some rows; row i has the number 100 + i."""
    values = rows.columns[Column.ADVANTAGES].values.clone()
    for place in places:
        values[rows.columns[Column.ADVANTAGES].offsets[place]] = torch.nan
    masks = Jagged(torch.ones_like(rows.columns[Column.LOSS_MASKS].values), rows.columns[Column.LOSS_MASKS].offsets)
    numbers = 100 + torch.arange(len(rows.tokens))
    return replaced(
        rows, advantages=Jagged(values, rows.columns[Column.ADVANTAGES].offsets), loss_masks=masks, row_numbers=numbers
    )
