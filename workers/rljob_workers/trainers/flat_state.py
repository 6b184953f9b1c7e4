"""The state of the flat trainer: staged for a checkpoint, and restored from one, also of release 0.1.0.

Used by `torch_trainer` only. All ranks hold all weights alike: one of them saves them, each saves its random state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_api.role_traits import LEADING_ROLE
from rljob_workers.models.release_0_1_0 import OldState, is_of_release_0_1_0
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.trainers.torch_forward import load_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rljob_workers.trainers.adamw import FlatAdamW
    from rljob_workers.trainers.decoder import Decoder
    from rljob_workers.trainers.host_staging import HostStaging


def random_state() -> StateShare:
    """What a rank saves that exports nothing."""
    return StateShare(own={"random": torch.random.get_rng_state()})


def stage(decoder: Decoder, optimizer: FlatAdamW, staging: HostStaging, *, weights_are_exact: bool) -> StateShare:
    """Everything: the moments and, where the published weights are rounded, the exact ones."""
    flats = {EXP_AVG: optimizer.first_moment, EXP_AVG_SQ: optimizer.second_moment}
    if not weights_are_exact:
        flats[PARAMETER] = decoder.flat
    copies = {kind: staging.copy(decoder.views_of(flat)) for kind, flat in flats.items()}
    slices = [
        StateSlice(kind, name, tuple(view.shape), (0,) * view.dim(), view)
        for kind, staged in copies.items()
        for name, view in staged.unfinished.items()
    ]

    def wait() -> None:
        for staged in copies.values():
            staged.wait()

    return StateShare(slices, random_state().own, {STEPS: optimizer.steps}, wait)


def restore(folder: Path, decoder: Decoder, optimizer: FlatAdamW, rank: int) -> None:
    """Weights, moments and random state; ValueError, and nothing changed, where they are of another model."""
    if is_of_release_0_1_0(folder):
        _restore_release_0_1_0(folder, decoder, optimizer)
        return
    saved = SavedState(folder, LEADING_ROLE.value)
    shapes = {name: view.shape for name, view in decoder.views_of(decoder.flat).items()}
    kinds: Mapping[str, torch.Tensor] = {EXP_AVG: optimizer.first_moment, EXP_AVG_SQ: optimizer.second_moment}
    if saved.has(PARAMETER):
        kinds = {**kinds, PARAMETER: decoder.flat}
    for kind in kinds:
        saved.check(kind, shapes)
    load_weights(decoder, folder)
    for kind, flat in kinds.items():
        saved.fill(kind, decoder.views_of(flat))
    optimizer.steps = saved.values[STEPS]
    _restore_random(saved.own(rank))


def _restore_random(own: Mapping[str, torch.Tensor]) -> None:
    """A rank that the checkpoint does not know begins with a random state of its own."""
    if "random" in own:
        torch.random.set_rng_state(own["random"].clone())


def _restore_release_0_1_0(folder: Path, decoder: Decoder, optimizer: FlatAdamW) -> None:
    saved = OldState(folder)
    saved.check({name: tuple(view.shape) for name, view in decoder.views_of(decoder.flat).items()})
    load_weights(decoder, folder)
    flats = {EXP_AVG: optimizer.first_moment, EXP_AVG_SQ: optimizer.second_moment, PARAMETER: decoder.flat}
    for kind, tensors in saved.kinds().items():
        for name, view in decoder.views_of(flats[kind]).items():
            view.copy_(tensors[name])
    optimizer.steps = saved.values[STEPS]
    _restore_random({"random": saved.random})
