"""Names and blocks of stored tensors: all ranks of any layout have every element once, and shards of them, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.trainers.megatron.groups import Place
from rljob_workers.trainers.megatron.sizes import DecoderSizes, padded_vocabulary
from rljob_workers.trainers.megatron.stored_names import Piece, flat_slices, is_copy, is_cut, is_expert, pieces


def hub_shapes(sizes: DecoderSizes, *, has_bias: bool, has_qk_norm: bool) -> dict[str, tuple[int, ...]]:
    """As transformers stores a decoder."""
    queries, keys = sizes.heads * sizes.head_width, sizes.key_heads * sizes.head_width
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes.vocabulary, sizes.hidden),
        "model.norm.weight": (sizes.hidden,),
    }
    if sizes.has_value_head:
        found["score.weight"] = (1, sizes.hidden)
    elif not sizes.is_tied:
        found["lm_head.weight"] = (sizes.vocabulary, sizes.hidden)
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}."
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{prefix}self_attn.{letter}_proj.weight"] = (rows, sizes.hidden)
            if has_bias:
                found[f"{prefix}self_attn.{letter}_proj.bias"] = (rows,)
            if has_qk_norm and letter != "v":
                found[f"{prefix}self_attn.{letter}_norm.weight"] = (sizes.head_width,)
        found[f"{prefix}self_attn.o_proj.weight"] = (sizes.hidden, queries)
        found[f"{prefix}input_layernorm.weight"] = (sizes.hidden,)
        found[f"{prefix}post_attention_layernorm.weight"] = (sizes.hidden,)
        if sizes.experts:
            found[f"{prefix}mlp.gate.weight"] = (sizes.experts, sizes.hidden)
        stems = [f"{prefix}mlp.experts.{expert}." for expert in range(sizes.experts)] or [f"{prefix}mlp."]
        inner = sizes.expert_inner if sizes.experts else sizes.inner
        for stem in stems:
            found[f"{stem}gate_proj.weight"] = found[f"{stem}up_proj.weight"] = (inner, sizes.hidden)
            found[f"{stem}down_proj.weight"] = (sizes.hidden, inner)
    return found


def megatron_shapes(
    sizes: DecoderSizes, place: Place, stage: range, *, has_bias: bool, has_qk_norm: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each parameter of the chunk with the layers of `stage`, on the rank at `place`."""
    width, rows = sizes.heads * sizes.head_width, padded_vocabulary(sizes.vocabulary, place.tensor) // place.tensor
    if stage.start == 0:
        yield "embedding.word_embeddings.weight", (rows, sizes.hidden)
    for layer in range(len(stage)):
        prefix = f"decoder.layers.{layer}."
        joined = (width + 2 * sizes.key_heads * sizes.head_width) // place.tensor
        yield f"{prefix}self_attention.linear_qkv.weight", (joined, sizes.hidden)
        if has_bias:
            yield f"{prefix}self_attention.linear_qkv.bias", (joined,)
        if has_qk_norm:
            yield f"{prefix}self_attention.q_layernorm.weight", (sizes.head_width,)
            yield f"{prefix}self_attention.k_layernorm.weight", (sizes.head_width,)
        yield f"{prefix}self_attention.linear_proj.weight", (sizes.hidden, width // place.tensor)
        yield f"{prefix}input_layernorm.weight", (sizes.hidden,)
        yield f"{prefix}pre_mlp_layernorm.weight", (sizes.hidden,)
        if sizes.experts:
            yield f"{prefix}mlp.router.weight", (sizes.experts, sizes.hidden)
        own = range(sizes.experts // place.expert)
        stems = [f"{prefix}mlp.experts.local_experts.{expert}." for expert in own] or [f"{prefix}mlp."]
        part = sizes.expert_inner // place.expert_tensor if sizes.experts else sizes.inner // place.tensor
        for stem in stems:
            yield f"{stem}linear_fc1.weight", (2 * part, sizes.hidden)
            yield f"{stem}linear_fc2.weight", (sizes.hidden, part)
    if stage.stop == sizes.layers:
        yield "decoder.final_layernorm.weight", (sizes.hidden,)
        if sizes.has_value_head:
            yield "output_layer.weight", (1, sizes.hidden)
        elif not sizes.is_tied or stage.start > 0:
            yield "output_layer.weight", (rows, sizes.hidden)


@st.composite
def models(draw: st.DrawFn) -> tuple[DecoderSizes, Place, int]:
    """Sizes, a layout and its number of chunks of layers."""
    few = st.integers(1, 3)
    tensor, expert, expert_tensor, chunks = draw(few), draw(few), draw(few), draw(few)
    key_heads = tensor * draw(few)
    has_experts = draw(st.booleans())
    sizes = DecoderSizes(
        layers=chunks * draw(st.integers(1, 2)),
        hidden=draw(st.integers(1, 5)),
        heads=key_heads * draw(few),
        key_heads=key_heads,
        head_width=2 * draw(few),
        inner=tensor * draw(few),
        vocabulary=draw(st.integers(1, 12)),
        is_tied=draw(st.booleans()),
        experts=expert * draw(few) if has_experts else 0,
        expert_inner=expert_tensor * draw(few) if has_experts else 0,
    )
    if draw(st.booleans()):
        sizes = replace(sizes, has_value_head=True, is_tied=False)
    return sizes, Place(tensor=tensor, expert=expert, expert_tensor=expert_tensor), chunks


def places(place: Place, name: str, sizes: DecoderSizes) -> list[Place]:
    """Of the ranks that have a part of their own of a parameter of this name."""
    if not is_cut(name, sizes):
        return [place]
    if is_expert(name):
        return [
            replace(place, expert_rank=rank, expert_tensor_rank=part)
            for rank in range(place.expert)
            for part in range(place.expert_tensor)
        ]
    return [replace(place, tensor_rank=rank) for rank in range(place.tensor)]


@given(models(), st.booleans(), st.booleans(), st.data())
def test_shards_of_all_ranks_have_each_element_of_each_stored_tensor_once(
    model: tuple[DecoderSizes, Place, int], has_bias: bool, has_qk_norm: bool, data: st.DataObject
) -> None:
    sizes, layout, chunks = model
    expected = hub_shapes(sizes, has_bias=has_bias, has_qk_norm=has_qk_norm)
    times = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in expected.items()}
    length = sizes.layers // chunks
    for first in range(0, sizes.layers, length):
        stage = range(first, first + length)
        for name, shape in megatron_shapes(sizes, layout, stage, has_bias=has_bias, has_qk_norm=has_qk_norm):
            if is_copy(name, sizes):
                continue
            for place in places(layout, name, sizes):
                found = pieces(name, sizes, place, first)
                assert_cut_into_rows(found, shape, may_be_padded="word_embeddings" in name or "output" in name)
                ends = data.draw(st.lists(st.integers(0, torch.Size(shape).numel()), max_size=3))
                for piece in found:
                    count(times[piece.name], piece, shape, sorted([0, *ends, torch.Size(shape).numel()]))
    for name, one in times.items():
        assert bool((one == 1).all()), name


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(0, 20)), st.booleans())
def test_slices_of_a_parameter_have_each_row_of_a_piece_once_and_where_the_whole_piece_has_it(
    row: int, rows: int, offset: int, ends: list[int], has_columns: bool
) -> None:
    width = 3 if has_columns else None
    local_shape, shape = ((20, width), (18, 5)) if width else ((20,), (18,))
    piece = Piece(row, rows, "a", shape, (offset, 1) if width else (offset,))
    parameter = torch.arange(20 * (width or 1)).view(local_shape)
    whole, sliced = torch.full(shape, -1), torch.full(shape, -1)
    whole[piece.place(local_shape)] = parameter[row : row + rows]
    for start, stop in pairwise(sorted([0, *ends, 20])):
        if (one := piece.between(start, stop)) is None:
            continue
        assert start <= one.row < one.row + one.rows <= stop
        place = one.place(local_shape)
        assert bool((sliced[place] == -1).all()), "no row is there twice"
        sliced[place] = parameter[start:stop][one.row - start :][: one.rows]
    assert torch.equal(sliced, whole)


