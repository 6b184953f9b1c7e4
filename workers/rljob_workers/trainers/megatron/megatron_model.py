"""The models of the backend `Megatron`: one that only computes, and one that is trained, on a rank of their gang.

Built by `megatron_backend`; `model_trainer` has the step and the objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.devices import own_device
from rljob_workers.trainers.megatron import saved_state
from rljob_workers.trainers.megatron.expert_load import ExpertLoad
from rljob_workers.trainers.megatron.optimizer import DistributedAdamW
from rljob_workers.trainers.megatron.passes import passes_of_schedule
from rljob_workers.trainers.megatron.schedule import Schedule
from rljob_workers.trainers.megatron.weights import Export, load_folder
from rljob_workers.trainers.model_trainer import Meeting, ScoringModel, TrainableModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rljob_workers.algorithms.metric_totals import Totals
    from rljob_workers.models.slices import StateShare
    from rljob_workers.models.weights import Bucket
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.host_staging import HostStaging
    from rljob_workers.trainers.megatron.decoder import Decoder
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.micro_batches import RowRange
    from rljob_workers.trainers.model_trainer import LossOf, NormaliserOf
    from rljob_workers.trainers.optimizer_steps import AdamWConfig


def _load_of(decoder: Decoder) -> ExpertLoad | None:
    sizes = decoder.sizes
    if not sizes.experts:
        return None
    from rljob_workers.trainers.megatron.routers import routers_of

    return ExpertLoad(routers_of(decoder.chunks), decoder.options.balance, sizes.layers, sizes.experts)


class MegatronScoring(ScoringModel):
    """A decoder that only computes."""

    outputs: ClassVar[frozenset[Output]] = frozenset({Output.LOG_PROBS, Output.ENTROPY})

    def __init__(self, decoder: Decoder, chunks: Sequence[torch.nn.Module]) -> None:
        """`chunks` are the decoder's, as they are called; their weights need not be set yet."""
        self.device = own_device()
        # Without a pipeline passes are separate, and a rank sends its heartbeat between two of them.
        self.ranks_meet = Meeting.SCHEDULE if decoder.options.parallelism.pipeline > 1 else Meeting.PASS
        self._decoder = decoder
        self._schedule = Schedule(decoder, chunks, self.device)

    def load(self, source: Path) -> None:
        """Replaces all weights by this rank's blocks of a safetensors file or folder, or none."""
        load_folder(self._decoder, source)

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """See the base; a collective, and without a graph: the schedule has the backward passes."""
        with torch.no_grad():
            (outputs,) = self.score(tokens, response_lengths, [part], temperature)
        return outputs

    def score(
        self, tokens: Jagged, response_lengths: torch.Tensor, parts: Sequence[RowRange], temperature: float
    ) -> list[Outputs]:
        """See the base; a collective."""
        return self._schedule.score(tokens, response_lengths, parts, temperature)

    def num_passes(self, num_parts: int) -> int:
        """See the base."""
        return passes_of_schedule(num_parts, self._decoder.options.parallelism)


class MegatronModel(MegatronScoring, TrainableModel):
    """A decoder and its optimizer."""

    def __init__(self, decoder: Decoder, optimizer: AdamWConfig, mesh: Mesh, *, num_totals: int) -> None:
        """Its weights need not be set yet. A collective of the gang."""
        self._mesh = mesh
        self._optimizer = DistributedAdamW(decoder, optimizer, mesh.gang)
        super().__init__(decoder, self._optimizer.chunks)
        self._load = _load_of(decoder)
        self._export = Export(decoder, decoder.options.dtype, mesh.gang)
        self.weight_share = self._export.share
        self.totals = torch.zeros(num_totals, dtype=torch.float64, device=self.device)

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return self._optimizer.steps

    def load(self, source: Path) -> None:
        """As the base; the optimizer's own copies follow."""
        super().load(source)
        self._optimizer.load()

    def passes(self, *, are_last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged beside the last of them, where the options say so."""
        return self._optimizer.passes(are_last=are_last)

    def train(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        parts: Sequence[RowRange],
        temperature: float,
        loss_of: LossOf,
        normaliser_of: NormaliserOf,
    ) -> None:
        """See the base; a collective."""
        self._schedule.train(tokens, response_lengths, parts, temperature, loss_of, normaliser_of)

    def add_up(self, step: int) -> Sequence[float]:
        """Gradients by Megatron, and totals by one sum of the gang; the load of experts by another."""
        with self._mesh.gang.collective(f"the gradients of optimizer step {step}"):
            self._optimizer.add_up()
        totals = self.totals.cpu()
        self._mesh.add_up(totals, f"the loss of optimizer step {step}")
        if self._load is not None:
            self._load.add_up(self._mesh.gang, step)
        return totals.tolist()

    def own_totals(self, normaliser: float) -> Totals:
        """The load of experts."""
        return {} if self._load is None else self._load.totals(normaliser)

    def average_gradient(self, normaliser: float) -> float:
        """A collective."""
        with self._mesh.gang.collective("the norm of the gradient"):
            return self._optimizer.average(normaliser)

    def step(self, clipping: float) -> None:
        """Of this rank's shard; then the ranks that have the same parameters exchange them. A collective."""
        with self._mesh.gang.collective("the weights after an optimizer step"):
            self._optimizer.step(clipping)

    def clear_gradient(self) -> None:
        """Sets it to zero, and what is counted beside it."""
        self._optimizer.clear()
        if self._load is not None:
            self._load.clear()

    def export(self) -> Iterator[Bucket]:
        """This rank's tensors; a collective."""
        return self._export.buckets()

    def stage_state(self, staging: HostStaging) -> StateShare:
        """Copies of what this rank saves."""
        return saved_state.stage(self._decoder, self._optimizer, staging)

    def restore(self, folder: Path, role: str) -> None:
        """Weights and state of a checkpoint folder, of any layout."""
        saved_state.restore(self._decoder, self._optimizer, folder, role, self._mesh.gang.rank)


class MegatronCritic(MegatronModel):
    """A decoder with a value head, and its optimizer."""

    outputs: ClassVar[frozenset[Output]] = frozenset({Output.VALUES})

    def own_totals(self, normaliser: float) -> Totals:
        """The load of its experts, by names of its own: a report has both models."""
        found = super().own_totals(normaliser)
        return {name.replace("experts/", "critic/experts_"): total for name, total in found.items()}
