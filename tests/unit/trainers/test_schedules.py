"""A model may have the loop over micro-batches: it is handed all of a slice, and training is the same to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.objective import Output, Outputs, Reduction
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.flat_model import FlatModel
from rljob_workers.trainers.mesh import Mesh, data_parallel
from rljob_workers.trainers.micro_batches import RowRange
from rljob_workers.trainers.model_trainer import Meeting, ModelTrainer, step_totals
from rljob_workers.trainers.settings import trainer_config
from tests.unit.trainers.rows import make_rows, make_spec

if TYPE_CHECKING:
    from rljob_workers.trainers.model_trainer import LossOf, NormaliserOf


class Interleaved(FlatModel):
    """As in a pipeline, more than one micro-batch is under way: all losses come before the first backward pass."""

    ranks_meet = Meeting.SCHEDULE

    def score(
        self, tokens: Jagged, response_lengths: torch.Tensor, parts: Sequence[RowRange], temperature: float
    ) -> Iterable[Outputs]:
        return list(super().score(tokens, response_lengths, parts, temperature))

    def train(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        parts: Sequence[RowRange],
        temperature: float,
        loss_of: LossOf,
        normaliser_of: NormaliserOf,
    ) -> None:
        outputs = [self.forward(tokens, response_lengths, part, temperature) for part in parts]
        for loss in [loss_of(part, one) for part, one in zip(parts, outputs, strict=True)]:
            loss.backward()  # type: ignore[no-untyped-call]


def trained(kind: type[FlatModel], folder: Path) -> tuple[list[object], int]:
    """What two steps and a score give, and how often they called `progress`."""
    spec = make_spec(micro_batch_size=3)
    tokenizer = build_tokenizer(spec.model)
    config, mesh = trainer_config(spec), data_parallel(SingleRank())
    model = kind(
        build_config(spec.model, tokenizer),
        config.optimizer,
        mesh.gang,
        num_totals=step_totals(config, mesh).size,
        dtype=torch.float32,
    )
    trainer = ModelTrainer(model, config, mesh)
    write_blob(folder / "v0.safetensors", initial_state(spec.model, tokenizer))
    trainer.load(Folder(folder / "v0.safetensors"))
    calls: list[None] = []
    seen: list[object] = []
    for step in range(2):
        rows = make_rows(step)
        trainer.accumulate(rows, lambda: calls.append(None))
        result = trainer.optimizer_step()
        seen.append((result.loss, result.grad_norm, result.metrics))
    found = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3, lambda: calls.append(None))
    weights = trainer.stage_weights()
    return [*seen, found.values.tolist(), {name: weights[name].tolist() for name in weights}], len(calls)


def test_a_model_with_a_schedule_is_given_all_micro_batches_at_once(tmp_path: Path) -> None:
    one_by_one, micro_batches = trained(FlatModel, tmp_path)
    at_once, slices = trained(Interleaved, tmp_path)
    assert at_once == one_by_one
    assert (micro_batches, slices) == (18, 3), "16 rows, 3 to a micro-batch, thrice"


def test_ranks_that_share_a_model_have_one_place_among_the_maxima() -> None:
    """What ranks that are no source bring is zeros: in places of their own these would be maxima."""
    alone = SingleRank()
    of_two = Mesh(alone, dp_rank=1, dp_size=2, is_source=True, sharing=alone)
    config = trainer_config(make_spec())
    largest = [one for one in config.objective.metrics if one.reduction is Reduction.MAX]
    grown = step_totals(config, of_two).size - step_totals(config, data_parallel(alone)).size
    assert grown == len(largest) > 0
