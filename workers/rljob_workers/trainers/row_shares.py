"""Rows that all ranks of a gang have, computed by shares: a rank computes some of them, and all get the whole result.

For models whose ranks take other rows than their peers: a sharded forward model, and a trainer that scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Trainer, TrainRows, no_progress
from rljob_workers.trainers.data_parallel import RankVote, agree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rljob_workers.algorithms.objective import Output


def shares_of(lengths: Sequence[int], world: int) -> list[list[int]]:
    """The rows of each rank, in order: the longest first, each to the rank that has the fewest tokens.

    A function of its arguments alone: all ranks come to the same.
    """
    loads, shares = [0] * world, [list[int]() for _ in range(world)]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        rank = min(range(world), key=loads.__getitem__)
        shares[rank].append(row)
        loads[rank] += lengths[row]
    return [sorted(share) for share in shares]


def gathered(
    add_up: Callable[[torch.Tensor, str], None],
    own: Sequence[int],
    values: torch.Tensor,
    response_lengths: torch.Tensor,
    what: str,
) -> Jagged:
    """What all ranks have computed of their shares: [response tokens] of every row, the same on each; a collective.

    `own` are this rank's rows, `values` theirs, back to back, float32 on the host. `add_up` is that of the gang, or of
    a mesh whose ranks share models.
    """
    found = Jagged.from_lengths(torch.zeros(int(response_lengths.sum())), response_lengths)
    lengths = response_lengths[torch.tensor(own, dtype=torch.int64)].tolist()
    for row, part in zip(own, torch.split(values, lengths), strict=True):
        found.row(row).copy_(part)
    add_up(found.values, what)
    return found


def score_shared(
    trainer: Trainer,
    tokens: Jagged,
    response_lengths: torch.Tensor,
    output: Output,
    progress: Callable[[], None] = no_progress,
) -> Jagged:
    """As `trainer.score` at temperature 1, of rows that every rank of its gang has; a collective of them."""
    mesh = trainer.mesh
    if mesh.dp_size == 1:
        return trainer.score(tokens, response_lengths, output, 1.0, progress)
    own = shares_of(tokens.lengths.tolist(), mesh.dp_size)[mesh.dp_rank]
    own_tokens, own_lengths = tokens.select(own), response_lengths[torch.tensor(own, dtype=torch.int64)]
    rows = TrainRows({Column.TOKENS: own_tokens, Column.RESPONSE_LENGTHS: Jagged.scalars(own_lengths)})
    vote = RankVote(has_rows=True, drains=False, num_micro_batches=trainer.num_micro_batches(rows))
    count = agree(mesh.gang, vote, f"the micro-batches of {output.value}").num_micro_batches
    values = trainer.score(own_tokens, own_lengths, output, 1.0, progress, num_micro_batches=count).values
    return gathered(mesh.add_up, own, values, response_lengths, f"the {output.value} of all rows")
