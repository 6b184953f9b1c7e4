"""The step that all models share: micro-batches, an objective's sums and counts, skipping, clipping, schedule.

A backend is a `ScoringModel`, or a `TrainableModel` that can also be stepped: it knows no objective. Built by the
factories; the roles know the bases of `trainers.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import torch

from rljob_workers.algorithms.metric_totals import StepTotals
from rljob_workers.algorithms.objective import MaskedRows, Output, Outputs
from rljob_workers.models.weight_source import full_folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Bucket, ForwardModel, OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.optimizer_steps import NormWatch, Skipping, Suspects, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rljob_workers.models.blob import WeightShare
    from rljob_workers.models.slices import StateShare
    from rljob_workers.models.weight_source import WeightSource
    from rljob_workers.trainers.data_parallel import DataParallelGroup


def step_totals(config: TrainerConfig, group: DataParallelGroup) -> StepTotals:
    """What a rank adds up in an optimizer step; a model is made with room for `size` of them."""
    return StepTotals(config.objective.metrics, group.rank, group.world)


class ScoringModel(ABC):
    """A model that gives outputs of response tokens."""

    device: torch.device
    outputs: ClassVar[frozenset[Output]]
    """What `forward` gives."""

    @abstractmethod
    def load(self, source: Path) -> None:
        """Replaces all weights by those of a safetensors file or folder, or none: ValueError."""

    @abstractmethod
    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Of the response tokens of the rows of `part`, logits divided by `temperature`; no rows give no tokens."""


class TrainableModel(ScoringModel):
    """A model with gradients, which add up over backward passes, and an optimizer, on one of its ranks."""

    weight_share: WeightShare | None
    """The part of the weights that this rank exports."""
    totals: torch.Tensor
    """[num_totals], of a floating type: what is added up over the ranks beside gradients."""
    ranks_meet: ClassVar[bool]
    """Whether the ranks meet within a pass: then all of them make equally many."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Optimizer steps that were taken."""

    @abstractmethod
    def add_up(self, step: int) -> Sequence[float]:
        """Adds up gradients and totals over the ranks; the totals of all of them. A collective, of step `step`."""

    @abstractmethod
    def average_gradient(self, normaliser: float) -> float:
        """Divides the summed gradient by the global normaliser; the norm of the result over all weights."""

    @abstractmethod
    def step(self, clipping: float) -> None:
        """One optimizer step with the averaged gradient times `clipping`."""

    @abstractmethod
    def clear_gradient(self) -> None:
        """Drops the gradient."""

    @abstractmethod
    def export(self) -> Iterator[Bucket]:
        """As `Trainer.export`."""

    @abstractmethod
    def stage_state(self, staging: HostStaging) -> StateShare:
        """As `Trainer.stage_state`."""

    @abstractmethod
    def restore(self, folder: Path, role: str) -> None:
        """Weights, and the state that `role` has in the folder, or nothing: ValueError."""


