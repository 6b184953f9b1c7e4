"""The simulated backend: trainers and a forward model that hash rows and spend time instead of computing a model.

Built by the factories. An optimizer step is a hash of its rows, added up over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.algorithms.objective import Output
from rljob_workers.devices import own_device
from rljob_workers.models.blob import WeightShare, layout_digest
from rljob_workers.models.slices import EXP_AVG, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.models.weights import Bucket, WeightSource, full_folder
from rljob_workers.simulation.policy import (
    NAMES,
    Uints,
    fingerprint,
    joined,
    log_probs,
    mixed,
    no_moments,
    places,
    read_simulated,
    stepped,
    tensors_of,
    uints,
    values_at,
)
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, OptimizerStepResult, Trainer, TrainRows, no_progress
from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange, cut
from rljob_workers.trainers.optimizer_steps import Skipping, Suspects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rljob_workers.simulation.pace import SimulatedPace
    from rljob_workers.simulation.policy import Floats
    from rljob_workers.trainers.mesh import Mesh


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of some response tokens."""

    tokens: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    """The token before each."""
    positions: npt.NDArray[np.int64]
    """Of the token before, in its row."""


@dataclass(frozen=True, slots=True)
class SimHead:
    """What a simulated model says of response tokens."""

    output: Output
    of: Callable[[np.uint64, Places, float], Floats]
    """Of a fingerprint of the weights, some places and the temperature."""


def policy_head(vocab_size: int) -> SimHead:
    """Log-probs."""

    def of(weights: np.uint64, at: Places, temperature: float) -> Floats:
        found = places(weights, at.before, at.positions, vocab_size)
        return log_probs(found, at.tokens, np.full(len(at.tokens), temperature))

    return SimHead(Output.LOG_PROBS, of)


VALUE_HEAD = SimHead(Output.VALUES, lambda weights, at, _: values_at(weights, at.before, at.positions))


@dataclass(frozen=True, slots=True)
class SimForward:
    """A forward pass: what it is of, how it is cut, and what it takes."""

    head: SimHead
    limits: MicroBatchLimits
    pace: SimulatedPace

    def score(
        self,
        weights: Uints,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None],
    ) -> Jagged:
        """Of every response token."""
        if output is not self.head.output:
            given = self.head.output.value
            raise ValueError(f"{output.value}: this model computes {given} only. Ask one that has this output.")
        parts = []
        for rows in cut(tokens, response_lengths, self.limits):
            self.pace.spend(tokens=num_tokens(tokens, rows), rows=rows.stop - rows.start, progress=progress)
            parts.append(self._of(weights, tokens, response_lengths, rows, temperature))
            progress()
        found = np.concatenate(parts) if parts else np.zeros(0)
        return Jagged.from_lengths(torch.from_numpy(found.astype(np.float32)), response_lengths)

    def _of(
        self, weights: Uints, tokens: Jagged, response_lengths: torch.Tensor, rows: RowRange, temperature: float
    ) -> np.typing.NDArray[np.float64]:
        ends = tokens.offsets[rows.start + 1 : rows.stop + 1].numpy()
        begins = tokens.offsets[rows.start : rows.stop].numpy()
        responses = response_lengths[rows.start : rows.stop].numpy()
        # Where each response token stands, in the column and in its row.
        within = np.arange(responses.sum()) - np.repeat(responses.cumsum() - responses, responses)
        at = np.repeat(ends - responses, responses) + within
        positions = at - np.repeat(begins, responses)
        values = tokens.values.numpy().astype(np.int64)
        return self.head.of(fingerprint(weights), Places(values[at], values[at - 1], positions - 1), temperature)


def num_tokens(tokens: Jagged, rows: RowRange) -> int:
    """Prompts and responses of some rows."""
    return int(tokens.offsets[rows.stop] - tokens.offsets[rows.start])


