"""The state of a decoder and its optimizer in checkpoints: slices under the hub's names, of whatever layout.

A rank writes what its shards of the optimizer have, each element of the model once over all ranks, and reads from any
ranks' slices. Used by `megatron_model`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.models.slices import PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.trainers.megatron.stored_names import flat_slices, is_copy, is_cut, is_expert
from rljob_workers.trainers.megatron.weights import load_folder, stored_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rljob_workers.trainers.host_staging import HostStaging
    from rljob_workers.trainers.megatron.decoder import Decoder, NamedParameter
    from rljob_workers.trainers.megatron.optimizer import DistributedAdamW, Shard


def stage(decoder: Decoder, optimizer: DistributedAdamW, staging: HostStaging) -> StateShare:
    """Host copies of this rank's slices: moments and, where published weights are rounded, the exact ones."""
    is_exact = decoder.options.dtype == torch.float32
    live = [
        one
        for shard in optimizer.shards()
        if _is_saved_here(decoder, shard.parameter)
        for one in _slices(shard)
        if not (is_exact and one.kind == PARAMETER)
    ]
    copies, wait = staging.begin({number: one.values for number, one in enumerate(live)})
    slices = [StateSlice(one.kind, one.name, one.shape, one.offset, copies[number]) for number, one in enumerate(live)]
    return StateShare(slices, {"random": torch.random.get_rng_state()}, {STEPS: optimizer.steps}, wait)


def restore(decoder: Decoder, optimizer: DistributedAdamW, folder: Path, role: str, rank: int) -> None:
    """Weights, moments and random state of a folder; ValueError, and nothing changed, where they do not fit."""
    saved = SavedState(folder, role)
    slices = [one for shard in optimizer.shards() for one in _slices(shard)]
    slices = [one for one in slices if one.kind != PARAMETER or PARAMETER in saved.kinds]
    shapes = stored_shapes(decoder)
    for kind in {one.kind for one in slices}:
        saved.check(kind, shapes)
    load_folder(decoder, folder)
    optimizer.load()
    for one in slices:
        saved.fill_part(one.kind, one.name, one.offset, one.values)
    optimizer.go_on_from(saved.values[STEPS])
    own = saved.own(rank)
    if "random" in own:  # a rank that the checkpoint does not know begins with a random state of its own
        torch.random.set_rng_state(own["random"].clone())


def _slices(shard: Shard) -> Iterator[StateSlice]:
    """What a shard has of stored tensors, as views."""
    parameter = shard.parameter
    for kind, values in shard.state.items():
        for piece in parameter.pieces:
            for one in flat_slices(piece, parameter.values.shape, shard.start, shard.stop):
                yield StateSlice(kind, piece.name, piece.shape, one.offset, values[one.elements].view(one.shape))


def _is_saved_here(decoder: Decoder, parameter: NamedParameter) -> bool:
    """Whether this rank is the one that saves what several tensor ranks have alike."""
    if is_copy(parameter.name, decoder.sizes):
        return False
    place = decoder.place
    rank = place.expert_tensor_rank if is_expert(parameter.name) else place.tensor_rank
    return is_cut(parameter.name, decoder.sizes) or rank == 0
