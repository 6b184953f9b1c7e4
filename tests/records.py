"""Makes records of checkpoints by hand: a model that transformers loads, published rounded, exact weights in slices.

    record = make_record(root, weights, cut_up(weights))      # {root}/4-e1-0123456789ab, whole and recorded

`weights` are float32. What is published of them is bfloat16, in two parts, as of two ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rljob_api.names import Role
from rljob_api.spec.model import ModelConfig, ModelSpec, TokenizerConfig
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_workers.dcs.checkpoints.on_disk import CHECKSUMS_FILE, RECORDED_MARK, file_of, write_record, write_synced
from rljob_workers.dcs.tensor_bytes import index_of_parts, safetensors_pieces
from rljob_workers.models.blob import INDEX_FILE, part_file
from rljob_workers.models.building import build_config, describing_files, initial_state
from rljob_workers.models.slices import EXP_AVG, PARAMETER, STEPS, StateShare, StateSlice, state_files
from rljob_workers.models.tokenizers import build_tokenizer

NAME = "4-e1-0123456789ab"
SPEC = ModelSpec(
    config=ModelConfig(
        hidden_size=32, intermediate_size=48, head_dim=8, tokenizer=TokenizerConfig(alphabet="0123456789=")
    )
)


def made_weights() -> dict[str, torch.Tensor]:
    """Float32 weights of a tiny Qwen3, none of which bfloat16 holds exactly but for the norms."""
    return initial_state(SPEC, build_tokenizer(SPEC))


def made_files(dtype: torch.dtype = torch.bfloat16) -> dict[str, bytes]:
    """config.json and the tokenizer's files of that model."""
    tokenizer = build_tokenizer(SPEC)
    return describing_files(build_config(SPEC, tokenizer), dtype, tokenizer)


def cut_up(weights: Mapping[str, torch.Tensor]) -> list[StateShare]:
    """Of three ranks: rows 0, 3, 6 ... of a matrix are the first's, each a slice, and so on; vectors are the last's."""
    slices: list[list[StateSlice]] = [[], [], []]
    for name, tensor in weights.items():
        shape = tuple(tensor.shape)
        if tensor.dim() == 1:
            slices[2].append(StateSlice(PARAMETER, name, shape, (0,), tensor))
        else:
            for row in range(shape[0]):
                slices[row % 3].append(StateSlice(PARAMETER, name, shape, (row, 0), tensor[row : row + 1]))
        slices[0].append(StateSlice(EXP_AVG, name, shape, (0,) * tensor.dim(), torch.zeros_like(tensor)))
    return [StateShare(parts, {"random": torch.arange(8, dtype=torch.uint8)}, {STEPS: 12}) for parts in slices]


def make_record(
    root: Path,
    weights: Mapping[str, torch.Tensor],
    shares: Sequence[StateShare],
    *,
    role: Role = Role.ACTOR,
    dtype: torch.dtype = torch.bfloat16,
    described: Mapping[str, bytes] | None = None,
    name: str = NAME,
) -> Path:
    """Writes a role's part of a record, adds it to what is there, and records it."""
    folder = root / name
    place = folder / file_of(role, "")
    place.mkdir(parents=True, exist_ok=True)
    names = list(weights)
    parts = [part_file(0, 2), part_file(1, 2)]
    content = {
        part: safetensors_pieces({name: _published(weights[name], dtype) for name in names[index::2]})
        for index, part in enumerate(parts)
    }
    for rank, share in enumerate(shares):
        tensors, description = state_files(role.value, rank)
        content |= {tensors: safetensors_pieces(share.tensors()), description: iter([memoryview(share.description())])}
    files = made_files(dtype) if described is None else described
    content |= {file: iter([memoryview(text)]) for file, text in files.items()}
    checksums = json.loads((folder / CHECKSUMS_FILE).read_text()) if (folder / CHECKSUMS_FILE).exists() else {}
    for file, pieces in content.items():
        checksums[file_of(role, file)] = write_synced(place / file, pieces)
    index = index_of_parts(place, parts).encode()
    checksums[file_of(role, INDEX_FILE)] = write_synced(place / INDEX_FILE, [index])
    digest = write_synced(folder / CHECKSUMS_FILE, [json.dumps(checksums).encode()])
    (folder / RECORDED_MARK).touch()
    version = int(name.partition("-")[0])
    record = {"id": {"lineage": 1, "version": version}, "epoch": 1, "folder": name, "ancestry": {"1": -1}}
    write_record(root, CheckpointRecord.model_validate({**record, "checksums": {CHECKSUMS_FILE: digest}}))
    return folder


def _published(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
