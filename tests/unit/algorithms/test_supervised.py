"""Supervised fine-tuning: by hand, and through the trainer that trains policies."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from rljob_workers.algorithms.aggregation import sequence_mean
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.supervised import SupervisedObjective
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, described_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.flat_model import FlatModel
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.trainers.model_trainer import ModelTrainer, step_totals
from rljob_workers.trainers.settings import trainer_config
from tests.unit.trainers.rows import make_rows, make_spec


def test_the_loss_of_tokens_that_count() -> None:
    rows = MaskedRows(torch.tensor([1, 0, 1]), torch.tensor([2, 1]))
    log_probs = torch.tensor([-1.0, -torch.inf, -3.0], requires_grad=True)
    for objective, loss in ((SupervisedObjective(), 4.0), (SupervisedObjective(sequence_mean), 4.0)):
        sums = objective.loss(Outputs(log_probs=log_probs), {}, rows, objective.weigh(rows).weights)
        assert float(sums.loss.detach()) == loss
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-1.0, 0.0, -1.0]


def cross_entropy(model: torch.nn.Module, rows: TrainRows) -> float:
    """Of transformers' model, row by row, over the tokens that count."""
    total = count = 0.0
    for tokens, length, mask in zip(
        rows.tokens.rows(), rows.response_lengths.tolist(), rows.columns[Column.LOSS_MASKS].rows(), strict=True
    ):
        ids = tokens.long()[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, -length - 1 : -1]
        total += float((functional.cross_entropy(logits, ids[0, -length:], reduction="none") * mask).sum())
        count += float(mask.sum())
    return total / count


def test_a_model_is_fine_tuned_by_the_trainer_of_policies(tmp_path: Path) -> None:
    spec = make_spec(micro_batch_size=4)
    tokenizer, rows = build_tokenizer(spec.model), make_rows(0)
    state = initial_state(spec.model, tokenizer)
    write_blob(tmp_path / "v0.safetensors", state)
    plain = build_whole(
        model_config(described_config(spec.model, tokenizer)), ModelOptions(torch.float32, torch.float32, packing=False)
    )
    plain.load_state_dict(dict(state), strict=False)
    config = replace(trainer_config(spec), temperature=1.0, objective=SupervisedObjective(), role="student")
    group = SingleRank()
    model = FlatModel(
        build_config(spec.model, tokenizer),
        config.optimizer,
        group,
        num_totals=step_totals(config, data_parallel(group)).size,
        dtype=torch.float32,
    )
    trainer = ModelTrainer(model, config, data_parallel(group))
    trainer.load(Folder(tmp_path / "v0.safetensors"))
    losses = []
    for _ in range(8):
        trainer.accumulate(rows)
        result = trainer.optimizer_step()
        assert result.metrics["supervised/cross_entropy"] == pytest.approx(result.loss)
        losses.append(result.loss)
    with torch.no_grad():
        assert losses[0] == pytest.approx(cross_entropy(plain, rows), rel=1e-5)
    assert losses[-1] < losses[0] - 0.05


def test_rows_without_a_column_that_the_objective_needs_are_refused(tmp_path: Path) -> None:
    spec = make_spec()
    config, group = trainer_config(spec), SingleRank()
    model = FlatModel(
        build_config(spec.model, build_tokenizer(spec.model)),
        config.optimizer,
        group,
        num_totals=step_totals(config, data_parallel(group)).size,
        dtype=torch.float32,
    )
    rows = make_rows(0)
    columns = dict(rows.columns)
    del columns[Column.ADVANTAGES]
    with pytest.raises(ValueError, match=r"^advantages: missing in the rows, but PolicyObjective needs them"):
        ModelTrainer(model, config, data_parallel(group)).accumulate(TrainRows(columns))