class SimForwardModel(ForwardModel):
    """A policy that only computes log-probs."""

    def __init__(self, forward: SimForward, weights: Uints) -> None:
        self._forward = forward
        self._weights = weights

    def load(self, source: WeightSource) -> None:
        """Replaces the weights; ValueError, and nothing changed, where they do not fit."""
        self._weights = read_simulated(full_folder(source, "A simulated model"))

    def score(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """See the base."""
        return self._forward.score(self._weights, tokens, response_lengths, output, temperature, progress)


MOMENTS = "simulated.moments"


LOSS_UNIT = 2.0**-24
"""In which losses are added up."""


_GRADIENT, _LOSS, _TOKENS, _BROKEN = range(4)
"""What the ranks add up: hashes of rows, losses, tokens in the loss, and those of them whose loss is not finite."""


@dataclass(frozen=True, slots=True)
class SimLearning:
    """What a simulated model learns of rows: in whose name, and of which columns."""

    role: str
    """Under whose name a checkpoint has its state."""
    columns: tuple[Column, ...]
    """float32, over the response: any other value makes other weights."""
    losses: Callable[[Mapping[Column, Jagged]], torch.Tensor]
    """Of each response token."""


class SimTrainer(Trainer):
    """A model that every row changes."""

    def __init__(
        self,
        forward: SimForward,
        pace: SimulatedPace,
        mesh: Mesh,
        weights: Uints,
        learning: SimLearning,
        *,
        max_skipped_steps: int,
    ) -> None:
        self._learning = learning
        self._forward = forward
        self._pace = pace
        self.mesh = mesh
        self._group = group = mesh.gang
        self._weights = weights
        self._moments = no_moments()
        self._steps = 0
        self._sums = torch.zeros(4, dtype=torch.int64)
        self._skipping = Skipping(max_skipped_steps)
        self._suspects = Suspects()
        # Tensors are dealt to ranks in turn; more ranks than tensors have none.
        parts = [self._part(rank) for rank in range(min(group.world, len(NAMES)))]
        if group.rank < len(parts):
            self.weight_share = WeightShare(group.rank, len(parts), layout_digest(parts))

    def load(self, source: WeightSource) -> None:
        """Replaces all weights, or none."""
        self._weights = read_simulated(full_folder(source, "A simulated model"))

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
        del num_micro_batches  # the ranks do not meet in a forward pass
        return self._forward.score(self._weights, tokens, response_lengths, output, temperature, progress)

    def num_micro_batches(self, rows: TrainRows) -> int:
        """As many as the rows fill."""
        return len(cut(rows.tokens, rows.response_lengths, self._forward.limits))

    def accumulate(
        self,
        rows: TrainRows,
        progress: Callable[[], None] = no_progress,
        *,
        num_micro_batches: int = 0,
        ends_step: bool = False,
    ) -> None:
        """Hashes the rows; the ranks meet in `optimizer_step` only."""
        del num_micro_batches, ends_step
        losses = self._learning.losses(rows.columns).where(rows.columns[Column.LOSS_MASKS].values > 0, 0.0)
        broken = ~losses.isfinite()
        for part in cut(rows.tokens, rows.response_lengths, self._forward.limits):
            self._pace.spend(tokens=num_tokens(rows.tokens, part), rows=part.stop - part.start, progress=progress)
            self._suspects.add(rows, part, losses[part.first_token : part.last_token])
            progress()
        self._sums[_GRADIENT] += _gradient(rows, self._learning.columns)
        self._sums[_LOSS] += (losses.where(~broken, 0.0).double() / LOSS_UNIT).round().long().sum()
        self._sums[_TOKENS] += rows.columns[Column.LOSS_MASKS].values.long().sum()
        self._sums[_BROKEN] += broken.sum()

    def optimizer_step(self) -> OptimizerStepResult:
        """One sum over the ranks; where every token was masked the step still counts."""
        number = self._steps + 1
        sums = self._sums.to(own_device())
        self._group.add_up(sums, f"the gradients of optimizer step {number}")
        gradient, loss, tokens, broken = sums.tolist()
        self._sums.zero_()
        mean = float("nan") if broken else loss * LOSS_UNIT / max(1, tokens)
        skipped = self._skipping.judge(number, mean, 0.0, self._suspects)
        self._suspects.clear()
        if skipped is None:
            self._weights, self._moments = stepped(self._weights, self._moments, gradient)
            self._steps = number
        return OptimizerStepResult(mean, 0.0, 0.0, {}, skipped)

    def export(self) -> Iterator[Bucket]:
        """This rank's tensors."""
        tensors = tensors_of(self._weights)
        yield Bucket({name: tensors[name] for name in self._part(self._group.rank)}, is_live=False)

    def stage_weights(self) -> Mapping[str, torch.Tensor]:
        """This rank's tensors: a step makes others."""
        (bucket,) = self.export()
        return bucket.tensors

    def stage_state(self) -> StateShare:
        """This rank's rows of the moments, and the number of steps."""
        size = len(self._moments)
        start, stop = (size * rank // self._group.world for rank in (self._group.rank, self._group.rank + 1))
        own = torch.from_numpy(self._moments[start:stop].view(np.int64).copy())
        slices = [StateSlice(EXP_AVG, MOMENTS, (size,), (start,), own)] if start < stop else []
        return StateShare(slices, values={STEPS: self._steps})

    def restore(self, folder: Path) -> None:
        """Weights and state, of any number of ranks; ValueError, and nothing changed, where they are of a model."""
        saved = SavedState(folder, self._learning.role)
        moments = torch.zeros(len(self._moments), dtype=torch.int64)
        saved.check(EXP_AVG, {MOMENTS: moments.shape})
        weights = read_simulated(folder)
        saved.fill(EXP_AVG, {MOMENTS: moments})
        self._weights, self._moments = weights, moments.numpy().view(np.uint64)
        self._steps = saved.values[STEPS]
        self._sums.zero_()
        self._suspects.clear()

    def _part(self, rank: int) -> dict[str, tuple[int, ...]]:
        tensors = tensors_of(self._weights)
        return {name: tuple(tensors[name].shape) for name in NAMES[rank :: self._group.world]}


def _gradient(rows: TrainRows, learnt: Sequence[Column]) -> int:
    """The sum of the rows' hashes, as int64; of tokens, masks, and columns over the response."""
    tokens = _row_sums(rows.tokens, joined(_within(rows.tokens), uints(rows.tokens.values.numpy())))
    masks = rows.columns[Column.LOSS_MASKS]
    floats = (rows.columns[column].values.float() for column in learnt)
    columns = (*floats, masks.values.long())
    of_tokens = joined(_within(masks), *(uints(column.numpy()) for column in columns))
    hashes = joined(tokens, _row_sums(masks, of_tokens))
    counted = _row_sums(masks, uints(masks.values.long().numpy())) > 0
    return int(np.where(counted, mixed(hashes), 0).sum(dtype=np.uint64).view(np.int64))


def _within(column: Jagged) -> Uints:
    """Of each value its place in its row."""
    begins = np.repeat(column.offsets[:-1].numpy(), column.lengths.numpy())
    return uints(np.arange(len(begins)) - begins)


def _row_sums(column: Jagged, values: Uints) -> Uints:
    """Of each row, also of one without values."""
    sums: Uints = np.concatenate([np.zeros(1, dtype=np.uint64), values.cumsum(dtype=np.uint64)])
    ends: Uints = sums[column.offsets.numpy()]
    found: Uints = ends[1:] - ends[:-1]
    return found
