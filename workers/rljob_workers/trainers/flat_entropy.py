"""The flat backend where the loss has an entropy bonus: log-probs and entropies, both with a graph.

Built by the factory. All but its heads is `flat_decoder`'s and `flat_model`'s. A pass takes longer than without: logits
are made a chunk of tokens at a time, and once more in the backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rljob_workers.algorithms.log_probs import chunked_log_probs
from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.devices import moved
from rljob_workers.models.building import EMBEDDING, HEAD
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.flat_model import FlatModel

if TYPE_CHECKING:
    import torch

    from rljob_workers.trainers.micro_batches import PackedRows


class EntropyDecoder(Decoder):
    """As a decoder, and with the entropy of the distribution that each response token is a draw of."""

    def outputs_of(self, tokens: torch.Tensor, plan: PackedRows, temperature: float) -> Outputs:
        """Log-probs and entropies, both [T], float32 or float64; arguments as of `log_probs`."""
        cast = {name: leaf.to(self.compute) for name, leaf in self.leaves.items()}
        targets = moved(tokens[plan.target_index].long(), self.device)
        x_sh, predictor = self._predicting_states(cast, tokens, plan)
        log_probs, entropy = chunked_log_probs(
            x_sh.index_select(0, predictor),
            cast.get(HEAD, cast[EMBEDDING]),
            targets,
            temperature=temperature,
            head_dtype=self._head_dtype,
        )
        return Outputs(log_probs=log_probs, entropy=entropy)


class FlatEntropyModel(FlatModel):
    """A decoder that gives entropies too, and its optimizer."""

    outputs: ClassVar[frozenset[Output]] = frozenset({Output.LOG_PROBS, Output.ENTROPY})
    kind: ClassVar[type[Decoder]] = EntropyDecoder
