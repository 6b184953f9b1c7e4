"""The sharded trainer's part of a checkpoint: slices of the hub's tensors, written by any number of ranks, read by any.

Each rank saves what it holds and reads what it holds, out of mapped files: no rank ever holds a whole moment. The same
format as the flat trainer's (`models.slices`), under the same names, so that each restores what the other has saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_api.role_traits import LEADING_ROLE
from rljob_workers.models.release_0_1_0 import OldState, is_of_release_0_1_0
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.trainers.fsdp.loading import load_folder, local_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from rljob_workers.trainers.fsdp.optimizer import ShardedAdamW
    from rljob_workers.trainers.fsdp.stored_names import StoredLayout, StoredPart
    from rljob_workers.trainers.host_staging import HostStaging


class ShardedState:
    """The state of a model and its optimizer, on one rank."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], layout: StoredLayout, optimizer: ShardedAdamW
    ) -> None:
        self._parameters = parameters
        self._layout = layout
        self._optimizer = optimizer

    def stage(self, staging: HostStaging, *, weights_are_exact: bool) -> StateShare:
        """Host copies of this rank's slices: the moments and, where published weights are rounded, the exact ones."""
        kinds = self._kinds()
        if weights_are_exact:
            del kinds[PARAMETER]
        parts = {kind: {part.name: part for part in self._parts(shards)} for kind, shards in kinds.items()}
        copies = {
            kind: staging.copy({name: part.values for name, part in of_kind.items()}) for kind, of_kind in parts.items()
        }
        slices = [
            StateSlice(kind, name, part.shape, part.offset, copies[kind].unfinished[name])
            for kind, of_kind in parts.items()
            for name, part in of_kind.items()
        ]

        def wait() -> None:
            for staged in copies.values():
                staged.wait()

        return StateShare(slices, {"random": torch.random.get_rng_state()}, {STEPS: self._optimizer.steps}, wait)

    def restore(self, folder: Path, model: PreTrainedModel, rank: int) -> None:
        """Weights, moments and random state of a folder; ValueError, and nothing changed, where they do not fit."""
        shapes = {stored: shape for name in self._parameters for stored, shape in self._layout.shapes(name).items()}
        if is_of_release_0_1_0(folder):
            self._restore_old(OldState(folder), shapes, model, folder)
            return
        saved = SavedState(folder, LEADING_ROLE.value)
        kinds = {kind: shards for kind, shards in self._kinds().items() if kind != PARAMETER or saved.has(PARAMETER)}
        for kind in kinds:
            saved.check(kind, shapes)
        load_folder(model, folder)
        for kind, shards in kinds.items():
            for part in self._parts(shards):
                saved.fill_part(kind, part.name, part.offset, part.values)
        self._optimizer.steps = saved.values[STEPS]
        own = saved.own(rank)
        if "random" in own:  # a rank that the checkpoint does not know begins with a random state of its own
            torch.random.set_rng_state(own["random"].clone())

    def _restore_old(
        self, saved: OldState, shapes: Mapping[str, tuple[int, ...]], model: PreTrainedModel, folder: Path
    ) -> None:
        """What the flat trainer of release 0.1.0 saved, on one rank whatever their number was."""
        saved.check(shapes)
        load_folder(model, folder)
        for kind, tensors in saved.kinds().items():
            for part in self._parts(self._kinds()[kind]):
                part.values.copy_(tensors[part.name][part.place])
        self._optimizer.steps = saved.values[STEPS]

    def _kinds(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Kind of state -> name in memory -> this rank's rows."""
        return {
            EXP_AVG: self._optimizer.first_moments,
            EXP_AVG_SQ: self._optimizer.second_moments,
            PARAMETER: {name: local_rows(parameter)[0] for name, parameter in self._parameters.items()},
        }

    def _parts(self, shards: Mapping[str, torch.Tensor]) -> Iterator[StoredPart]:
        for name, parameter in self._parameters.items():
            _, first = local_rows(parameter)
            yield from self._layout.parts(name, shards[name], first)
