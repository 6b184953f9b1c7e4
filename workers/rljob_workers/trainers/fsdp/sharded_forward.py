"""The model of actor_fwd or the reference, sharded over the ranks of a gang, each of which computes a share of rows.

Built by the factories. A rank holds its rows of each weight, gathers a layer at a time, and computes other rows than
its peers, so that a gang is as fast as all of its ranks. If all computed the same rows, each would take the time of one
that holds the whole model, and the traffic between them would be the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.models.weights import WeightSource, full_folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import ForwardModel, no_progress
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.sharded_model import reshard
from rljob_workers.trainers.fsdp.sharded_trainer import forward
from rljob_workers.trainers.fsdp.stored_tensors import load_folder
from rljob_workers.trainers.micro_batches import MicroBatchLimits, count_micro_batches, cut
from rljob_workers.trainers.row_shares import gathered, shares_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from rljob_workers.algorithms.objective import Output
    from rljob_workers.trainers.data_parallel import DataParallelGroup


class ShardedForward(ForwardModel):
    """On one rank of a gang. `score` is a collective: all ranks have the same rows, and get the whole result."""

    def __init__(
        self, model: PreTrainedModel, gang: DataParallelGroup, limits: MicroBatchLimits, *, packing: bool
    ) -> None:
        """`model` is sharded over the ranks of `gang`, with its gradients off; weights need not be set yet."""
        self._model = model
        self._gang = gang
        self._limits = limits
        self._make_inputs = joined_inputs if packing else padded_inputs

    def load(self, source: WeightSource) -> None:
        """Replaces this rank's rows of all weights, or none."""
        reshard(self._model)
        load_folder(self._model, full_folder(source, "A sharded model"))

    def score(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        output: Output,
        temperature: float,
        progress: Callable[[], None] = no_progress,
    ) -> Jagged:
        """See the base. Ranks make equally many passes, some of which may be of no rows."""
        lengths = tokens.lengths.tolist()
        shares = shares_of(lengths, self._gang.world)
        count = max(count_micro_batches([lengths[row] for row in share], self._limits) for share in shares)
        own = shares[self._gang.rank]
        own_tokens, own_lengths = tokens.select(own), response_lengths[torch.tensor(own, dtype=torch.int64)]
        parts = [torch.zeros(0)]
        for number, part in enumerate(cut(own_tokens, own_lengths, self._limits, count=count), start=1):
            with self._gang.collective(f"micro-batch {number} of {count}"), torch.no_grad():
                outputs = forward(self._model, self._make_inputs, own_tokens, own_lengths, part, temperature)
            parts.append(outputs.of(output).float().cpu())
            progress()
        return gathered(self._gang.add_up, own, torch.cat(parts), response_lengths, f"the {output.value} of all rows")
