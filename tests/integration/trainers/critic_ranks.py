"""One rank of a world that trains critics of both architectures, and scores with critics of other families.

Writes, for each architecture, its part of the weights, the values of a probe, and what each optimizer step gave; and
the values of each family, whose folders beside its own have a policy's weights and a head. Also version 0 of critics
that begin as a policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import ModelSpec
from rljob_api.spec.roles import CriticSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_critic, load_critic_version_0
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, RankVote, agree
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.sharded_critic import VALUES, build_sharded_critic
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions
from rljob_workers.trainers.fsdp.stored_tensors import load_folder
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.worlds import as_rank
from tests.megatron_groups import end_megatron_model
from tests.unit.trainers.critics import critic_rows, settings_of
from tests.unit.trainers.fsdp.tiny import described, make_tokens
from tests.unit.trainers.rows import make_spec, select_rows

ARCHITECTURES = {"Qwen3": True, "Llama": False}
"""And whether the head of the policy is tied."""
ROWS, STEPS, SAVED_AT = 16, 4, 2
PROBE = 9


def main(
    folder: Path,
    group: DataParallelGroup,
    mesh: DeviceMesh,
    backend: str,
    source: str,
    families: str,
    parallelism: str = "{}",
) -> None:
    """`source` is the folder of a world whose critics, saved after SAVED_AT steps, are gone on with; or nothing.

    `parallelism` is the manifest's, of the role.
    """
    for architecture, tied in ARCHITECTURES.items():
        spec = laid_out(
            make_spec(architecture=architecture, tied=tied, micro_batch_size=5), backend, group.world, parallelism
        )
        settings, tokenizer = settings_of(backend, folder.parent / architecture), build_tokenizer(spec.model)
        critic = build_critic(settings, spec, tokenizer, group)
        if source:
            critic.restore(folder.parent / source / f"{architecture}-saved")
        else:
            load_critic_version_0(critic, settings, spec, tokenizer, folder)
        results = []
        for step in range(SAVED_AT if source else 0, STEPS):
            if step == SAVED_AT:
                save_part(critic, group.rank, folder / f"{architecture}-saved", "critic")
            results.append(train_step(critic, critic_rows(step)))
        write_blob(folder / f"{architecture}-{group.rank}.safetensors", critic.stage_weights())
        write_blob(folder / f"{architecture}-values-{group.rank}.safetensors", {"values": probe(critic)})
        (folder / f"{architecture}-{group.rank}.json").write_text(json.dumps(results))
        if backend == "Megatron":
            end_megatron_model()
    for name, model in {"config": None, "folder": folder.parent / "policy"}.items():
        write_blob(folder / f"version-0-{name}-{group.rank}.safetensors", version_0(folder, group, backend, model))
    for name in filter(None, families.split(",")):
        write_blob(folder / f"{name}-{group.rank}.safetensors", {"values": values_of_family(name, folder.parent, mesh)})


def laid_out(spec: RLJobSpec, backend: str, ranks: int, parallelism: str) -> RLJobSpec:
    fields = {"backend": backend, "ranksPerPod": ranks, "parallelism": json.loads(parallelism) or None}
    critic = CriticSpec.model_validate(fields)
    return spec.model_copy(update={"roles": spec.roles.model_copy(update={"critic": critic})})


def train_step(critic: Trainer, rows: TrainRows) -> dict[str, float]:
    """Of the rows that are dealt to each data-parallel rank in turn."""
    mesh = critic.mesh
    own = select_rows(rows, list(range(mesh.dp_rank, ROWS, mesh.dp_size)))
    agreed = agree(mesh.gang, RankVote(True, False, critic.num_micro_batches(own)), "a step")
    critic.accumulate(own, num_micro_batches=agreed.num_micro_batches)
    result = critic.optimizer_step()
    assert result.skipped is None, result.skipped
    return {"loss": result.loss, "norm": result.grad_norm, **result.metrics}


def version_0(folder: Path, group: DataParallelGroup, backend: str, policy: Path | None) -> Mapping[str, torch.Tensor]:
    """This rank's part of a critic that begins as a policy: that of a folder, or the one that is made of a config."""
    spec = make_spec(architecture="Llama", tied=False)
    if policy is not None:
        spec = spec.model_copy(update={"model": ModelSpec(path=str(policy))})
    settings, tokenizer = settings_of(backend), build_tokenizer(spec.model)
    critic = build_critic(settings, spec, tokenizer, group)
    load_critic_version_0(critic, settings, spec, tokenizer, folder)
    weights = critic.stage_weights()
    if backend == "Megatron":
        end_megatron_model()
    return weights


def probe(critic: Trainer) -> torch.Tensor:
    """Values of rows that are the same on all ranks."""
    rows = critic_rows(PROBE, longest=30)
    most = critic.num_micro_batches(rows)
    return critic.score(rows.tokens, rows.response_lengths, Output.VALUES, 1.0, num_micro_batches=most).values


def values_of_family(name: str, folder: Path, mesh: DeviceMesh) -> torch.Tensor:
    is_packed = name not in PADDED
    options = ModelOptions(torch.float32, torch.float32, packing=is_packed)
    model = build_sharded_critic(model_config(described(name)), options, mesh)
    load_folder(model, folder / name)
    tokens, responses = family_rows()
    with torch.no_grad():
        inputs = (joined_inputs if is_packed else padded_inputs)(tokens, responses, torch.device("cpu"))
        values: torch.Tensor = getattr(model, VALUES)(inputs)
    return values


def family_rows() -> tuple[Jagged, torch.Tensor]:
    return make_tokens(seed=3, rows=6)


PADDED = ("gpt_oss", "bloom")
"""Whose attention cannot be packed."""


if __name__ == "__main__":
    as_rank(main)
