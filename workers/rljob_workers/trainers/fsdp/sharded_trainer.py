"""The backend `Fsdp`: a model on FSDP2 and one on a single rank, AdamW on shards, and their state in checkpoints.

Built by the factories. Each rank holds its shard of everything; a checkpoint has slices of the hub's tensors,
written by any number of ranks and read by any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch

from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs, rows_between
from rljob_workers.trainers.fsdp.sharded_model import reshard, score
from rljob_workers.trainers.fsdp.stored_tensors import Export, layout_of, load_folder, local_rows, stored_tensors
from rljob_workers.trainers.model_trainer import Meeting, ScoringModel, TrainableModel
from rljob_workers.trainers.optimizer_steps import AdamW, AdamWConfig, AdamWPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from rljob_workers.models.weights import Bucket
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.fsdp.inputs import ModelInputs
    from rljob_workers.trainers.fsdp.stored_tensors import StoredLayout, StoredPart
    from rljob_workers.trainers.host_staging import HostStaging
    from rljob_workers.trainers.micro_batches import RowRange

    MakeInputs = Callable[[Jagged, torch.Tensor, torch.device], ModelInputs]


OUTPUTS = frozenset({Output.LOG_PROBS, Output.ENTROPY})


def forward(
    model: PreTrainedModel,
    make_inputs: MakeInputs,
    tokens: Jagged,
    response_lengths: torch.Tensor,
    part: RowRange,
    temperature: float,
) -> Outputs:
    """Log-probs and entropies of the response tokens of `part`; a collective where the model is sharded."""
    chosen = rows_between(tokens, part.start, part.stop)
    inputs = make_inputs(chosen, response_lengths[part.start : part.stop], model.device)
    log_probs, entropy = score(model, inputs, temperature)
    return Outputs(log_probs=log_probs, entropy=entropy)


class FsdpScoring(ScoringModel):
    """A model that only computes log-probs; as a trainer's sharded one, with nothing sharded."""

    outputs: ClassVar[frozenset[Output]] = OUTPUTS

    def __init__(self, model: PreTrainedModel, *, packing: bool) -> None:
        """`model` is a whole one (`sharded_model.build_whole`); its weights need not be set yet."""
        self._model = model.requires_grad_(False)
        self._make_inputs = joined_inputs if packing else padded_inputs
        self.device = model.device

    def load(self, source: Path) -> None:
        """Replaces all weights by those of a safetensors file or folder, or none."""
        load_folder(self._model, source)

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Log-probs and entropies."""
        return forward(self._model, self._make_inputs, tokens, response_lengths, part, temperature)


class ShardedAdamW(AdamW):
    """The optimizer of one rank."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], config: AdamWConfig) -> None:
        self._parameters = parameters
        shards = {name: local_rows(parameter)[0] for name, parameter in parameters.items()}
        self.first_moments = {name: torch.zeros_like(shard) for name, shard in shards.items()}
        """Name in memory -> this rank's rows."""
        self.second_moments = {name: torch.zeros_like(shard) for name, shard in shards.items()}
        # A rank may have no rows at all of a small parameter.
        self._held = [name for name, shard in shards.items() if shard.numel()]
        super().__init__(
            [
                AdamWPart(
                    shards[name],
                    self.first_moments[name],
                    self.second_moments[name],
                    config.weight_decay if shards[name].dim() >= 2 else 0.0,
                )
                for name in self._held
            ],
            config,
        )

    def square_sum(self) -> float:
        """Of all elements of this rank's shard of the gradient."""
        gradients = self._gradients()
        if not gradients:
            return 0.0
        norms = torch.stack(torch._foreach_norm(gradients))
        return float(norms.double().square().sum())

    def scale_and_step(self, scale: float) -> None:
        """One step with the gradient times `scale`."""
        gradients = self._gradients()
        torch._foreach_mul_(gradients, scale)
        self.step(gradients)

    def clear(self) -> None:
        """Drops the gradient."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's rows, of what it holds; zeros for a parameter that nothing depended on."""
        return [self._gradient(name) for name in self._held]

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self._parameters[name].grad
        if gradient is None:
            return torch.zeros_like(self.first_moments[name])
        return local_rows(gradient)[0]


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
        parts = {(kind, part.name): part for kind, shards in kinds.items() for part in self._parts(shards)}
        copies, wait = staging.begin({place: part.values for place, part in parts.items()})
        slices = [
            StateSlice(kind, name, part.shape, part.offset, copies[kind, name]) for (kind, name), part in parts.items()
        ]
        return StateShare(slices, {"random": torch.random.get_rng_state()}, {STEPS: self._optimizer.steps}, wait)

    def restore(self, folder: Path, role: str, model: PreTrainedModel, rank: int) -> None:
        """Weights, moments and random state of a folder; ValueError, and nothing changed, where they do not fit."""
        shapes = {stored: shape for name in self._parameters for stored, shape in self._layout.shapes(name).items()}
        saved = SavedState(folder, role)
        kinds = {kind: shards for kind, shards in self._kinds().items() if kind != PARAMETER or kind in saved.kinds}
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


