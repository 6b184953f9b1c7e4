"""The flat backend by torch: `Trainer` and `ForwardModel` on a `Decoder`, and its state in checkpoints.

Built by the factories. Gradients lie in one flat buffer: one all-reduce per optimizer step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_api.roles import LEADING_ROLE
from rljob_workers.devices import HOST
from rljob_workers.models.blob import WeightShare, layout_digest, read_weights
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut, pack
from rljob_workers.trainers.optimizer_steps import FlatAdamW, StepSums, TrainerConfig, statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rljob_api.model_files.decoder_config import DecoderConfig
    from rljob_workers.trainers.data_parallel import DataParallelGroup


class TorchForwardModel(ForwardModel):
    """A decoder that only computes log-probs."""

    def __init__(
        self,
        model: DecoderConfig,
        *,
        dtype: torch.dtype,
        limits: MicroBatchLimits,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`head_dtype` is that of logits, where it is wider than `dtype`."""
        self._decoder = Decoder(model, storage=dtype, compute=dtype, head_dtype=head_dtype, device=device)
        self._limits = limits

    def load(self, blob: Path) -> None:
        """Replaces all weights by those of a safetensors file, or none."""
        load_weights(self._decoder, blob)

    def log_probs(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """Log pi of every response token, micro-batch by micro-batch."""
        return forward_log_probs(self._decoder, tokens, response_lengths, temperature, self._limits, progress)


def row_log_probs(
    decoder: Decoder, tokens: Jagged, response_lengths: torch.Tensor, rows: RowRange, temperature: float
) -> torch.Tensor:
    """Log pi of the response tokens of `rows`, [tokens], on the decoder's device; with a graph if gradients are on."""
    plan = pack(tokens.values, tokens.offsets[rows.start : rows.stop + 1], response_lengths[rows.start : rows.stop])
    return decoder.log_probs(tokens.values, plan, temperature)


def forward_log_probs(
    decoder: Decoder,
    tokens: Jagged,
    response_lengths: torch.Tensor,
    temperature: float,
    limits: MicroBatchLimits,
    progress: Callable[[], None] = no_progress,
) -> Jagged:
    """Log pi of every response token of a slice, on the host, without a graph."""
    parts = []
    with torch.no_grad():
        for rows in cut(tokens, response_lengths, limits):
            parts.append(row_log_probs(decoder, tokens, response_lengths, rows, temperature))
            progress()
    return Jagged.from_lengths(torch.cat(parts).cpu(), response_lengths)


def load_weights(decoder: Decoder, blob: Path) -> None:
    """Copies a file or folder of weights into the decoder; ValueError, and nothing changed, where they do not fit."""
    decoder.load(read_weights(blob), source=str(blob))


def random_state() -> StateShare:
    """What a rank saves that exports nothing."""
    return StateShare(own={"random": torch.random.get_rng_state()})


def stage(decoder: Decoder, optimizer: FlatAdamW, staging: HostStaging, *, weights_are_exact: bool) -> StateShare:
    """Everything: the moments and, where the published weights are rounded, the exact ones."""
    flats = {EXP_AVG: optimizer.first_moment, EXP_AVG_SQ: optimizer.second_moment}
    if not weights_are_exact:
        flats[PARAMETER] = decoder.flat
    views = {(kind, name): view for kind, flat in flats.items() for name, view in decoder.views_of(flat).items()}
    copies, wait = staging.begin(views)
    slices = [
        StateSlice(kind, name, tuple(copy.shape), (0,) * copy.dim(), copy) for (kind, name), copy in copies.items()
    ]
    return StateShare(slices, random_state().own, {STEPS: optimizer.steps}, wait)


def restore(folder: Path, decoder: Decoder, optimizer: FlatAdamW, rank: int) -> None:
    """Weights, moments and random state; ValueError, and nothing changed, where they are of another model."""
    saved = SavedState(folder, LEADING_ROLE.value)
    shapes = {name: view.shape for name, view in decoder.views.items()}
    kinds: Mapping[str, torch.Tensor] = {EXP_AVG: optimizer.first_moment, EXP_AVG_SQ: optimizer.second_moment}
    if PARAMETER in saved.kinds:
        kinds = {**kinds, PARAMETER: decoder.flat}
    for kind in kinds:
        saved.check(kind, shapes)
    load_weights(decoder, folder)
    for kind, flat in kinds.items():
        saved.fill(kind, decoder.views_of(flat))
    optimizer.steps = saved.values[STEPS]
    own = saved.own(rank)
    if "random" in own:  # a rank that the checkpoint does not know begins with a random state of its own
        torch.random.set_rng_state(own["random"].clone())


class TorchTrainer(Trainer):
    """Trains one policy.

    `_sums` is what the ranks add up, in one buffer: gradients as the decoder's flat weights, then loss, normaliser and
    metrics. (float32 counts tokens exactly up to 2^24 per optimizer step.)
    """

    def __init__(
        self,
        model: DecoderConfig,
        config: TrainerConfig,
        group: DataParallelGroup,
        *,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`head_dtype` is that of logits, where it is wider than the config's."""
        self._config = config
        self._group = group
        self._decoder = Decoder(
            model, storage=torch.float32, compute=config.dtype, head_dtype=head_dtype, device=device
        )
        self._staging = HostStaging(device)
        num_weights = self._decoder.flat.numel()
        self._sums = torch.zeros(num_weights + len(statistics_of(config.loss)), device=device)
        self._gradient, self._totals = self._sums[:num_weights], self._sums[num_weights:]
        self._decoder.enable_gradients(self._gradient)
        self._optimizer = FlatAdamW(self._decoder.flat, self._gradient, self._decoder.num_decayed, config.optimizer)
        self._step = StepSums(config, self._totals)
        if group.rank == 0:  # every rank holds all weights, and one of them exports
            shapes = {name: view.shape for name, view in self._decoder.views.items()}
            self.weight_share = WeightShare(0, 1, layout_digest([shapes]))

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
        return len(cut(rows.tokens, rows.response_lengths, self._config.limits))

    def accumulate(
        self, rows: TrainRows, progress: Callable[[], None] = no_progress, *, num_micro_batches: int = 0
    ) -> None:
        """Forward and backward, micro-batch by micro-batch; the gradient of the loss sum is added up.

        The ranks meet in `optimizer_step` only, so each makes just the micro-batches that it has rows for.
        """
        del num_micro_batches
        for part in cut(rows.tokens, rows.response_lengths, self._config.limits):
            new_log_probs = row_log_probs(
                self._decoder, rows.tokens, rows.response_lengths, part, self._config.temperature
            )
            self._step.add(rows, part, new_log_probs)
            progress()

    def optimizer_step(self) -> OptimizerStepResult:
        """Adds up over the ranks, divides by the global normaliser, clips, steps, clears.

        Where every token of the global batch was masked the gradient is 0: the step still counts.
        """
        number = self._optimizer.steps + 1
        self._group.add_up(self._sums, f"the gradients of optimizer step {number}")
        means = self._step.means(self._totals.tolist())
        self._gradient.div_(means.normaliser)
        result = self._step.result(number, means, float(self._gradient.norm()))
        if result.skipped is None:
            self._staging.settle()
            self._optimizer.clip_and_step(result.grad_norm)
        self._gradient.zero_()
        return result

    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """Copies in the dtype of the model, on the rank that exports."""
        if self._group.rank != 0:
            return {}
        return self._staging.copy(self._decoder.views, self._config.dtype)

    def stage_state(self) -> StateShare:
        """The random state of every rank; of rank 0 also what all have alike."""
        if self._group.rank != 0:
            return random_state()
        is_exact = self._config.dtype == torch.float32
        return stage(self._decoder, self._optimizer, self._staging, weights_are_exact=is_exact)

    def restore(self, folder: Path) -> None:
        """Weights and state of a checkpoint folder; gradients of the time before are dropped."""
        self._staging.settle()
        restore(folder, self._decoder, self._optimizer, self._group.rank)
        self._gradient.zero_()
        self._step.clear()
