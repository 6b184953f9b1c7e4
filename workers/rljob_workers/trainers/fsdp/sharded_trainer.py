"""The backend `Fsdp`: `Trainer` on FSDP2 and `ForwardModel` on one rank, AdamW on shards, and its state in checkpoints.

Built by the factories. Each rank holds its shard of everything; a checkpoint has slices of the hub's tensors,
written by any number of ranks and read by any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rljob_api.roles import LEADING_ROLE
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs, rows_between
from rljob_workers.trainers.fsdp.sharded_model import score
from rljob_workers.trainers.fsdp.stored_tensors import Export, layout_of, load_folder, local_rows, stored_tensors
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.optimizer_steps import AdamW, AdamWConfig, AdamWPart, StepSums, TrainerConfig, statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.fsdp.inputs import ModelInputs
    from rljob_workers.trainers.fsdp.stored_tensors import StoredLayout, StoredPart


class FsdpForwardModel(ForwardModel):
    """A model that only computes log-probs; as a trainer's sharded one, with nothing sharded."""

    def __init__(self, model: PreTrainedModel, *, limits: MicroBatchLimits, packing: bool) -> None:
        """`model` is a whole one (`building.build_whole`); its weights need not be set yet."""
        self._model = model.requires_grad_(False)
        self._limits = limits
        self._inputs = joined_inputs if packing else padded_inputs

    def load(self, blob: Path) -> None:
        """Replaces all weights by those of a safetensors file or folder, or none."""
        load_folder(self._model, blob)

    def log_probs(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """Log pi of every response token, micro-batch by micro-batch."""
        parts = [torch.zeros(0)]
        with torch.no_grad():
            for part in cut(tokens, response_lengths, self._limits):
                chosen = rows_between(tokens, part.start, part.stop)
                inputs = self._inputs(chosen, response_lengths[part.start : part.stop], self._model.device)
                parts.append(score(self._model, inputs, temperature)[0].float().cpu())
                progress()
        return Jagged.from_lengths(torch.cat(parts), response_lengths)


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

    def restore(self, folder: Path, model: PreTrainedModel, rank: int) -> None:
        """Weights, moments and random state of a folder; ValueError, and nothing changed, where they do not fit."""
        shapes = {stored: shape for name in self._parameters for stored, shape in self._layout.shapes(name).items()}
        saved = SavedState(folder, LEADING_ROLE.value)
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


class FsdpTrainer(Trainer):
    """Trains one policy, on one of its ranks.

    `_totals` is what the ranks add up at an optimizer step, beside the gradients, which are summed by then: loss,
    normaliser, metrics, and last the square sum of each rank's shard of the gradient.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig,
        group: DataParallelGroup,
        *,
        packing: bool,
        device: torch.device,
    ) -> None:
        """`model` is sharded over the ranks of `group` (`building.build_sharded`); its weights need not be set yet."""
        self._model = model
        self._config = config
        self._group = group
        self._make_inputs = joined_inputs if packing else padded_inputs
        parameters = dict(model.named_parameters())
        self._optimizer = ShardedAdamW(parameters, config.optimizer)
        layout = layout_of(model)
        self._state = ShardedState(parameters, layout, self._optimizer)
        self._export = Export(stored_tensors(model), layout, config.dtype, group)
        self.weight_share = self._export.share
        self._totals = torch.zeros(len(statistics_of(config.loss)), dtype=torch.float64, device=device)
        self._staging = HostStaging(device)
        self._step = StepSums(config, self._totals)

    def load(self, blob: Path) -> None:
        """Replaces all weights by this rank's rows of a safetensors file or folder; the optimizer's state stays."""
        self._staging.settle()
        self._reshard()
        load_folder(self._model, blob)

    def log_probs(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
    ) -> Jagged:
        """Log pi of every response token under the weights of now."""
        parts = [torch.zeros(0)]
        with torch.no_grad():
            for part in self._cut(tokens, response_lengths, num_micro_batches):
                with self._group.collective("a forward pass"):
                    log_probs, _ = score(self._model, self._inputs(tokens, response_lengths, part), temperature)
                parts.append(log_probs.float().cpu())
                progress()
        return Jagged.from_lengths(torch.cat(parts), response_lengths)

    def num_micro_batches(self, rows: TrainRows) -> int:
        """As many as the rows fill."""
        return len(self._cut(rows.tokens, rows.response_lengths, 0))

    def accumulate(
        self, rows: TrainRows, progress: Callable[[], None] = no_progress, *, num_micro_batches: int = 0
    ) -> None:
        """Forward and backward, micro-batch by micro-batch; the gradient of the loss sum is added up."""
        parts = self._cut(rows.tokens, rows.response_lengths, num_micro_batches)
        for number, part in enumerate(parts, start=1):
            with self._group.collective(f"micro-batch {number} of {len(parts)}"):
                self._pass(rows, part)
            progress()

    def optimizer_step(self) -> OptimizerStepResult:
        """Adds up the sums over the ranks, divides by the global normaliser, clips, steps, clears.

        Where every token of the global batch was masked the gradient is 0: the step still counts.
        """
        number = self._optimizer.steps + 1
        square_sum = torch.tensor([self._optimizer.square_sum()], dtype=torch.float64)
        sums = torch.cat([self._totals.cpu(), square_sum])
        self._group.add_up(sums, f"the loss and norm of optimizer step {number}")
        *totals, square_sum_of_all = sums.tolist()
        means = self._step.means(totals)
        scale = self._group.world / means.normaliser  # FSDP has divided the sum over the ranks by their number
        norm = math.sqrt(square_sum_of_all) * scale if math.isfinite(square_sum_of_all) else square_sum_of_all
        result = self._step.result(number, means, norm)
        if result.skipped is None:
            self._staging.settle()
            self._optimizer.scale_and_step(scale * self._config.optimizer.clipping(norm))
        self._optimizer.clear()
        return result

    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """This rank's tensors, gathered one by one, in the dtype of the model."""
        self._reshard()
        return self._export.stage()

    def stage_state(self) -> StateShare:
        """Copies of what this rank holds."""
        return self._state.stage(self._staging, weights_are_exact=self._config.dtype == torch.float32)

    def restore(self, folder: Path) -> None:
        """Weights and state of a checkpoint folder; gradients of the time before are dropped."""
        self._staging.settle()
        self._reshard()
        self._state.restore(folder, self._model, self._group.rank)
        self._optimizer.clear()
        self._step.clear()

    def _cut(self, tokens: Jagged, response_lengths: torch.Tensor, count: int) -> list[RowRange]:
        return cut(tokens, response_lengths, self._config.limits, count=count)

    def _pass(self, rows: TrainRows, part: RowRange) -> None:
        inputs = self._inputs(rows.tokens, rows.response_lengths, part)
        log_probs, entropy = score(self._model, inputs, self._config.temperature)
        self._step.add(rows, part, log_probs, entropy)

    def _inputs(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange) -> ModelInputs:
        chosen = rows_between(tokens, part.start, part.stop)
        return self._make_inputs(chosen, response_lengths[part.start : part.stop], self._totals.device)

    def _reshard(self) -> None:
        """A pass without a backward pass leaves what is in no layer gathered, and not as what it is sharded."""
        from torch.distributed.fsdp import FSDPModule

        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
