"""Training of a sharded transformers model: `Trainer` on FSDP2, each rank holding its shard of everything.

Used by the actor through `trainers.build_trainer`. Knows neither queue nor rollout ids.

Every micro-batch is a forward and backward pass that all ranks make together: layers are gathered for it, and at its
end each gradient is summed and cut over the ranks at once. To add gradients up on each rank and meet only in the last
micro-batch would save that traffic, and hold the gradient of the whole model on every rank. A rank without rows left
makes its passes over one token of which nothing is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.policy_loss import LossSums, PolicyLossConfig, TokenInputs, policy_loss
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.fsdp.export import Export
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs, rows_between
from rljob_workers.trainers.fsdp.loading import load_folder, stored_tensors
from rljob_workers.trainers.fsdp.optimizer import ShardedAdamW
from rljob_workers.trainers.fsdp.saved_state import ShardedState
from rljob_workers.trainers.fsdp.scoring import score
from rljob_workers.trainers.fsdp.stored_names import layout_of
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.skipping import Skipping, Suspects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from rljob_workers.models.share import WeightShare
    from rljob_workers.models.slices import StateShare
    from rljob_workers.trainers.adamw import AdamWConfig
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.fsdp.inputs import ModelInputs


@dataclass(frozen=True, slots=True)
class FsdpTrainerConfig:
    """The trainer's slice of the job."""

    dtype: torch.dtype
    """Of published weights. The weights that are trained are float32 always."""
    limits: MicroBatchLimits
    temperature: float
    """Of the sampling: logits are divided by it before log-probs are taken."""
    loss: PolicyLossConfig
    optimizer: AdamWConfig
    max_skipped_steps: int
    packing: bool
    device: torch.device


class FsdpTrainer(Trainer):
    """Trains one policy, on one of its ranks.

    `_totals` is what the ranks add up at an optimizer step, beside the gradients, which are summed by then: loss,
    normaliser, metrics, and last the square sum of each rank's shard of the gradient.
    """

    def __init__(self, model: PreTrainedModel, config: FsdpTrainerConfig, group: DataParallelGroup) -> None:
        """`model` is sharded over the ranks of `group` (`building.build_sharded`); its weights need not be set yet."""
        self._model = model
        self._config = config
        self._group = group
        parameters = dict(model.named_parameters())
        self._optimizer = ShardedAdamW(parameters, config.optimizer)
        layout = layout_of(model)
        self._state = ShardedState(parameters, layout, self._optimizer)
        self._export = Export(stored_tensors(model), layout, config.dtype, group)
        self._statistics = ("loss", "normaliser", *config.loss.metric_names)
        self._totals = torch.zeros(len(self._statistics), dtype=torch.float64, device=config.device)
        self._staging = HostStaging(config.device)
        self._skipping = Skipping(config.max_skipped_steps)
        self._suspects = Suspects()

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
        named = dict(zip(self._statistics, totals, strict=True))
        normaliser = named.pop("normaliser") or 1.0
        means = {name: total / normaliser for name, total in named.items()}
        loss = means.pop("loss")
        scale = self._group.world / normaliser  # FSDP has divided the sum over the ranks by their number
        norm = math.sqrt(square_sum_of_all) * scale if math.isfinite(square_sum_of_all) else square_sum_of_all
        skipped = self._skipping.judge(number, loss, norm, self._suspects)
        if skipped is None:
            self._staging.settle()
            self._optimizer.step(scale * self._config.optimizer.clipping(norm))
        self._clear()
        return OptimizerStepResult(loss, norm, means, skipped)

    @property
    def weight_share(self) -> WeightShare | None:
        """Whole tensors, as many bytes on each rank as can be."""
        return self._export.share

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
        self._clear()

    def _cut(self, tokens: Jagged, response_lengths: torch.Tensor, count: int) -> list[RowRange]:
        return cut(tokens.lengths, response_lengths, self._config.limits, count=count)

    def _pass(self, rows: TrainRows, part: RowRange) -> None:
        inputs = self._inputs(rows.tokens, rows.response_lengths, part)
        log_probs, entropy = score(self._model, inputs, self._config.temperature)
        known = _token_inputs(rows, part, log_probs)
        sums = policy_loss(log_probs, known, self._config.loss, entropy)
        sums.loss.backward()  # type: ignore[no-untyped-call]
        self._totals += self._statistics_of(sums)
        self._suspects.add(rows, part, sums.token_losses)

    def _inputs(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange) -> ModelInputs:
        make = joined_inputs if self._config.packing else padded_inputs
        chosen = rows_between(tokens, part.start, part.stop)
        return make(chosen, response_lengths[part.start : part.stop], self._config.device)

    def _statistics_of(self, sums: LossSums) -> torch.Tensor:
        metrics = (sums.metrics[name] for name in self._config.loss.metric_names)
        return torch.stack([sums.loss.detach(), sums.normaliser, *metrics]).double()

    def _reshard(self) -> None:
        """A pass without a backward pass leaves what is in no layer gathered, and not as what it is sharded."""
        from torch.distributed.fsdp import FSDPModule

        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _clear(self) -> None:
        self._optimizer.clear()
        self._totals.zero_()
        self._suspects.clear()


def _token_inputs(rows: TrainRows, part: RowRange, new_log_probs: torch.Tensor) -> TokenInputs:
    def chosen(column: Jagged) -> torch.Tensor:
        return column.values[part.first_token : part.last_token].to(new_log_probs.device)

    return TokenInputs(
        log_probs=new_log_probs.detach() if rows.log_probs is None else chosen(rows.log_probs),
        rollout_log_probs=chosen(rows.rollout_log_probs),
        advantages=chosen(rows.advantages),
        loss_masks=chosen(rows.loss_masks),
        ref_log_probs=None if rows.ref_log_probs is None else chosen(rows.ref_log_probs),
        response_lengths=rows.response_lengths[part.start : part.stop].to(new_log_probs.device),
    )