def assert_cut_into_rows(found: list[Piece], shape: tuple[int, ...], *, may_be_padded: bool) -> None:
    row = 0
    for piece in found:
        assert piece.row == row
        row += piece.rows
    assert row == shape[0] or (may_be_padded and row < shape[0])


def count(times: torch.Tensor, piece: Piece, shape: tuple[int, ...], ends: list[int]) -> None:
    """Each element of the piece, where its shard has it, is the one at the same place of its block."""
    assert tuple(times.shape) == piece.shape
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    block = torch.full(piece.shape, -1)
    for start, stop in pairwise(ends):
        shard, slices = numbers.flatten()[start:stop], list(flat_slices(piece, shape, start, stop))
        assert len(slices) <= 3
        for one in slices:
            place = tuple(slice(at, at + size) for at, size in zip(one.offset, one.shape, strict=True))
            block[place] = shard[one.elements].view(one.shape)
            times[place] += 1
    assert torch.equal(block[piece.place(shape)], numbers[piece.row : piece.row + piece.rows])


SMALL = DecoderSizes(
    layers=4, hidden=6, heads=4, key_heads=2, head_width=3, inner=8, vocabulary=5, is_tied=False, experts=4,
    expert_inner=10,
)  # fmt: skip
BY_HAND: Mapping[str, tuple[str, list[Piece]]] = {
    "queries of two heads, and their key and value head": (
        "decoder.layers.1.self_attention.linear_qkv.weight",
        [
            Piece(0, 6, "model.layers.3.self_attn.q_proj.weight", (12, 6), (6, 0)),
            Piece(6, 3, "model.layers.3.self_attn.k_proj.weight", (6, 6), (3, 0)),
            Piece(9, 3, "model.layers.3.self_attn.v_proj.weight", (6, 6), (3, 0)),
        ],
    ),
    "their biases": (
        "decoder.layers.0.self_attention.linear_qkv.bias",
        [
            Piece(0, 6, "model.layers.2.self_attn.q_proj.bias", (12,), (6,)),
            Piece(6, 3, "model.layers.2.self_attn.k_proj.bias", (6,), (3,)),
            Piece(9, 3, "model.layers.2.self_attn.v_proj.bias", (6,), (3,)),
        ],
    ),
    "columns": (
        "decoder.layers.0.self_attention.linear_proj.weight",
        [Piece(0, 6, "model.layers.2.self_attn.o_proj.weight", (6, 12), (0, 6))],
    ),
    "gate and up": (
        "decoder.layers.0.mlp.linear_fc1.weight",
        [
            Piece(0, 4, "model.layers.2.mlp.gate_proj.weight", (8, 6), (4, 0)),
            Piece(4, 4, "model.layers.2.mlp.up_proj.weight", (8, 6), (4, 0)),
        ],
    ),
    "down": (
        "decoder.layers.0.mlp.linear_fc2.weight",
        [Piece(0, 6, "model.layers.2.mlp.down_proj.weight", (6, 8), (0, 4))],
    ),
    "the second of the other rank's experts, half of it": (
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight",
        [
            Piece(0, 5, "model.layers.2.mlp.experts.3.gate_proj.weight", (10, 6), (5, 0)),
            Piece(5, 5, "model.layers.2.mlp.experts.3.up_proj.weight", (10, 6), (5, 0)),
        ],
    ),
    "the router": (
        "decoder.layers.0.mlp.router.weight",
        [Piece(0, 4, "model.layers.2.mlp.gate.weight", (4, 6), (0, 0))],
    ),
    "five words on two ranks: two, and a row of padding": (
        "output_layer.weight",
        [Piece(0, 2, "lm_head.weight", (5, 6), (3, 0))],
    ),
    "a norm of a layer": (
        "decoder.layers.1.pre_mlp_layernorm.weight",
        [Piece(0, 6, "model.layers.3.post_attention_layernorm.weight", (6,), (0,))],
    ),
    "the last norm": ("decoder.final_layernorm.weight", [Piece(0, 6, "model.norm.weight", (6,), (0,))]),
}
"""On the second rank of each axis, in a chunk whose layers are the model's 2 and 3."""


