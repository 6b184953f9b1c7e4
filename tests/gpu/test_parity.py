"""The same model, rows and weights on the CPU and on the GPU: log-probs, a step, what is staged, and what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import TrainerBackend
from rljob_workers.algorithms.objective import Output
from rljob_workers.devices import HOST
from rljob_workers.engines.torch_engine.decoder import geometry_of, read_weights
from rljob_workers.engines.torch_engine.requests import Batch, PromptGroup
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, initial_state, torch_dtype
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model, build_trainer
from rljob_workers.trainers.base import ForwardModel, Trainer
from rljob_workers.trainers.data_parallel import SingleRank
from tests.megatron_groups import end_megatron_model
from tests.near import assert_moved_alike, assert_near
from tests.unit.engines.tiny_models import FIRST
from tests.unit.trainers.rows import make_rows, make_spec

BUILDERS = ("flat_backend", "fsdp.fsdp_backend")
"""Files that ask for the device of a process."""


BOUNDS = {"float32": 1e-4, "bfloat16": 3e-2}
"""Of log-probs, beside the largest: a GPU sums in another order, and bfloat16 has 8 bits."""
BACKENDS = ("Flat", "Fsdp", "Megatron")
DTYPES = ("float32", "bfloat16")


def spec_of(backend: str, dtype: str) -> RLJobSpec:
    spec = make_spec(dtype=dtype, micro_batch_size=8).model_dump(mode="json")
    spec["roles"]["actor"]["backend"] = backend
    spec["roles"]["actorFwd"] = {"backend": backend}
    return RLJobSpec.model_validate(spec)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def on_the_cpu(spec: RLJobSpec) -> RLJobSpec:
    """What Megatron on a GPU is compared with: its own shim for the CPU is for processes without CUDA."""
    return spec_of("Flat", spec.model.dtype) if spec.roles.actor.backend is TrainerBackend.MEGATRON else spec


def trainer_on(device: torch.device, spec: RLJobSpec, folder: Path) -> Trainer:
    """With version 0; the factories get the device of this process. A later model of Megatron ends an earlier one."""
    spec = spec if device.type == "cuda" else on_the_cpu(spec)
    if spec.roles.actor.backend is TrainerBackend.MEGATRON:
        end_megatron_model()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for backend in BUILDERS:
            monkeypatch.setattr(f"rljob_workers.trainers.{backend}.own_device", lambda: device)
        trainer = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    trainer.load(Folder(version_0(spec, folder)))
    return trainer


def forward_on(device: torch.device, spec: RLJobSpec, folder: Path) -> ForwardModel:
    """As `trainer_on`."""
    spec = spec if device.type == "cuda" else on_the_cpu(spec)
    if spec.roles.actor.backend is TrainerBackend.MEGATRON:
        end_megatron_model()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for backend in BUILDERS:
            monkeypatch.setattr(f"rljob_workers.trainers.{backend}.own_device", lambda: device)
        model = build_forward_model(spec, build_tokenizer(spec.model), Role.ACTOR_FWD, SingleRank())
    model.load(Folder(version_0(spec, folder)))
    return model


def version_0(spec: RLJobSpec, folder: Path) -> Path:
    path = folder / f"v0-{spec.model.dtype}.safetensors"
    if not path.exists():
        write_blob(path, initial_state(spec.model, build_tokenizer(spec.model)))
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probs_and_a_step_are_those_of_the_cpu(
    folder: Path, device: torch.device, backend: str, dtype: str
) -> None:
    spec, rows = spec_of(backend, dtype), make_rows(0, longest=50)
    here, there = trainer_on(HOST, spec, folder), trainer_on(device, spec, folder)
    args = (rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3)
    expected = here.score(*args)
    assert_scores_near(there, args, expected, dtype)
    before = {name: tensor.clone() for name, tensor in here.stage_weights().items()}
    for trainer in (here, there):
        trainer.accumulate(rows)
    one, other = here.optimizer_step(), there.optimizer_step()
    assert other.loss == pytest.approx(one.loss, rel=BOUNDS[dtype], abs=BOUNDS[dtype])
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=10 * BOUNDS[dtype])
    if dtype == "float32":  # in bfloat16 a step of Adam is as large as the rounding of its sign allows
        assert_moved(here.stage_weights(), there.stage_weights(), before)
    assert_scores_near(forward_on(device, spec, folder), args, expected, dtype)


def assert_scores_near(model: Trainer | ForwardModel, args: tuple[Any, ...], expected: Jagged, dtype: str) -> None:
    found = model.score(*args)
    assert found.values.device == HOST
    assert_near(found.values, expected.values, BOUNDS[dtype], "log-probs")


def assert_moved(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]
) -> None:
    """All weights together, as far as they moved."""
    names = sorted(before)
    found, expected, start = (torch.cat([each[name].flatten() for name in names]) for each in (other, one, before))
    assert_moved_alike(found, expected, start, 2e-2, "weights")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_staged_is_not_touched_by_the_next_step(folder: Path, device: torch.device, backend: str) -> None:
    """The copies are made beside the step that comes after them, and hold what was there before it."""
    spec = spec_of(backend, "bfloat16")
    trainer, rows = trainer_on(device, spec, folder), make_rows(1, longest=50)
    trainer.accumulate(rows)
    trainer.optimizer_step()
    weights, state = trainer.stage_weights(), trainer.stage_state()
    trainer.accumulate(rows)
    trainer.optimizer_step()
    state.tensors()
    num_compared = 0
    for one in state.slices:  # several of a name where a backend holds its rows in another order
        if one.kind == "parameter":
            block = tuple(slice(start, start + size) for start, size in zip(one.offset, one.values.shape, strict=True))
            assert torch.equal(one.values.to(torch.bfloat16), weights[one.name][block]), one.name
            num_compared += one.values.numel()
    assert num_compared == sum(weight.numel() for weight in weights.values())
    moved = trainer.stage_weights()
    assert any(not torch.equal(moved[name], weights[name]) for name in weights)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_is_restored_on_the_other_device(folder: Path, device: torch.device, backend: str) -> None:
    """Saved on the GPU, gone on with on the CPU."""
    spec, rows = spec_of(backend, "float32"), make_rows(2)
    there = trainer_on(device, spec, folder)
    there.accumulate(rows)
    there.optimizer_step()
    saved = folder / "checkpoint"
    saved.mkdir()
    write_blob(saved / "model.safetensors", dict(there.stage_weights()))
    state = there.stage_state()
    write_blob(saved / "actor-00000.safetensors", state.tensors())
    (saved / "actor-00000.json").write_bytes(state.description())
    here = trainer_on(HOST, spec, folder)
    here.restore(saved)
    args = (rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3)
    assert_near(there.score(*args).values, here.score(*args).values, BOUNDS["float32"], "log-probs")
    for trainer in (here, there):
        trainer.accumulate(make_rows(3))
    assert there.optimizer_step().grad_norm == pytest.approx(here.optimizer_step().grad_norm, rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_engines_log_probs_are_those_of_the_trainer_on_the_cpu(
    folder: Path, device: torch.device, dtype: str
) -> None:
    """Prompts of many lengths, more than one pass takes, cut distributions among them."""
    spec = spec_of("Flat", dtype)
    geometry = geometry_of(build_config(spec.model, build_tokenizer(spec.model)), torch_dtype(spec.model.dtype), device)
    scheduler = Scheduler(geometry, Limits(max_prefill_tokens=64))
    scheduler.install(read_weights(version_0(spec, folder), geometry), FIRST)
    groups = [
        PromptGroup(
            rid=str(number),
            prompt=[(number + place) % 10 for place in range(1 + 5 * number)],
            num_samples=3,
            seed=number,
            max_new_tokens=20,
            temperature=1.3,
            top_p=0.9 if number % 2 else 1.0,
            top_k=0,
            stop_token_ids=frozenset(),
        )
        for number in range(8)
    ]
    batch = Batch(groups)
    with torch.inference_mode():
        scheduler.submit(batch)
        while scheduler.has_work:
            scheduler.step()
    assert batch.error is None
    prompts = [group.prompt for group in groups for _ in range(group.num_samples)]
    outputs = [batch.tokens[row, :length] for row, length in enumerate(batch.lengths.tolist())]
    tokens = Jagged.from_rows(
        [torch.tensor([*prompt, *output.tolist()]) for prompt, output in zip(prompts, outputs, strict=True)]
    )
    expected = forward_on(HOST, spec, folder).score(
        tokens, torch.from_numpy(batch.lengths.copy()), Output.LOG_PROBS, 1.3
    )
    found = torch.cat([torch.from_numpy(batch.log_probs[row, : len(output)]) for row, output in enumerate(outputs)])
    assert_near(found, expected.values, BOUNDS[dtype], "log-probs")