class FsdpModel(TrainableModel):
    """A sharded model and its optimizer, on one of its ranks."""

    outputs: ClassVar[frozenset[Output]] = OUTPUTS
    ranks_meet = Meeting.PASS

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: AdamWConfig,
        group: DataParallelGroup,
        *,
        num_totals: int,
        dtype: torch.dtype,
        packing: bool,
        device: torch.device,
    ) -> None:
        """`model` is sharded over the ranks of `group` (`sharded_model.build_sharded`); weights need not be set yet.

        `dtype` is that of published weights.
        """
        self.device = device
        self._model = model
        self._group = group
        self._make_inputs = joined_inputs if packing else padded_inputs
        parameters = dict(model.named_parameters())
        self._optimizer = ShardedAdamW(parameters, optimizer)
        layout = layout_of(model)
        self._state = ShardedState(parameters, layout, self._optimizer)
        self._export = Export(stored_tensors(model), layout, dtype, group)
        self._is_exact = dtype == torch.float32
        self._square_sum = 0.0
        """Of the summed gradient of all ranks."""
        self._scale = 1.0
        """What the summed gradient is multiplied by to be the mean one."""
        self.weight_share = self._export.share
        self.totals = torch.zeros(num_totals, dtype=torch.float64, device=device)

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return self._optimizer.steps

    def load(self, source: Path) -> None:
        """Replaces all weights by this rank's rows of a safetensors file or folder."""
        reshard(self._model)
        load_folder(self._model, source)

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Log-probs and entropies; a collective."""
        return forward(self._model, self._make_inputs, tokens, response_lengths, part, temperature)

    def add_up(self, step: int) -> Sequence[float]:
        """One sum over the ranks, of the totals and of the square sum of each rank's shard: gradients are summed."""
        square_sum = torch.tensor([self._optimizer.square_sum()], dtype=torch.float64)
        sums = torch.cat([self.totals.cpu(), square_sum])
        self._group.add_up(sums, f"the loss and norm of optimizer step {step}")
        *totals, self._square_sum = sums.tolist()
        return totals

    def average_gradient(self, normaliser: float) -> float:
        """FSDP has divided the sum over the ranks by their number."""
        self._scale = self._group.world / normaliser
        return math.sqrt(self._square_sum) * self._scale if math.isfinite(self._square_sum) else self._square_sum

    def step(self, clipping: float) -> None:
        """Of this rank's shard."""
        self._optimizer.scale_and_step(self._scale * clipping)

    def clear_gradient(self) -> None:
        """Frees it."""
        self._optimizer.clear()

    def export(self) -> Iterator[Bucket]:
        """This rank's tensors, gathered one by one."""
        reshard(self._model)
        return self._export.buckets()

    def stage_state(self, staging: HostStaging) -> StateShare:
        """Copies of what this rank holds."""
        return self._state.stage(staging, weights_are_exact=self._is_exact)

    def restore(self, folder: Path, role: str) -> None:
        """Weights and state of a checkpoint folder."""
        reshard(self._model)
        self._state.restore(folder, role, self._model, self._group.rank)
