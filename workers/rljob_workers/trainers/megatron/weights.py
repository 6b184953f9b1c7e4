"""Weights into and out of a decoder: each rank reads its own blocks, and gives whole tensors, some on each rank.

Used by `megatron_model`. A tensor that is cut over tensor ranks is gathered to one of them, slice by slice; nothing
else travels. Beside the model a rank holds a bucket, or a tensor that is larger than one, and half a bucket of slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson
import torch
from torch import distributed

from rljob_workers.models.blob import WeightShare, layout_digest, read_weights, rounds
from rljob_workers.models.building import EMBEDDING, HEAD, check_shapes
from rljob_workers.models.weights import Bucket
from rljob_workers.trainers.megatron.stored_names import is_copy, is_cut, is_expert, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.megatron.decoder import Decoder, NamedParameter
    from rljob_workers.trainers.megatron.groups import Place
    from rljob_workers.trainers.megatron.stored_names import Piece

BUCKET_BYTES = 256 << 20
"""Of the tensors of one bucket, on each rank of a stage together; a larger tensor is a bucket of its own."""
_SLICES = 4
"""In as many a bucket is gathered: while one travels its owner has it twice, since Gloo receives into a copy."""


def load_folder(decoder: Decoder, path: Path) -> None:
    """This rank's blocks of a safetensors file, a Hugging Face folder or a checkpoint folder.

    Raises ValueError that names the first tensor that differs, with both shapes; nothing is changed then. A head may be
    there, and is not read, where it is tied or the decoder is a critic's.
    """
    stored = read_weights(path)  # mapped: what is not copied is not read
    # Of the whole model: else the ranks that hold what is wrong would refuse what the others have taken.
    wanted = stored_shapes(decoder)
    has_spare_head = decoder.sizes.is_tied or decoder.sizes.has_value_head
    spare = {HEAD: wanted[EMBEDDING]} if has_spare_head else {}
    check_shapes(stored, wanted, spare, source=f"the weights in {path}")
    with torch.no_grad():
        for parameter in decoder.parameters():
            if sum(piece.rows for piece in parameter.pieces) < len(parameter.values):
                parameter.values.zero_()  # padding of the vocabulary
            for piece in parameter.pieces:
                block = stored[piece.name][piece.place(parameter.values.shape)]
                parameter.values[piece.row : piece.row + piece.rows].copy_(block)


def stored_shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Stored name -> shape of all tensors of the whole model, those of other ranks included."""
    sizes, whole = decoder.sizes, replace(decoder.place, tensor=1, tensor_rank=0, expert=1, expert_rank=0)
    whole = replace(whole, expert_tensor=1, expert_tensor_rank=0)
    linear = ("weight", "bias") if decoder.settings.add_qkv_bias else ("weight",)
    in_layer = [f"self_attention.linear_qkv.{kind}" for kind in linear]
    in_layer += ["self_attention.linear_proj.weight", "input_layernorm.weight", "pre_mlp_layernorm.weight"]
    if decoder.settings.qk_layernorm:
        in_layer += ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"]
    stems = [f"mlp.experts.local_experts.{expert}" for expert in range(sizes.experts)] or ["mlp"]
    in_layer += ["mlp.router.weight"] if sizes.experts else []
    in_layer += [f"{stem}.linear_fc{number}.weight" for stem in stems for number in (1, 2)]
    names = [f"decoder.layers.{layer}.{name}" for layer in range(sizes.layers) for name in in_layer]
    names += ["embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"]
    return {piece.name: piece.shape for name in names for piece in pieces(name, sizes, whole, 0)}


@dataclass(frozen=True, slots=True, eq=False)
class _Owned:
    """A parameter that is exported, and by whom."""

    parameter: NamedParameter
    group: distributed.ProcessGroup | None
    """Of the tensor ranks that have parts of it; None: each rank of its stage has all of it."""
    is_here: bool
    """Whether this rank has a part in it."""
    is_owner: bool
    owner: int
    """Its rank in the gang."""


