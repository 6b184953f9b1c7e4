"""One rank of a gang that trains models one after the other, each by a backend in a layout of its own.

A model begins as version 0, or as what another gang has saved. For each the rank writes into a folder of that name its
part of the weights, of the state, what each optimizer step gave, and the log-probs and entropies of rows that were not
trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.spec.model import ModelSpec
from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.training import RecomputedModule
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, RankVote, agree
from rljob_workers.trainers.flat_model import FlatModel
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel
from rljob_workers.trainers.megatron import cpu
from rljob_workers.trainers.megatron.balance import Balance
from rljob_workers.trainers.megatron.decoder import Decoder, DecoderOptions
from rljob_workers.trainers.megatron.groups import mesh_of
from rljob_workers.trainers.megatron.megatron_model import MegatronModel
from rljob_workers.trainers.mesh import Mesh, data_parallel
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelTrainer, TrainableModel, step_totals
from rljob_workers.trainers.optimizer_steps import TrainerConfig
from rljob_workers.trainers.row_shares import score_shared
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.plain_training import (
    MOST_SKIPPED,
    OBJECTIVES,
    OPTIMIZER,
    PROBE,
    TEMPERATURE,
    rows_of_step,
)
from tests.integration.trainers.training_ranks import select
from tests.integration.trainers.worlds import as_rank
from tests.megatron_groups import end_megatron_model
from tests.unit.trainers.megatron.decoders import DECODERS
from tests.unit.trainers.rows import make_spec

AUX, Z = 0.5, 0.1
"""Coefficients of balanced experts, large enough to be seen in a step."""


@dataclass(frozen=True, slots=True)
class Run:
    """Optimizer steps [first, last) of one model."""

    folder: str
    """Of what its ranks write, beside that of the models, whose name is `model`."""
    model: str
    first: int
    last: int
    parallelism: Mapping[str, int | bool] = field(default_factory=dict)
    backend: str = "Megatron"
    source: str = ""
    """The folder of a run that ended before `first`; empty: version 0."""
    objective: str = "policy"
    dtype: str = "float32"
    balanced: str = ""
    """Of experts: "by row" or "by pass"; empty: nothing balances them."""
    rows_of_pass: int = 2
    recomputed: Sequence[str] = ()
    bucket: int | None = None
    left_out: str = ""
    """Of what makes Megatron run on a CPU."""


def arguments_of(*runs: Run) -> list[str]:
    """Those of this program."""
    return [json.dumps([asdict(run) for run in runs])]


def main(folder: Path, group: DataParallelGroup, device_mesh: DeviceMesh, runs: str) -> None:
    for run in (Run(**fields) for fields in json.loads(runs)):
        begin_and_train(run, folder.parent, group, device_mesh)
        if run.backend == "Megatron":
            end_megatron_model()


def begin_and_train(run: Run, base: Path, group: DataParallelGroup, device_mesh: DeviceMesh) -> None:
    cpu._installed.update(filter(None, [run.left_out]))
    parallelism = ParallelismSpec(**run.parallelism)
    mesh = mesh_of(parallelism, group) if run.backend == "Megatron" else data_parallel(group)
    config = TrainerConfig(
        dtype=getattr(torch, run.dtype),
        limits=MicroBatchLimits(run.rows_of_pass, 400 if run.balanced else 40),
        temperature=TEMPERATURE,
        objective=OBJECTIVES[run.objective],
        optimizer=OPTIMIZER,
        max_skipped_steps=MOST_SKIPPED,
        norm_multiple=10.0,
        role="actor",
    )
    num_totals = step_totals(config, mesh).size
    if run.backend == "Megatron":
        trained = _megatron(run, parallelism, config, mesh, num_totals)
    elif run.backend == "Fsdp":
        trained = _fsdp(run, config, group, device_mesh, num_totals)
    else:
        trained = _flat(run, base, config, group, num_totals)
    trainer = ModelTrainer(trained, config, mesh)
    work = base / run.folder
    work.mkdir(exist_ok=True)
    if run.source:
        trainer.restore(base / run.source / "saved")
    else:
        trainer.load(Folder(base / run.model))
        refused = {wrong.name: refusal(trainer, wrong) for wrong in base.glob(f"{run.model}-wrong-*")}
        (work / f"refused-{group.rank}.json").write_text(json.dumps(refused))
        write_blob(work / f"loaded-{group.rank}.safetensors", trainer.stage_weights())
    WITHOUT_GRAPH.clear()
    results = [train_step(trainer, mesh, rows_of_step(step)) for step in range(run.first, run.last)]
    (work / f"again-{group.rank}.json").write_text(json.dumps(sorted(WITHOUT_GRAPH)))
    save_part(trainer, group.rank, work / "saved")
    probe = rows_of_step(PROBE)
    outputs = (Output.LOG_PROBS, Output.ENTROPY) if run.backend == "Megatron" else (Output.LOG_PROBS,)
    scored = {
        output.value: score_shared(trainer, probe.tokens, probe.response_lengths, output).values for output in outputs
    }
    write_blob(work / f"scored-{group.rank}.safetensors", scored)
    write_blob(work / f"weights-{group.rank}.safetensors", trainer.stage_weights())
    (work / f"results-{group.rank}.json").write_text(json.dumps(results))
    group.add_up(torch.zeros(1), "what all ranks have written")  # the next run may go on with it


WITHOUT_GRAPH: set[str] = set()
"""Classes of modules that were called without a graph."""


def note_without_graph(module: torch.nn.Module, inputs: object, found: object) -> None:
    if not torch.is_grad_enabled():
        WITHOUT_GRAPH.add(type(module).__name__)


def refusal(trainer: Trainer, wrong: Path) -> str:
    """What the trainer says of a folder that does not fit."""
    try:
        trainer.load(Folder(wrong))
    except ValueError as error:
        return str(error)
    return "taken"


def _megatron(
    run: Run, parallelism: ParallelismSpec, config: TrainerConfig, mesh: Mesh, num_totals: int
) -> TrainableModel:
    balance = Balance(run.balanced == "by row", AUX, Z) if run.balanced else Balance()
    options = DecoderOptions(
        parallelism,
        config.dtype,
        balance=balance,
        recomputes=parallelism.pipeline > 1 and not run.recomputed,
        bucket=run.bucket,
        recomputed=[RecomputedModule(one) for one in run.recomputed],
    )
    decoder = Decoder(model_config(DECODERS[run.model]), options, mesh.gang)
    for module in (module for chunk in decoder.chunks for module in chunk.modules()):
        module.register_forward_hook(note_without_graph)
    return MegatronModel(decoder, OPTIMIZER, mesh, num_totals=num_totals)


def _fsdp(
    run: Run, config: TrainerConfig, group: DataParallelGroup, device_mesh: DeviceMesh, num_totals: int
) -> TrainableModel:
    options = ModelOptions(torch.float32, config.dtype)
    return FsdpModel(
        build_sharded(model_config(DECODERS[run.model]), options, device_mesh),
        OPTIMIZER,
        group,
        num_totals=num_totals,
        dtype=config.dtype,
        packing=True,
        device=torch.device("cpu"),
    )


def _flat(run: Run, base: Path, config: TrainerConfig, group: DataParallelGroup, num_totals: int) -> TrainableModel:
    tokenizer = build_tokenizer(make_spec().model)  # of fewer words than the model has
    return FlatModel(
        build_config(ModelSpec(path=str(base / run.model)), tokenizer),
        OPTIMIZER,
        group,
        num_totals=num_totals,
        dtype=config.dtype,
        head_dtype=None,
        device=torch.device("cpu"),
    )


def train_step(trainer: Trainer, mesh: Mesh, rows: TrainRows) -> dict[str, float]:
    """In two slices, as rows come, of which the last of several data-parallel ranks has none of the second."""
    for number, part in enumerate(slices_of(rows, mesh)):
        agreed = agree(mesh.gang, RankVote(True, False, trainer.num_micro_batches(part)), "a slice")
        trainer.accumulate(part, num_micro_batches=agreed.num_micro_batches, ends_step=number == 1)
    early = under_way(trainer._model) if isinstance(trainer, ModelTrainer) else 0
    result = trainer.optimizer_step()
    assert result.skipped is None, result.skipped
    return {"loss": result.loss, "norm": result.grad_norm, "early": early, **result.metrics}


def under_way(model: TrainableModel) -> int:
    """1 where every bucket of gradients is being exchanged, else 0: stages have unlike many."""
    if not isinstance(model, MegatronModel):
        return 0
    groups = [
        group
        for chunk in model._optimizer.chunks
        for group in (*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups)
    ]
    return int(all(group.grad_reduce_handle is not None for group in groups))


def slices_of(rows: TrainRows, mesh: Mesh) -> Iterator[TrainRows]:
    half = len(rows.tokens) // 2
    yield select(rows, list(range(mesh.dp_rank, half, mesh.dp_size)))
    ranks = max(1, mesh.dp_size - 1)
    yield select(rows, list(range(half + mesh.dp_rank, len(rows.tokens), ranks)) if mesh.dp_rank < ranks else [])


if __name__ == "__main__":
    as_rank(main)
