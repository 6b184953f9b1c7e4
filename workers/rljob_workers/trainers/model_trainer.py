"""The step that all models share: micro-batches, an objective's sums and counts, skipping, clipping, schedule.

A backend is a `ScoringModel`, or a `TrainableModel` that can also be stepped: it knows no objective, and has the loop
over micro-batches only where it interleaves them. Built by the factories; the roles know the bases of `trainers.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch

from rljob_workers.algorithms.metric_totals import OwnTotals, StepTotals, Totals
from rljob_workers.algorithms.objective import MaskedRows, Output, Outputs
from rljob_workers.models.weights import full_folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.host_staging import HostStaging
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.optimizer_steps import NormWatch, Skipping, Suspects, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rljob_workers.models.blob import WeightShare
    from rljob_workers.models.slices import StateShare
    from rljob_workers.models.weights import Bucket, WeightSource
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.mesh import Mesh

    LossOf = Callable[[RowRange, Outputs], torch.Tensor]
    NormaliserOf = Callable[[RowRange], float]


def step_totals(config: TrainerConfig, mesh: Mesh) -> StepTotals:
    """What a rank adds up in an optimizer step; a model is made with room for `size` of them."""
    return StepTotals(config.objective.metrics, mesh.dp_rank, mesh.dp_size)


class Meeting(Enum):
    """Where the ranks of a model meet, beside the sums of an optimizer step. Each makes equally many passes then."""

    NOWHERE = "nowhere"
    PASS = "within each pass"  # noqa: S105 - over a model
    SCHEDULE = "within one schedule of all passes"
    """A pipeline: several passes are under way at once, and the model has the loop over them."""


class ScoringModel(ABC):
    """A model that gives outputs of response tokens."""

    device: torch.device
    outputs: ClassVar[frozenset[Output]]
    """What `forward` gives."""
    ranks_meet: Meeting = Meeting.NOWHERE

    @abstractmethod
    def load(self, source: Path) -> None:
        """Replaces all weights by those of a safetensors file or folder, or none: ValueError."""

    @abstractmethod
    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Of the response tokens of the rows of `part`, logits divided by `temperature`; no rows give no tokens."""

    def score(
        self, tokens: Jagged, response_lengths: torch.Tensor, parts: Sequence[RowRange], temperature: float
    ) -> Iterable[Outputs]:
        """The outputs of each of `parts`, on every rank; more than one part where ranks meet within a schedule."""
        return (self.forward(tokens, response_lengths, part, temperature) for part in parts)

    def num_passes(self, num_parts: int) -> int:
        """How many times as long as one part a schedule of so many may take."""
        return num_parts


class TrainableModel(ScoringModel):
    """A model with gradients, which add up over backward passes, and an optimizer, on one of its ranks."""

    weight_share: WeightShare | None
    """The part of the weights that this rank exports."""
    totals: torch.Tensor
    """[num_totals], of a floating type: what is added up over data parallelism beside gradients."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Optimizer steps that were taken."""

    def train(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        parts: Sequence[RowRange],
        temperature: float,
        loss_of: LossOf,
        normaliser_of: NormaliserOf,  # noqa: ARG002 -- for models that add to the loss
    ) -> None:
        """Adds the gradient of loss_of(part, outputs) of each of `parts`, as many as `score` is given.

        `normaliser_of` gives what rows add to the normaliser: by it a model weighs what it adds to the loss itself.
        Every rank calls `loss_of` once for each part, so that each has counted all of its rows. Ranks that share a
        model give it the same outputs, with a graph on those that go back through it.
        """
        for part in parts:
            loss = loss_of(part, self.forward(tokens, response_lengths, part, temperature))
            loss.backward()  # type: ignore[no-untyped-call]

    def passes(self, *, are_last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 -- for models that exchange early
        """Around `train`. `are_last`: the step ends with it, so that gradients are whole once they are computed."""
        return nullcontext()

    @abstractmethod
    def add_up(self, step: int) -> Sequence[float]:
        """Adds up gradients and totals over data parallelism; the totals of all of it. A collective, of step `step`."""

    def own_totals(self, normaliser: float) -> Totals:  # noqa: ARG002 -- of models that count
        """Metrics of the model itself, of what `add_up` has added up in a step of this normaliser."""
        return {}

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

    def __init__(self, model: ScoringModel, limits: MicroBatchLimits, gang: DataParallelGroup | None = None) -> None:
        """`gang` is that of the ranks that hold it together; None: one has it whole. Weights need not be set yet."""
        self._model = model
        self._limits = limits
        self._gang = SingleRank() if gang is None else gang

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
        *,
        num_micro_batches: int = 0,
    ) -> Jagged:
        """See the base; `num_micro_batches` as in `Trainer.score`."""
        found = [torch.zeros(0)]
        for parts, meeting in self._sections(self._cut(tokens, response_lengths, num_micro_batches)):
            with meeting, torch.no_grad():
                scored = self._model.score(tokens, response_lengths, parts, temperature)
                found += [one.of(output).float().cpu() for one in scored]
            progress()
        return Jagged.from_lengths(torch.cat(found), response_lengths)

    def _cut(self, tokens: Jagged, response_lengths: torch.Tensor, count: int) -> list[RowRange]:
        met = self._model.ranks_meet is not Meeting.NOWHERE
        return cut(tokens, response_lengths, self._limits, count=count if met else 0)

    def _sections(self, parts: Sequence[RowRange]) -> Iterator[tuple[Sequence[RowRange], AbstractContextManager[None]]]:
        """What the model is given at once, and what is entered around it."""
        if self._model.ranks_meet is Meeting.SCHEDULE:
            what = f"micro-batches 1 to {len(parts)}"
            yield parts, self._gang.collective(what, passes=self._model.num_passes(len(parts)))
            return
        for number, part in enumerate(parts, start=1):
            what = f"micro-batch {number} of {len(parts)}"
            met = self._model.ranks_meet is Meeting.PASS
            yield [part], self._gang.collective(what) if met else nullcontext()


