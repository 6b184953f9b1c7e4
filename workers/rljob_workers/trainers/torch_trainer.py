"""Training by torch: `Trainer` on a `Decoder`; gradients in one flat buffer, one all-reduce per optimizer step.

Used by the actor through `trainers.build_trainer`. Knows neither queue nor rollout ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.policy_loss import LossSums, PolicyLossConfig, TokenInputs, policy_loss
from rljob_workers.devices import HOST, moved
from rljob_workers.models.share import WeightShare, layout_digest
from rljob_workers.trainers import flat_state
from rljob_workers.trainers.adamw import AdamWConfig, FlatAdamW
from rljob_workers.trainers.base import OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.decoder import Decoder
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.skipping import Skipping, Suspects
from rljob_workers.trainers.torch_forward import forward_log_probs, load_weights, row_log_probs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rljob_api.decoder_config import DecoderConfig
    from rljob_workers.models.slices import StateShare
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.data_parallel import DataParallelGroup


@dataclass(frozen=True, slots=True)
class TorchTrainerConfig:
    """The trainer's slice of the job."""

    dtype: torch.dtype
    """Of the forward pass and of published weights. The weights that are trained are float32 always."""
    head_dtype: torch.dtype | None
    """Of logits, where it is wider than `dtype`."""
    limits: MicroBatchLimits
    temperature: float
    """Of the sampling: logits are divided by it before log-probs are taken."""
    loss: PolicyLossConfig
    optimizer: AdamWConfig
    max_skipped_steps: int


class TorchTrainer(Trainer):
    """Trains one policy.

    `_sums` is what the ranks add up, in one buffer: gradients as the decoder's flat weights, then loss, normaliser and
    metrics. (float32 counts tokens exactly up to 2^24 per optimizer step.)
    """

    def __init__(
        self,
        model: DecoderConfig,
        config: TorchTrainerConfig,
        group: DataParallelGroup,
        device: torch.device = HOST,
    ) -> None:
        self._config = config
        self._group = group
        self._decoder = Decoder(
            model, storage=torch.float32, compute=config.dtype, head_dtype=config.head_dtype, device=device
        )
        self._staging = HostStaging(device)
        self._statistics = ("loss", "normaliser", *config.loss.metric_names)
        num_weights = self._decoder.flat.numel()
        self._sums = torch.zeros(num_weights + len(self._statistics), device=device)
        self._gradient, self._totals = self._sums[:num_weights], self._sums[num_weights:]
        self._decoder.enable_gradients(self._gradient)
        self._optimizer = FlatAdamW(self._decoder.flat, self._gradient, self._decoder.num_decayed, config.optimizer)
        self._skipping = Skipping(config.max_skipped_steps)
        self._suspects = Suspects()

    def load(self, blob: Path) -> None:
        """Replaces all weights by those of a safetensors file, or none; the optimizer's state stays."""
        self._staging.settle()
        load_weights(self._decoder, blob)

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
        del num_micro_batches  # the ranks do not meet in a forward pass
        limits = self._config.limits
        return forward_log_probs(self._decoder, tokens, response_lengths, temperature, limits, progress)

    def num_micro_batches(self, rows: TrainRows) -> int:
        """As many as the rows fill."""
        return len(cut(rows.tokens.lengths, rows.response_lengths, self._config.limits))

    def accumulate(
        self, rows: TrainRows, progress: Callable[[], None] = no_progress, *, num_micro_batches: int = 0
    ) -> None:
        """Forward and backward, micro-batch by micro-batch; the gradient of the loss sum is added up.

        The ranks meet in `optimizer_step` only, so each makes just the micro-batches that it has rows for.
        """
        del num_micro_batches
        for part in cut(rows.tokens.lengths, rows.response_lengths, self._config.limits):
            new_log_probs = row_log_probs(
                self._decoder, rows.tokens, rows.response_lengths, part, self._config.temperature
            )
            sums = policy_loss(new_log_probs, _token_inputs(rows, part, new_log_probs), self._config.loss)
            sums.loss.backward()  # type: ignore[no-untyped-call]
            self._totals += self._statistics_of(sums)
            self._suspects.add(rows, part, sums.token_losses)
            progress()

    def optimizer_step(self) -> OptimizerStepResult:
        """Adds up over the ranks, divides by the global normaliser, clips, steps, clears.

        Where every token of the global batch was masked the gradient is 0: the step still counts.
        """
        number = self._optimizer.steps + 1
        self._group.add_up(self._sums, f"the gradients of optimizer step {number}")
        totals = dict(zip(self._statistics, self._totals.tolist(), strict=True))
        normaliser = totals.pop("normaliser") or 1.0
        self._gradient.div_(normaliser)
        norm = self._optimizer.norm()
        means = {name: total / normaliser for name, total in totals.items()}
        loss = means.pop("loss")
        skipped = self._skipping.judge(number, loss, norm, self._suspects)
        if skipped is None:
            self._staging.settle()
            self._optimizer.step(norm)
        self._clear()
        return OptimizerStepResult(loss, norm, means, skipped)

    @property
    def weight_share(self) -> WeightShare | None:
        """All of it, on rank 0: every rank holds all weights, and one of them exports."""
        if self._group.rank != 0:
            return None
        shapes = {name: view.shape for name, view in self._decoder.views_of(self._decoder.flat).items()}
        return WeightShare(0, 1, layout_digest([shapes]))

    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """Copies in the dtype of the model, on the rank that exports."""
        if self._group.rank != 0:
            return {}
        return self._staging.copy(self._decoder.views_of(self._decoder.flat), self._config.dtype)

    def stage_state(self) -> StateShare:
        """The random state of every rank; of rank 0 also what all have alike."""
        if self._group.rank != 0:
            return flat_state.random_state()
        is_exact = self._config.dtype == torch.float32
        return flat_state.stage(self._decoder, self._optimizer, self._staging, weights_are_exact=is_exact)

    def restore(self, folder: Path) -> None:
        """Weights and state of a checkpoint folder; gradients of the time before are dropped."""
        self._staging.settle()
        flat_state.restore(folder, self._decoder, self._optimizer, self._group.rank)
        self._clear()

    def _clear(self) -> None:
        self._sums.zero_()
        self._suspects.clear()

    def _statistics_of(self, sums: LossSums) -> torch.Tensor:
        metrics = (sums.metrics[name] for name in self._config.loss.metric_names)
        return torch.stack([sums.loss.detach(), sums.normaliser, *metrics])


def _token_inputs(rows: TrainRows, part: RowRange, new_log_probs: torch.Tensor) -> TokenInputs:
    device = new_log_probs.device

    def of(column: Jagged) -> torch.Tensor:
        return moved(column.values[part.first_token : part.last_token], device)

    return TokenInputs(
        log_probs=new_log_probs.detach() if rows.log_probs is None else of(rows.log_probs),
        rollout_log_probs=of(rows.rollout_log_probs),
        advantages=of(rows.advantages),
        loss_masks=of(rows.loss_masks),
        ref_log_probs=None if rows.ref_log_probs is None else of(rows.ref_log_probs),
        response_lengths=moved(rows.response_lengths[part.start : part.stop], device),
    )
