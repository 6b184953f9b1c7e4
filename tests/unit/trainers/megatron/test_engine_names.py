"""Weights go into the parameters of either kind of layers and out again, bit for bit; names of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import pytest
import torch

from rljob_workers.trainers.megatron.groups import Place
from rljob_workers.trainers.megatron.sizes import DecoderSizes
from rljob_workers.trainers.megatron.stored_names import flat_slices, is_copy, is_cut, is_expert, local_name, pieces
from tests.unit.trainers.megatron.test_stored_names import hub_shapes, megatron_shapes, places

DENSE = DecoderSizes(
    layers=2, hidden=6, heads=4, key_heads=2, head_width=4, inner=8, vocabulary=7, is_tied=False
)  # fmt: skip
EXPERTS = replace(DENSE, experts=4, expert_inner=10)
FAMILIES: dict[str, tuple[DecoderSizes, bool, bool]] = {
    "Qwen2, tied, with biases": (replace(DENSE, is_tied=True), True, False),
    "Qwen3, norms of queries and keys": (DENSE, False, True),
    "Llama, a head of its own": (DENSE, False, False),
    "Qwen3-MoE": (EXPERTS, False, True),
    "a critic": (replace(DENSE, has_value_head=True), False, True),
}
"""Sizes, whether it has biases, whether it has norms of queries and keys."""
LAYOUTS = {"one rank": Place(), "two of each": Place(tensor=2, expert=2, expert_tensor=2)}
ENGINE_NAMES = {
    "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight": "decoder.layers.1.input_layernorm.weight",
    "decoder.layers.1.mlp.linear_fc1.layer_norm_weight": "decoder.layers.1.pre_mlp_layernorm.weight",
    "decoder.layers.0.mlp.experts.linear_fc1.weight0": "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
    "decoder.layers.10.mlp.experts.linear_fc2.weight12": (
        "decoder.layers.10.mlp.experts.local_experts.12.linear_fc2.weight"
    ),
}
"""What Transformer Engine's layers call otherwise, as megatron-core 0.16.1 builds them, and what it is locally."""
SAME_NAMES = (
    "embedding.word_embeddings.weight",
    "output_layer.weight",
    "decoder.final_layernorm.weight",
    "decoder.layers.0.self_attention.linear_qkv.weight",
    "decoder.layers.0.self_attention.linear_qkv.bias",
    "decoder.layers.0.self_attention.linear_proj.weight",
    "decoder.layers.0.self_attention.q_layernorm.weight",
    "decoder.layers.0.self_attention.k_layernorm.weight",
    "decoder.layers.0.pre_mlp_layernorm.weight",  # of experts: it is a module of its own there, too
    "decoder.layers.0.mlp.router.weight",
    "decoder.layers.0.mlp.linear_fc1.weight",
    "decoder.layers.0.mlp.linear_fc2.weight",
)


@pytest.mark.parametrize(("name", "local"), ENGINE_NAMES.items())
def test_names_of_the_engine(name: str, local: str) -> None:
    assert local_name(name) == local


@pytest.mark.parametrize("name", [*SAME_NAMES, *ENGINE_NAMES.values()])
def test_a_local_name_stays_as_it_is(name: str) -> None:
    assert local_name(name) == name


@pytest.mark.parametrize("kind", ["local", "engine"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_weights_come_out_as_they_went_in(family: tuple[DecoderSizes, bool, bool], layout: Place, kind: str) -> None:
    sizes, has_bias, has_qk_norm = family
    chance = torch.Generator().manual_seed(1)
    stored = {
        name: torch.randn(shape, generator=chance).to(torch.bfloat16)
        for name, shape in hub_shapes(sizes, has_bias=has_bias, has_qk_norm=has_qk_norm).items()
    }
    found = {name: torch.full_like(tensor, float("nan")) for name, tensor in stored.items()}
    from_shards = {name: torch.full_like(tensor, float("nan")) for name, tensor in stored.items()}
    shapes = dict(megatron_shapes(sizes, layout, range(sizes.layers), has_bias=has_bias, has_qk_norm=has_qk_norm))
    names = dict(engine_parameters(sizes, shapes)) if kind == "engine" else {name: name for name in shapes}
    assert len(names) == len(shapes)
    for own, shape_of in names.items():
        name, shape = local_name(own), shapes[shape_of]
        assert name == shape_of
        if is_copy(name, sizes):
            continue
        for place in places(layout, name, sizes):
            parameter = torch.zeros(shape, dtype=torch.bfloat16)
            for piece in pieces(name, sizes, place, 0):
                parameter[piece.row : piece.row + piece.rows] = stored[piece.name][piece.place(shape)]
            for piece in pieces(name, sizes, place, 0):
                found[piece.name][piece.place(shape)] = parameter[piece.row : piece.row + piece.rows]
                for start in range(0, prod(shape), 11):
                    shard = parameter.flatten()[start : start + 11]
                    for one in flat_slices(piece, shape, start, start + len(shard)):
                        block = tuple(slice(at, at + size) for at, size in zip(one.offset, one.shape, strict=True))
                        from_shards[piece.name][block] = shard[one.elements].view(one.shape)
    for name, tensor in stored.items():
        assert torch.equal(found[name], tensor), name
        assert torch.equal(from_shards[name], tensor), name


def engine_parameters(sizes: DecoderSizes, local: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    """Of each local parameter what Transformer Engine's layers call it, and its local name."""
    for name in local:
        own = name.replace("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
        if not sizes.experts:
            own = own.replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")
        if is_expert(name):
            start, _, rest = name.partition(".local_experts.")
            expert, part, _ = rest.split(".")
            own = f"{start}.{part}.weight{expert}"
        yield own, name


def test_a_norm_within_a_product_is_not_cut() -> None:
    """Each tensor rank has all of it, though its module's name is that of a product."""
    for name in ENGINE_NAMES:
        assert is_cut(local_name(name), DENSE) == ("experts" in name), name
