"""Weights of a decoder in the layout that the kernels read: fused projections, transposed, rope pairs adjacent.

Called by the model loop when a weight is loaded. Never keeps a view of the file: its pages may go when the file does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from rljob_workers.models.layout import EMBEDDING, HEAD

if TYPE_CHECKING:
    from pathlib import Path

    from rljob_workers.engines.torch_engine.geometry import Geometry


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer; matrices are [in, out], so that `x @ w` needs no transpose."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor | None
    """[num_heads + num_kv_heads, head_dim]: the query norm for every query head, then the key norm."""
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """All weights of one version."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor


def read_weights(path: Path, geometry: Geometry) -> DecoderWeights:
    """Loads a safetensors file, or every `*.safetensors` of a folder. ValueError names what does not fit."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"model_path: there is no safetensors file at {path}. Give a file or a folder that holds one.")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"model_path: {file} is not a readable safetensors file ({error}).") from error
    return fuse_weights(tensors, geometry)


def fuse_weights(tensors: Mapping[str, torch.Tensor], geometry: Geometry) -> DecoderWeights:
    """Copies Hugging Face tensors into the kernels' layout. ValueError names the first one that does not fit."""
    _check_fit(tensors, geometry)
    embedding = _own(tensors[EMBEDDING], geometry)
    head = embedding if geometry.tied_embeddings else _own(tensors[HEAD], geometry)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_fuse_layer(tensors, layer, geometry) for layer in range(geometry.num_layers)),
        final_norm=_own(tensors["model.norm.weight"], geometry),
        head=head.to(geometry.head_dtype).t().contiguous(),
    )


def _fuse_layer(tensors: Mapping[str, torch.Tensor], layer: int, geometry: Geometry) -> LayerWeights:
    def take(name: str) -> torch.Tensor:
        return _own(tensors[f"model.layers.{layer}.{name}.weight"], geometry)

    query, key = (_pair_rows(take(f"self_attn.{name}_proj"), geometry) for name in ("q", "k"))
    return LayerWeights(
        input_norm=take("input_layernorm"),
        qkv=torch.cat([query, key, take("self_attn.v_proj")]).t().contiguous(),
        qk_norm=_qk_norm(take("self_attn.q_norm"), take("self_attn.k_norm"), geometry)
        if geometry.has_qk_norm
        else None,
        out=take("self_attn.o_proj").t().contiguous(),
        post_norm=take("post_attention_layernorm"),
        gate_up=torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")]).t().contiguous(),
        down=take("mlp.down_proj").t().contiguous(),
    )


def _pair_order(head_dim: int) -> torch.Tensor:
    """Hugging Face rotates element i with i + head_dim/2; put next to each other they are one complex number.

    Queries and keys are permuted alike, so that their products do not change.
    """
    first = torch.arange(head_dim // 2)
    return torch.stack([first, first + head_dim // 2], dim=1).flatten()


def _pair_rows(weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    heads = weight.view(-1, geometry.head_dim, geometry.hidden_size)
    return heads[:, _pair_order(geometry.head_dim)].reshape(weight.shape)


def _qk_norm(query: torch.Tensor, key: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    order = _pair_order(geometry.head_dim)
    return torch.cat([query[order].expand(geometry.num_heads, -1), key[order].expand(geometry.num_kv_heads, -1)])


def _own(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    return tensor.to(geometry.device, geometry.dtype, copy=True).contiguous()


def _check_fit(tensors: Mapping[str, torch.Tensor], geometry: Geometry) -> None:
    for name, shape in geometry.tensors.items():
        if name not in tensors:
            raise ValueError(f"weights: {name} is missing. The file is not of this model.")
        if tuple(tensors[name].shape) != shape:
            raise ValueError(
                f"weights: {name} has shape {tuple(tensors[name].shape)}, but the model needs {shape}. "
                "The file is not of this model."
            )
    known = geometry.tensors.keys() | ({HEAD} if geometry.tied_embeddings else set())
    unknown = sorted(tensors.keys() - known)
    if unknown:
        raise ValueError(f"weights: {unknown[0]} (and {len(unknown) - 1} more) is no tensor of this model.")