class ModelTrainer(ModelForward, Trainer):
    """Trains one model by one objective."""

    _model: TrainableModel

    def __init__(self, model: TrainableModel, config: TrainerConfig, mesh: Mesh) -> None:
        """Of a rank of `mesh`; weights need not be set yet. Raises ValueError for an objective that needs more."""
        missing = config.objective.needs_outputs - model.outputs
        if missing:
            names = ", ".join(sorted(output.value for output in missing))
            raise ValueError(
                f"{type(config.objective).__name__} needs {names} of a forward pass, which {type(model).__name__} does"
                " not give. Use another backend."
            )
        super().__init__(model, config.limits, mesh.gang)
        self.mesh = mesh
        self._config = config
        self._objective = config.objective
        self.weight_share = model.weight_share
        self._staging = HostStaging(model.device)
        self._sums = step_totals(config, mesh)
        self._sums.clear(model.totals)
        self._skipping = Skipping(config.max_skipped_steps)
        self._norms = NormWatch(config.norm_multiple)
        self._suspects = Suspects()
        self._own = OwnTotals()

    def load(self, source: WeightSource) -> None:
        """Replaces all weights, or none; the optimizer's state stays."""
        self._staging.settle()
        super().load(source)

    def num_micro_batches(self, rows: TrainRows) -> int:
        """As many as the rows fill."""
        return len(self._cut(rows.tokens, rows.response_lengths, 0))

    def accumulate(
        self,
        rows: TrainRows,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
        ends_step: bool = False,
    ) -> None:
        """Forward and backward, micro-batch by micro-batch; the gradient of the loss sum is added up."""
        self._refuse_missing(rows)
        whole = MaskedRows(rows.columns[Column.LOSS_MASKS].values, rows.response_lengths)
        weights = self._objective.weigh(whole)
        self._sums.add_weights(self._model.totals, weights, whole)
        loss_of = partial(self._loss_of, rows, weights.weights)
        normaliser_of = partial(self._normaliser_of, rows)
        passes = self._cut(rows.tokens, rows.response_lengths, num_micro_batches)
        done = 0
        for parts, meeting in self._sections(passes):
            done += len(parts)
            with meeting, self._model.passes(are_last=ends_step and done == len(passes)):
                temperature = self._config.temperature
                self._model.train(rows.tokens, rows.response_lengths, parts, temperature, loss_of, normaliser_of)
            progress()

    def optimizer_step(self) -> OptimizerStepResult:
        """Adds up over the ranks, divides by the global normaliser, clips, steps, clears.

        Where every token of the global batch was masked the gradient is 0: the step still counts.
        """
        number = self._model.steps + 1
        loss, normaliser, totals = self._sums.read(self._model.add_up(number))
        totals |= self._model.own_totals(normaliser)
        mean = loss / normaliser
        norm = self._model.average_gradient(normaliser)
        skipped = self._skipping.judge(number, mean, norm, self._suspects)
        optimizer = self._config.optimizer
        rate = optimizer.learning_rate.of(number - 1)
        own, warning = self._own.read(), None
        if skipped is None:
            warning = self._norms.judge(number, norm, self._suspects)
            self._staging.settle()
            self._model.step(optimizer.clipping(norm))
        self._clear()
        return OptimizerStepResult(mean, norm, rate, totals, skipped, own, warning)

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
        self._own.clear()

    def _loss_of(self, rows: TrainRows, weights: torch.Tensor, part: RowRange, outputs: Outputs) -> torch.Tensor:
        columns = rows.between(part, self._model.device)
        masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
        own = weights[part.first_token : part.last_token].to(self._model.device)
        sums = self._objective.loss(outputs, columns, masked, own)
        self._sums.add(self._model.totals, sums, masked)
        self._own.add(sums.own, masked)
        self._suspects.add(rows, part, sums.token_losses)
        return sums.loss

    def _normaliser_of(self, rows: TrainRows, part: RowRange) -> float:
        masks = rows.columns[Column.LOSS_MASKS].values[part.first_token : part.last_token]
        return float(self._objective.weigh(MaskedRows(masks, rows.response_lengths[part.start : part.stop])).normaliser)

    def _refuse_missing(self, rows: TrainRows) -> None:
        missing = self._objective.needs_columns - rows.columns.keys()
        if missing:
            raise ValueError(
                f"{', '.join(sorted(missing))}: missing in the rows, but {type(self._objective).__name__} needs them."
                " Give the job the role that writes them."
            )
