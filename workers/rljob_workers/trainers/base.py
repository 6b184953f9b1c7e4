"""What the roles that hold a model need of it. They know trainers by these bases only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.metric_totals import Totals, values_of
from rljob_workers.devices import moved
from rljob_workers.tensors.columns import Column, Over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rljob_workers.algorithms.objective import Output
    from rljob_workers.models.blob import WeightShare
    from rljob_workers.models.slices import StateShare
    from rljob_workers.models.weights import Bucket, WeightSource
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.micro_batches import RowRange


def no_progress() -> None:
    """No session has to be kept alive."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainRows:
    """Rows of one micro-batch or slice: columns with the same number of rows.

    TOKENS, RESPONSE_LENGTHS (the response is the tail of the tokens) and LOSS_MASKS are always there. Without LOG_PROBS
    they are the new ones, without their gradient, since the weights have not moved.
    """

    columns: Mapping[Column, Jagged]
    row_numbers: torch.Tensor | None = None
    """[rows] int64, by which a row is named to a user: its number in its partition. None: its place here."""

    @property
    def tokens(self) -> Jagged:
        """Prompts and responses."""
        return self.columns[Column.TOKENS]

    @property
    def response_lengths(self) -> torch.Tensor:
        """[rows] int64."""
        return self.columns[Column.RESPONSE_LENGTHS].values

    @property
    def numbers(self) -> torch.Tensor:
        """By what each row is named, [rows] int64."""
        if self.row_numbers is not None:
            return self.row_numbers
        return torch.arange(self.response_lengths.numel())

    def between(self, part: RowRange, device: torch.device) -> dict[Column, torch.Tensor]:
        """Values of these rows on `device`: of columns over the response [tokens], of those over rows [rows]."""
        places = {
            Over.RESPONSE: slice(part.first_token, part.last_token),
            Over.ROW: slice(part.start, part.stop),
        }
        return {
            column: moved(values.values[places[column.over]], device)
            for column, values in self.columns.items()
            if column.over in places
        }


@dataclass(frozen=True, slots=True)
class OptimizerStepResult:
    """One optimizer step, global over all data-parallel ranks."""

    loss: float
    grad_norm: float
    learning_rate: float
    totals: Totals
    """The objective's metrics, added up."""
    skipped: str | None = None
    """Why nothing was stepped, in a sentence that names rows of this rank: loss or gradient is not finite. Then it is
    so on every rank, and the gradients are cleared."""
    own: Totals = field(default_factory=dict)
    """Figures that a user's loss has named itself, of this rank's rows alone: other ranks may have other names."""
    warning: str | None = None
    """What is unusual about a step that was taken, in a sentence that names rows of this rank."""

    @property
    def metrics(self) -> dict[str, float]:
        """The values of `totals`."""
        return values_of(self.totals)


class ForwardModel(ABC):
    """A model that only computes outputs of tokens (actor_fwd, reference)."""

    @abstractmethod
    def load(self, source: WeightSource) -> None:
        """Replaces all weights; ValueError for what does not fit, SourceNotTaken for a source that it cannot read."""

    @abstractmethod
    def score(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """`output` of every response token, float32 on the host; logits are divided by `temperature`.

        Raises ValueError for an output that the model does not give. `progress` is called after every micro-batch:
        there a role sends its heartbeat, and raises in order to leave.
        """


class Trainer(ForwardModel):
    """A model that is trained by a gang of ranks. Gradients accumulate until `optimizer_step`.

    `score`, `accumulate`, `optimizer_step`, `export`, `stage_weights`, `stage_state` and `restore` are collectives:
    all ranks of the gang call them, in one order, whether a backend adds up or gathers in them or not. A rank that must
    wait for the others goes on beating (`data_parallel.DataParallelGroup`), and leaves only between two of them.
    """

    mesh: Mesh
    """How its ranks are laid out, and this one's place."""
    weight_share: WeightShare | None = None
    """The part of the weights that this rank stages; None where it was assigned none. Never changes."""

    @abstractmethod
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
        """As the base. Of a model whose ranks meet within a micro-batch it is a collective.

        `num_micro_batches` means what it does in `accumulate`.
        """

    @abstractmethod
    def num_micro_batches(self, rows: TrainRows) -> int:
        """Into how many micro-batches this rank would cut its rows."""

    @abstractmethod
    def accumulate(
        self,
        rows: TrainRows,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
        ends_step: bool = False,
    ) -> None:
        """Forward and backward over this rank's rows, in micro-batches; gradients of loss *sums*.

        `num_micro_batches` is the most that any rank has: a backend that meets the others within a micro-batch makes
        as many, empty ones included. `progress` is called after every micro-batch: there a role beats. `ends_step`, the
        same on all ranks: `optimizer_step` comes next, so that gradients may be exchanged beside the last passes.
        """

    @abstractmethod
    def optimizer_step(self) -> OptimizerStepResult:
        """All-reduces gradient sums and counts, divides by the global count, clips, steps, clears.

        Raises ValueError where more steps in a row were skipped than the job allows.
        """

    @abstractmethod
    def export(self) -> Iterator[Bucket]:
        """The weights, bucket by bucket; each rank gets what it was assigned, and takes all buckets."""

    @abstractmethod
    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """This rank's part of the weights: host copies of whole tensors (HF names) that later training does not touch.

        Empty on a rank that was assigned none.
        """

    @abstractmethod
    def stage_state(self) -> StateShare:
        """This rank's part of the state: host copies of optimizer, scheduler and random state."""

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Weights and state from a checkpoint folder, as far as they are this rank's."""
