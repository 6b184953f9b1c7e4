"""The entropy bonus: its gradient on each backend is that of all logits at once, and it holds a policy open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, described_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.flat_entropy import EntropyDecoder
from rljob_workers.trainers.flat_model import forward
from rljob_workers.trainers.fsdp.inputs import joined_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole, score
from rljob_workers.trainers.micro_batches import RowRange
from rljob_workers.trainers.settings import trainer_config
from tests.near import assert_near
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, make_spec

SPEC = make_spec()
TOKENIZER = build_tokenizer(SPEC.model)
TEMPERATURE = 1.3
NEAR = 1e-5
"""Rotary embeddings are of float32 in either model."""


def whole_model(*, packing: bool) -> Any:
    """Of transformers, in float64, with version 0."""
    options = ModelOptions(torch.float64, torch.float64, packing=packing)
    whole = build_whole(model_config(described_config(SPEC.model, TOKENIZER)), options)
    whole.load_state_dict(exact_weights(), strict=False)
    return whole


def exact_weights() -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in initial_state(SPEC.model, TOKENIZER).items()}


def of_all_logits(rows: TrainRows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Entropies [T] row by row from the logits of a plain forward pass, and the gradients of their sum."""
    whole, found = whole_model(packing=False), []
    for number, length in enumerate(rows.response_lengths.tolist()):
        logits = whole(input_ids=rows.tokens.row(number).long()[None]).logits[0, -length - 1 : -1] / TEMPERATURE
        found.append(torch.special.entr(logits.softmax(-1)).sum(-1))
    entropy = torch.cat(found)
    entropy.sum().backward()  # type: ignore[no-untyped-call]
    return entropy.detach(), gradients(dict(whole.named_parameters()))


def gradients(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}


def of_flat(rows: TrainRows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    decoder = EntropyDecoder(build_config(SPEC.model, TOKENIZER), storage=torch.float64, compute=torch.float64)
    decoder.load(exact_weights(), source="the test")
    gradient = torch.zeros_like(decoder.flat)
    decoder.enable_gradients(gradient)
    part = RowRange(0, len(rows.response_lengths), 0, int(rows.response_lengths.sum()))
    entropy = forward(decoder, rows.tokens, rows.response_lengths, part, TEMPERATURE).of(Output.ENTROPY)
    entropy.sum().backward()  # type: ignore[no-untyped-call]
    return entropy.detach(), decoder.views_of(gradient)


def of_fsdp(rows: TrainRows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    whole = whole_model(packing=True)
    _, entropy = score(whole, joined_inputs(rows.tokens, rows.response_lengths, torch.device("cpu")), TEMPERATURE)
    entropy.sum().backward()  # type: ignore[no-untyped-call]
    return entropy.detach(), gradients(dict(whole.named_parameters()))


@pytest.mark.parametrize("backend", [of_flat, of_fsdp])
def test_entropies_and_their_gradients_are_those_of_all_logits(backend: Any) -> None:
    rows = make_rows(3)
    (found, found_gradients), (expected, expected_gradients) = backend(rows), of_all_logits(rows)
    assert_near(found, expected, NEAR, "entropy")
    for name, gradient in expected_gradients.items():
        assert_near(found_gradients[name], gradient, NEAR, name)


def with_bonus(bonus: float | None, backend: str = "Flat") -> RLJobSpec:
    """Without a KL term."""
    kl = SPEC.algorithm.kl.model_copy(update={"coefficient": 0.0})
    algorithm = SPEC.algorithm.model_copy(update={"entropy_bonus": bonus, "kl": kl})
    roles = SPEC.roles.model_copy(update={"actor": SPEC.roles.actor.model_copy(update={"backend": backend})})
    return SPEC.model_copy(update={"algorithm": algorithm, "roles": roles})


def entropies(bonus: float | None, folder: Path, backend: str) -> list[float]:
    """As the trainer reports them, over optimizer steps on rows without an advantage."""
    rows = make_rows(3)
    nothing = Jagged(torch.zeros_like(rows.columns[Column.ADVANTAGES].values), rows.columns[Column.ADVANTAGES].offsets)
    rows = replaced(rows, advantages=nothing)
    spec = with_bonus(bonus, backend)
    write_blob(folder / "v0.safetensors", initial_state(spec.model, TOKENIZER))
    trainer = build_trainer(spec, TOKENIZER, SingleRank())
    trainer.load(Folder(folder / "v0.safetensors"))
    found = []
    for _ in range(6):
        trainer.accumulate(rows)
        found.append(trainer.optimizer_step().metrics["policy/entropy"])
    return found


@pytest.mark.parametrize("backend", ["Flat", "Fsdp"])
def test_a_bonus_raises_the_entropy(tmp_path: Path, backend: str) -> None:
    found = entropies(0.1, tmp_path, backend)
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.05


def test_without_one_entropies_are_not_asked_for() -> None:
    assert trainer_config(SPEC).objective.needs_outputs == {Output.LOG_PROBS}
    assert trainer_config(with_bonus(0.0)).objective.needs_outputs == {Output.LOG_PROBS}
    assert trainer_config(with_bonus(0.1)).objective.needs_outputs == {Output.LOG_PROBS, Output.ENTROPY}
