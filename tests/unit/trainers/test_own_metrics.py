"""Figures that a user's loss names: means over the tokens that count, however a batch is cut."""

from pathlib import Path

import pytest

from rljob_workers.algorithms.metric_totals import values_of
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.data_parallel import SingleRank
from tests.unit.trainers.rows import make_rows, make_spec

LOSS = """
import torch
from rljob_workers.algorithms.losses import TokenLosses
from rljob_workers.algorithms.objective import ratio_of

def loss(new, old, advantages, rows):
    ratio = ratio_of(new - old)
    return TokenLosses(
        -advantages * ratio, ratio, ratio > 2, metrics={"above/one": ratio > 1, "ratio": ratio, "bad": ratio / 0}
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the loss and with version 0; one for all tests, since a module of a name is imported once."""
    found = tmp_path_factory.mktemp("own")
    (found / "named_loss.py").write_text(LOSS)
    spec = make_spec()
    write_blob(found / "v0.safetensors", initial_state(spec.model, build_tokenizer(spec.model)))
    return found


@pytest.mark.parametrize("micro_batch_size", [16, 5, 1])
def test_each_is_the_mean_over_all_tokens_of_the_step(micro_batch_size: int, folder: Path) -> None:
    spec = make_spec(micro_batch_size=micro_batch_size)
    own = spec.algorithm.model_copy(update={"loss": "named_loss:loss", "path": str(folder)})
    spec = spec.model_copy(update={"algorithm": own})
    trainer = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    trainer.load(Folder(folder / "v0.safetensors"))
    rows = make_rows(5)
    new = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, spec.rollout.sampling.temperature)
    ratios = (new.values.double() - rows.columns[Column.LOG_PROBS].values.double()).exp()
    ratios = ratios[rows.columns[Column.LOSS_MASKS].values > 0]
    trainer.accumulate(rows)
    assert values_of(trainer.optimizer_step().own) == {
        "above/one": pytest.approx(float((ratios > 1).double().mean())),
        "ratio": pytest.approx(float(ratios.mean()), rel=1e-5),
    }
    assert trainer.optimizer_step().own == {}, "nothing of a step is left to the next"