class Export:
    """How the weights of a decoder leave it, on one rank."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, gang: DataParallelGroup) -> None:
        """`dtype` is published. A collective of the gang."""
        self._decoder = decoder
        self._dtype = dtype
        self._gang = gang
        self._rounds = rounds({owned: _num_bytes(owned, dtype) for owned in _assigned(decoder)}, BUCKET_BYTES)
        self._num_rounds, self.share = self._compared()

    def buckets(self) -> Iterator[Bucket]:
        """This rank's tensors, bucket by bucket, in memory of its own; a collective."""
        for number in range(self._num_rounds):
            found: dict[str, torch.Tensor] = {}
            what = f"the weights of a version, round {number + 1} of {self._num_rounds}"
            with self._gang.collective(what), torch.no_grad():
                for owned in self._rounds[number] if number < len(self._rounds) else ():
                    found |= self._whole(owned)
            yield Bucket(found, is_live=False)

    def _whole(self, owned: _Owned) -> dict[str, torch.Tensor]:
        """The stored tensors of a parameter, on its owner; none on other ranks."""
        if not owned.is_here or (owned.group is None and not owned.is_owner):
            return {}
        values = owned.parameter.values.detach()
        found = self._pieces_by_rank(owned) if owned.is_owner else []
        shapes = {piece.name: piece.shape for of_rank in found for piece in of_rank}
        stored = {name: values.new_empty(shape, dtype=self._dtype) for name, shape in shapes.items()}
        num_rows = max(1, len(values) * BUCKET_BYTES // (_SLICES * _num_bytes(owned, self._dtype)))
        for start in range(0, len(values), num_rows):
            rows = values[start : start + num_rows]
            for part, of_rank in zip(self._parts(owned, rows), found, strict=True):
                for piece in filter(None, (one.between(start, start + len(rows)) for one in of_rank)):
                    stored[piece.name][piece.place(values.shape)] = part[piece.row - start :][: piece.rows]
        return stored

    def _parts(self, owned: _Owned, rows: torch.Tensor) -> list[torch.Tensor]:
        """These rows of each rank that has some, on their owner; none on other ranks."""
        if owned.group is None:
            return [rows]
        rows = rows.to(self._dtype).contiguous()
        parts = [torch.empty_like(rows) for _ in range(owned.group.size())] if owned.is_owner else None
        distributed.gather(rows, parts, dst=owned.owner, group=owned.group)
        return parts or []

    def _pieces_by_rank(self, owned: _Owned) -> list[list[Piece]]:
        """Of each rank that has a part of the tensor."""
        if owned.group is None:
            return [owned.parameter.pieces]
        name, place = owned.parameter.name, self._decoder.place
        places = [_beside(place, rank, name) for rank in range(owned.group.size())]
        return [pieces(name, self._decoder.sizes, one, owned.parameter.first_layer) for one in places]

    def _compared(self) -> tuple[int, WeightShare | None]:
        """The most rounds of any rank, and which part of the model's tensors is this rank's."""
        own = {
            piece.name: list(piece.shape)
            for owned in (one for names in self._rounds for one in names)
            if owned.is_owner
            for piece in owned.parameter.pieces
        }
        layouts = [orjson.loads(text) for text in _texts_of_all(self._gang, orjson.dumps([len(self._rounds), own]))]
        parts = [tensors for _, tensors in layouts]
        owners = [rank for rank, tensors in enumerate(parts) if tensors]
        share = None
        if self._gang.rank in owners:
            digest = layout_digest([parts[rank] for rank in owners])
            share = WeightShare(owners.index(self._gang.rank), len(owners), digest)
        return max(rounds for rounds, _ in layouts), share


def _assigned(decoder: Decoder) -> Iterator[_Owned]:
    """Parameters go round the replicas that have them, and within a tensor group to the rank that has fewest bytes."""
    from megatron.core import parallel_state

    loads: dict[tuple[bool, int, int], int] = {}
    for parameter in decoder.parameters():
        if is_copy(parameter.name, decoder.sizes):
            continue
        expert = is_expert(parameter.name)
        if expert:
            group = parallel_state.get_expert_tensor_parallel_group()
            replicas = parallel_state.get_expert_data_parallel_world_size()
            replica = parallel_state.get_expert_data_parallel_rank()
        else:
            group = parallel_state.get_tensor_model_parallel_group()
            replicas = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
            replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        size = group.size() if is_cut(parameter.name, decoder.sizes) else 1
        choices = [(expert, at, rank) for at in range(replicas) for rank in range(size)]
        chosen = min(choices, key=lambda key: (loads.get(key, 0), key))
        loads[chosen] = loads.get(chosen, 0) + parameter.values.numel() * (group.size() if size > 1 else 1)
        _, owning_replica, rank = chosen
        is_here = replica == owning_replica
        yield _Owned(
            parameter,
            group if size > 1 else None,
            is_here,
            is_here and group.rank() == rank,
            distributed.get_global_rank(group, rank),
        )


def _num_bytes(owned: _Owned, dtype: torch.dtype) -> int:
    """Of the whole tensor."""
    return owned.parameter.values.numel() * dtype.itemsize * (1 if owned.group is None else owned.group.size())


def _beside(place: Place, rank: int, name: str) -> Place:
    """Of another rank of this one's tensor group."""
    return replace(place, expert_tensor_rank=rank) if is_expert(name) else replace(place, tensor_rank=rank)


def _texts_of_all(gang: DataParallelGroup, own: bytes) -> list[bytes]:
    """What each rank of the gang brings, in their order; a collective."""
    sizes = torch.zeros(gang.world, dtype=torch.int64)
    sizes[gang.rank] = len(own)
    gang.add_up(sizes, "the sizes of all layouts")
    ends = sizes.cumsum(0)
    texts = torch.zeros(int(ends[-1]), dtype=torch.uint8)
    texts[int(ends[gang.rank]) - len(own) : int(ends[gang.rank])] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    gang.add_up(texts, "the layouts of all ranks")
    return [one.numpy().tobytes() for one in torch.split(texts, sizes.tolist())]