@pytest.mark.parametrize(("name", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_blocks_by_hand(name: str, expected: list[Piece]) -> None:
    place = Place(tensor=2, tensor_rank=1, expert=2, expert_rank=1, expert_tensor=2, expert_tensor_rank=1)
    assert pieces(name, SMALL, place, 2) == expected


def test_ends_of_tied_models_and_of_critics() -> None:
    first, last = Place(tensor=8, tensor_rank=0), Place(tensor=8, tensor_rank=5)
    assert not pieces("output_layer.weight", SMALL, last, 2), "five words on eight ranks: from the sixth on padding"
    assert is_copy("output_layer.weight", replace(SMALL, is_tied=True))
    assert not is_copy("output_layer.weight", SMALL)
    critic = replace(SMALL, has_value_head=True)
    for place in (first, last):
        assert pieces("output_layer.weight", critic, place, 2) == [Piece(0, 1, "score.weight", (1, 6), (0, 0))]
    assert not is_cut("output_layer.weight", critic)


@pytest.mark.parametrize("name", ["decoder.layers.0.self_attention.linear_q_down.weight", "vision.layers.0.weight"])
def test_a_parameter_of_no_family_is_no_name(name: str) -> None:
    with pytest.raises(KeyError):
        pieces(name, SMALL, Place(), 0)
