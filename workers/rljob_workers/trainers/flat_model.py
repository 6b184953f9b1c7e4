"""The flat backend: a `Decoder` whose weights, gradients and moments lie in one buffer each, and its state.

Built by the factories. The ranks meet once per optimizer step: in one all-reduce of gradients and totals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.devices import HOST
from rljob_workers.models.blob import WeightShare, layout_digest, read_weights
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER, STEPS, SavedState, StateShare, StateSlice
from rljob_workers.models.weights import Bucket
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.micro_batches import RowRange, pack
from rljob_workers.trainers.model_trainer import ScoringModel, TrainableModel
from rljob_workers.trainers.optimizer_steps import AdamWConfig, FlatAdamW

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rljob_api.model_files.decoder_config import DecoderConfig
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.host_staging import HostStaging

OUTPUTS = frozenset({Output.LOG_PROBS})


class FlatScoring(ScoringModel):
    """A decoder that only computes log-probs."""

    outputs: ClassVar[frozenset[Output]] = OUTPUTS

    def __init__(
        self,
        model: DecoderConfig,
        *,
        dtype: torch.dtype,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`head_dtype` is that of logits, where it is wider than `dtype`."""
        self.device = device
        self._decoder = Decoder(model, storage=dtype, compute=dtype, head_dtype=head_dtype, device=device)

    def load(self, source: Path) -> None:
        """Replaces all weights, or none."""
        load_weights(self._decoder, source)

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Log-probs."""
        return forward(self._decoder, tokens, response_lengths, part, temperature)


def forward(
    decoder: Decoder, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float
) -> Outputs:
    """What `decoder` computes of the response tokens of `part`, on its device; with a graph if gradients are on."""
    plan = pack(tokens.values, tokens.offsets[part.start : part.stop + 1], response_lengths[part.start : part.stop])
    return decoder.outputs_of(tokens.values, plan, temperature)


def load_weights(decoder: Decoder, source: Path) -> None:
    """Copies a file or folder of weights into the decoder; ValueError, and nothing changed, where they do not fit."""
    decoder.load(read_weights(source), source=str(source))


class FlatModel(TrainableModel):
    """A decoder and its optimizer. Every rank has all of both, and rank 0 exports them."""

    outputs: ClassVar[frozenset[Output]] = OUTPUTS
    kind: ClassVar[type[Decoder]] = Decoder

    def __init__(
        self,
        model: DecoderConfig,
        optimizer: AdamWConfig,
        group: DataParallelGroup,
        *,
        num_totals: int,
        dtype: torch.dtype,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`dtype` is that of passes and of published weights, `head_dtype` that of logits, where it is wider."""
        self.device = device
        self._group = group
        self._decoder = self.kind(model, storage=torch.float32, compute=dtype, head_dtype=head_dtype, device=device)
        self._is_exact = dtype == torch.float32
        num_weights = self._decoder.flat.numel()
        # One buffer, which the ranks add up: float32 counts tokens exactly up to 2^24.
        self._sums = torch.zeros(num_weights + num_totals, device=device)
        self._gradient, self.totals = self._sums[:num_weights], self._sums[num_weights:]
        self._decoder.enable_gradients(self._gradient)
        self._optimizer = FlatAdamW(self._decoder.flat, self._gradient, self._decoder.num_decayed, optimizer)
        self.weight_share = None
        if group.rank == 0:
            shapes = {name: view.shape for name, view in self._decoder.views.items()}
            self.weight_share = WeightShare(0, 1, layout_digest([shapes]))

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return self._optimizer.steps

    def load(self, source: Path) -> None:
        """Replaces all weights, or none."""
        load_weights(self._decoder, source)

    def forward(self, tokens: Jagged, response_lengths: torch.Tensor, part: RowRange, temperature: float) -> Outputs:
        """Log-probs."""
        return forward(self._decoder, tokens, response_lengths, part, temperature)

    def add_up(self, step: int) -> Sequence[float]:
        """One sum over the ranks."""
        self._group.add_up(self._sums, f"the gradients of optimizer step {step}")
        found: list[float] = self.totals.tolist()
        return found

    def average_gradient(self, normaliser: float) -> float:
        """Of the mean gradient."""
        self._gradient.div_(normaliser)
        return float(self._gradient.norm())

    def step(self, clipping: float) -> None:
        """On every rank alike."""
        self._optimizer.scale_and_step(clipping)

    def clear_gradient(self) -> None:
        """Zeros: the buffer stays."""
        self._gradient.zero_()

    def export(self) -> Iterator[Bucket]:
        """All tensors at once, as they are trained."""
        if self._group.rank == 0:
            yield Bucket(self._decoder.views, is_live=True)

    def stage_state(self, staging: HostStaging) -> StateShare:
        """The random state of every rank; of rank 0 also what all have alike.

        The moments and, where the published weights are rounded, the exact ones.
        """
        random = {"random": torch.random.get_rng_state()}
        if self._group.rank != 0:
            return StateShare(own=random)
        flats = {EXP_AVG: self._optimizer.first_moment, EXP_AVG_SQ: self._optimizer.second_moment}
        if not self._is_exact:
            flats[PARAMETER] = self._decoder.flat
        views = {
            (kind, name): view for kind, flat in flats.items() for name, view in self._decoder.views_of(flat).items()
        }
        copies, wait = staging.begin(views)
        slices = [
            StateSlice(kind, name, tuple(copy.shape), (0,) * copy.dim(), copy) for (kind, name), copy in copies.items()
        ]
        return StateShare(slices, random, {STEPS: self._optimizer.steps}, wait)

    def restore(self, folder: Path, role: str) -> None:
        """Weights, moments and random state."""
        saved = SavedState(folder, role)
        shapes = {name: view.shape for name, view in self._decoder.views.items()}
        kinds: Mapping[str, torch.Tensor] = {
            EXP_AVG: self._optimizer.first_moment,
            EXP_AVG_SQ: self._optimizer.second_moment,
        }
        if PARAMETER in saved.kinds:
            kinds = {**kinds, PARAMETER: self._decoder.flat}
        for kind in kinds:
            saved.check(kind, shapes)
        load_weights(self._decoder, folder)
        for kind, flat in kinds.items():
            saved.fill(kind, self._decoder.views_of(flat))
        self._optimizer.steps = saved.values[STEPS]
        own = saved.own(self._group.rank)
        if "random" in own:  # a rank that the checkpoint does not know begins with a random state of its own
            torch.random.set_rng_state(own["random"].clone())
