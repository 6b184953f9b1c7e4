"""Which block of which stored tensor each row of a Megatron parameter is, under the hub's names. Pure.

Loading, export and saved state follow from it. Parameters are called as in Megatron's local layers: what one is called
in Transformer Engine's is known to `local_name` alone. A parameter on one rank is cut along its axis 0 into pieces; a
piece is a block of one stored tensor, and as wide as the parameter. Rows without a piece are padding of the vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from rljob_workers.models.building import EMBEDDING, HEAD
from rljob_workers.models.value_head import VALUE_HEAD
from rljob_workers.trainers.megatron.sizes import DecoderSizes, padded_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rljob_workers.trainers.megatron.groups import Place


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a parameter."""

    row: int
    """The first of them on this rank."""
    rows: int
    name: str
    """Of the stored tensor."""
    shape: tuple[int, ...]
    """Of the whole stored tensor."""
    offset: tuple[int, ...]
    """Where the block begins in it."""

    def block(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Its shape, of a parameter that has `local_shape` on this rank."""
        return (self.rows, *local_shape[1:])

    def place(self, local_shape: Sequence[int]) -> tuple[slice, ...]:
        """Of the block in the whole stored tensor."""
        block = self.block(local_shape)
        return tuple(slice(start, start + size) for start, size in zip(self.offset, block, strict=True))

    def between(self, start: int, stop: int) -> Piece | None:
        """What rows [start, stop) of the parameter have of it."""
        first, end = max(self.row, start), min(self.row + self.rows, stop)
        if first >= end:
            return None
        return replace(self, row=first, rows=end - first, offset=(self.offset[0] + first - self.row, *self.offset[1:]))


_IN_ENGINE = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""Norms that are one module with the product behind them."""
_IN_GROUP = re.compile(r"experts\.(linear_fc[12])\.weight(\d+)")
"""Of one of the experts that are multiplied together."""


def local_name(name: str) -> str:
    """Of a parameter of either kind of layers: what it is called in Megatron's local ones."""
    layer, _, rest = name.partition(".layers.")
    number, _, rest = rest.partition(".")
    if not rest:
        return name
    local = _IN_ENGINE.get(rest) or _IN_GROUP.sub(r"experts.local_experts.\2.\1.weight", rest)
    return f"{layer}.layers.{number}.{local}"


def is_copy(name: str, sizes: DecoderSizes) -> bool:
    """Whether a parameter is the last stage's copy of tied embeddings: it is read, and neither saved nor exported."""
    return sizes.is_tied and name == "output_layer.weight"


_CUT = ("word_embeddings", "output_layer", "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def is_cut(name: str, sizes: DecoderSizes) -> bool:
    """Whether the ranks of one tensor group (of experts: of theirs) have different parts of it; else all have it."""
    return any(part in name for part in _CUT) and not (sizes.has_value_head and "output_layer" in name)


def is_expert(name: str) -> bool:
    """Whether it is of an expert."""
    return ".experts." in name


_WHOLE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}


def pieces(name: str, sizes: DecoderSizes, place: Place, first_layer: int) -> list[Piece]:
    """Of the parameter `name` of a chunk whose layer 0 is layer `first_layer` of the model, on the rank at `place`.

    Raises KeyError for a parameter that no family here has.
    """
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return _of_vocabulary(name, sizes, place)
    if name == "decoder.final_layernorm.weight":
        return [_all_of("model.norm.weight", (sizes.hidden,))]
    start, _, rest = name.partition(".layers.")
    layer, _, rest = rest.partition(".")
    if start != "decoder":
        raise KeyError(name)
    prefix = f"model.layers.{int(layer) + first_layer}."
    if rest in _WHOLE:
        shapes = {
            "mlp.router.weight": (sizes.experts, sizes.hidden),
            "self_attention.q_layernorm.weight": (sizes.head_width,),
            "self_attention.k_layernorm.weight": (sizes.head_width,),
        }
        return [_all_of(prefix + _WHOLE[rest], shapes.get(rest, (sizes.hidden,)))]
    if rest.startswith("self_attention.linear_qkv."):
        return _of_queries(prefix, rest.rpartition(".")[2], sizes, place)
    if rest == "self_attention.linear_proj.weight":
        width = sizes.heads * sizes.head_width
        shape = (sizes.hidden, width)
        offset = (0, width // place.tensor * place.tensor_rank)
        return [Piece(0, sizes.hidden, f"{prefix}self_attn.o_proj.weight", shape, offset)]
    if is_expert(rest):
        expert = int(rest.split(".")[3]) + place.expert_rank * (sizes.experts // place.expert)
        part = sizes.expert_inner // place.expert_tensor
        stem = f"{prefix}mlp.experts.{expert}."
        return _of_inner(stem, rest, sizes.hidden, sizes.expert_inner, part, part * place.expert_tensor_rank)
    part = sizes.inner // place.tensor
    return _of_inner(f"{prefix}mlp.", rest, sizes.hidden, sizes.inner, part, part * place.tensor_rank)


def _all_of(name: str, shape: tuple[int, ...]) -> Piece:
    return Piece(0, shape[0], name, shape, (0,) * len(shape))


def _of_vocabulary(name: str, sizes: DecoderSizes, place: Place) -> list[Piece]:
    if name == "output_layer.weight" and sizes.has_value_head:
        return [_all_of(VALUE_HEAD, (1, sizes.hidden))]
    stored = EMBEDDING if sizes.is_tied or name != "output_layer.weight" else HEAD
    rows = padded_vocabulary(sizes.vocabulary, place.tensor) // place.tensor
    first = rows * place.tensor_rank
    held = max(0, min(rows, sizes.vocabulary - first))
    return [Piece(0, held, stored, (sizes.vocabulary, sizes.hidden), (first, 0))] if held else []


def _of_queries(prefix: str, kind: str, sizes: DecoderSizes, place: Place) -> list[Piece]:
    """Megatron joins queries, keys and values, group by group: those of a key head stand together."""
    width = (sizes.hidden,) if kind == "weight" else ()
    zeros = (0,) * len(width)
    queries, keys = sizes.heads // sizes.key_heads * sizes.head_width, sizes.head_width
    groups = sizes.key_heads // place.tensor
    found, row = [], 0
    for group in range(groups * place.tensor_rank, groups * (place.tensor_rank + 1)):
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            shape = (rows * sizes.key_heads, *width)
            found.append(Piece(row, rows, f"{prefix}self_attn.{letter}_proj.{kind}", shape, (group * rows, *zeros)))
            row += rows
    return found


def _of_inner(stem: str, rest: str, hidden: int, inner: int, part: int, first: int) -> list[Piece]:
    """Of a feed-forward part of width `inner`, of which this rank has `part` from `first` on."""
    if rest.endswith("linear_fc1.weight"):
        names = (f"{stem}gate_proj.weight", f"{stem}up_proj.weight")
        return [Piece(number * part, part, name, (inner, hidden), (first, 0)) for number, name in enumerate(names)]
    if rest.endswith("linear_fc2.weight"):
        return [Piece(0, hidden, f"{stem}down_proj.weight", (hidden, inner), (0, first))]
    raise KeyError(rest)


@dataclass(frozen=True, slots=True)
class FlatSlice:
    """A rectangle of a stored tensor that lies back to back in a flat shard."""

    offset: tuple[int, ...]
    """In the stored tensor."""
    shape: tuple[int, ...]
    first: int
    """Its first element in the shard."""

    @property
    def elements(self) -> slice:
        """Its place in the shard."""
        return slice(self.first, self.first + prod(self.shape))


def flat_slices(piece: Piece, local_shape: Sequence[int], start: int, stop: int) -> Iterator[FlatSlice]:
    """What elements [start, stop) of a flattened parameter have of a piece: at most three rectangles."""
    width = prod(local_shape[1:])
    begin, end = max(start, piece.row * width), min(stop, (piece.row + piece.rows) * width)
    while begin < end:
        row, column = divmod(begin, width)
        if column or end - begin < width:  # part of a row
            until = min(end, (row + 1) * width)
            shape: tuple[int, ...] = (1, until - begin) if len(local_shape) > 1 else (until - begin,)
        else:
            until = end - (end - begin) % width
            shape = ((until - begin) // width, *local_shape[1:])
        offset = (piece.offset[0] + row - piece.row, *(first + column for first in piece.offset[1:]))
        yield FlatSlice(offset, shape, begin - start)
        begin = until