class ModelForward(ForwardModel):
    """The outputs of a model, micro-batch by micro-batch."""

    def __init__(self, model: ScoringModel, limits: MicroBatchLimits) -> None:
        """Its weights need not be set yet."""
        self._model = model
        self._limits = limits

    def load(self, source: WeightSource) -> None:
        """Replaces all weights, or none."""
        self._model.load(full_folder(source, type(self._model).__name__))

    def score(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """See the base."""
        parts = []
        for part in cut(tokens, response_lengths, self._limits):
            parts.append(_output_of(self._model, tokens, response_lengths, part, output, temperature))
            progress()
        return _joined(parts, response_lengths)


class ModelTrainer(Trainer):
    """Trains one model by one objective."""

    def __init__(self, model: TrainableModel, config: TrainerConfig, group: DataParallelGroup) -> None:
        """Of a rank of `group`; weights need not be set yet. Raises ValueError for an objective that needs more."""
        missing = config.objective.needs_outputs - model.outputs
        if missing:
            names = ", ".join(sorted(output.value for output in missing))
            raise ValueError(
                f"{type(config.objective).__name__} needs {names} of a forward pass, which {type(model).__name__} does"
                " not give. Use another backend."
            )
        self._model = model
        self._config = config
        self._group = group
        self._objective = config.objective
        self.weight_share = model.weight_share
        self._staging = HostStaging(model.device)
        self._sums = step_totals(config, group)
        self._sums.clear(model.totals)
        self._skipping = Skipping(config.max_skipped_steps)
        self._norms = NormWatch(config.norm_multiple)
        self._suspects = Suspects()

    def load(self, source: WeightSource) -> None:
        """Replaces all weights, or none; the optimizer's state stays."""
        self._staging.settle()
        self._model.load(full_folder(source, type(self._model).__name__))

    def score(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
    ) -> Jagged:
        """Under the weights of now."""
        parts = []
        for part in self._cut(tokens, response_lengths, num_micro_batches):
            with self._meeting("a forward pass"):
                parts.append(_output_of(self._model, tokens, response_lengths, part, output, temperature))
            progress()
        return _joined(parts, response_lengths)

    def num_micro_batches(self, rows: TrainRows) -> int:
        """As many as the rows fill."""
        return len(self._cut(rows.tokens, rows.response_lengths, 0))

    def accumulate(
        self, rows: TrainRows, progress: Callable[[], None] = no_progress, *, num_micro_batches: int = 0
    ) -> None:
        """Forward and backward, micro-batch by micro-batch; the gradient of the loss sum is added up."""
        self._refuse_missing(rows)
        whole = MaskedRows(rows.columns[Column.LOSS_MASKS].values, rows.response_lengths)
        weights = self._objective.weigh(whole)
        self._sums.add_weights(self._model.totals, weights, whole)
        parts = self._cut(rows.tokens, rows.response_lengths, num_micro_batches)
        for number, part in enumerate(parts, start=1):
            with self._meeting(f"micro-batch {number} of {len(parts)}"):
                self._pass(rows, part, weights.weights[part.first_token : part.last_token])
            progress()

    def optimizer_step(self) -> OptimizerStepResult:
        """Adds up over the ranks, divides by the global normaliser, clips, steps, clears.

        Where every token of the global batch was masked the gradient is 0: the step still counts.
        """
        number = self._model.steps + 1
        loss, normaliser, totals = self._sums.read(self._model.add_up(number))
        mean = loss / normaliser
        norm = self._model.average_gradient(normaliser)
        skipped = self._skipping.judge(number, mean, norm, self._suspects)
        optimizer = self._config.optimizer
        rate = optimizer.learning_rate.of(number - 1)
        warning = None
        if skipped is None:
            warning = self._norms.judge(number, norm, self._suspects)
            self._staging.settle()
            self._model.step(optimizer.clipping(norm))
        self._clear()
        return OptimizerStepResult(mean, norm, rate, totals, skipped, warning)

    def export(self) -> Iterator[Bucket]:
        """This rank's tensors."""
        return self._model.export()

    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """Host copies in the published dtype."""
        return self._staging.stage(self._model.export(), self._config.dtype)

    def stage_state(self) -> StateShare:
        """Host copies of this rank's part."""
        return self._model.stage_state(self._staging)

    def restore(self, folder: Path) -> None:
        """Weights and state of a checkpoint folder; gradients of the time before are dropped."""
        self._staging.settle()
        self._model.restore(folder, self._config.role)
        self._clear()

    def _clear(self) -> None:
        self._model.clear_gradient()
        self._sums.clear(self._model.totals)
        self._suspects.clear()

    def _pass(self, rows: TrainRows, part: RowRange, weights: torch.Tensor) -> None:
        outputs = self._model.forward(rows.tokens, rows.response_lengths, part, self._config.temperature)
        columns = rows.between(part, self._model.device)
        masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
        sums = self._objective.loss(outputs, columns, masked, weights.to(self._model.device))
        sums.loss.backward()  # type: ignore[no-untyped-call]
        self._sums.add(self._model.totals, sums, masked)
        self._suspects.add(rows, part, sums.token_losses)

    def _refuse_missing(self, rows: TrainRows) -> None:
        missing = self._objective.needs_columns - rows.columns.keys()
        if missing:
            raise ValueError(
                f"{', '.join(sorted(missing))}: missing in the rows, but {type(self._objective).__name__} needs them."
                " Give the job the role that writes them."
            )

    def _cut(self, tokens: Jagged, response_lengths: torch.Tensor, count: int) -> list[RowRange]:
        return cut(tokens, response_lengths, self._config.limits, count=count if self._model.ranks_meet else 0)

    def _meeting(self, what: str) -> AbstractContextManager[None]:
        return self._group.collective(what) if self._model.ranks_meet else nullcontext()


def _output_of(
    model: ScoringModel,
    tokens: Jagged,
    response_lengths: torch.Tensor,
    part: RowRange,
    output: Output,
    temperature: float,
) -> torch.Tensor:
    """[tokens] float32 on the host, without a graph."""
    with torch.no_grad():
        found = model.forward(tokens, response_lengths, part, temperature).of(output)
    return found.float().cpu()


def _joined(parts: Sequence[torch.Tensor], response_lengths: torch.Tensor) -> Jagged:
    return Jagged.from_lengths(torch.cat([torch.zeros(0), *parts]), response_lengths)
