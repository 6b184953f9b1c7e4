"""Four ranks of which two and two share a model: sources send their rows, facts are added up once, or a rank leaves."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import torch

from rljob_api.spec.algorithm import Truncated
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import no_progress
from rljob_workers.trainers.data_parallel import GroupError
from rljob_workers.trainers.mesh import Mesh, Message
from rljob_workers.training.learnt_tokens import LearntTokens
from rljob_workers.training.sample_filter import SampleFilter
from rljob_workers.transfer_queue.types import Batch
from tests.integration.trainers.worlds import meet
from tests.unit.training.batches import make_batch

DP_RANK_OF = [0, 1, 0, 1]
"""As under pipeline parallelism: the ranks of a model are not neighbours."""


def make_rows(count: int) -> Batch:
    batch = make_batch([0] * count, [0.0] * count, [1] * count)
    of_tokens = Jagged.from_lengths(torch.zeros(count), torch.ones(count, dtype=torch.int64))
    return replace(batch, columns={**batch.columns, Column.ADVANTAGES: of_tokens, Column.ROLLOUT_LOG_PROBS: of_tokens})


def main(folder: Path, rank: int, leaves_early: int) -> None:
    gang = meet(folder, rank, len(DP_RANK_OF), timeout_seconds=30)
    mesh = Mesh.of(gang, DP_RANK_OF)
    rows = 3 + 2 * mesh.dp_rank
    sent = None
    if mesh.is_source:
        columns = (
            torch.arange(rows, dtype=torch.int32),
            torch.rand(rows, 2).double(),
            torch.zeros(0, 4),
            torch.ones(5).bool(),
        )
        sent = Message(b"rows %d" % rows, columns)
    got = mesh.share(sent, "the rows of a slice")
    assert got.header == b"rows %d" % rows
    assert got.tensors[0].tolist() == list(range(rows))
    assert [(t.dtype, tuple(t.shape)) for t in got.tensors] == [
        (torch.int32, (rows,)),
        (torch.float64, (rows, 2)),
        (torch.float32, (0, 4)),
        (torch.bool, (5,)),
    ]
    assert mesh.share(Message(b"nothing") if mesh.is_source else None, "no rows").header == b"nothing"
    count = torch.tensor([float(rows)])
    mesh.add_up(count, "rows")
    facts = mesh.gather(torch.full((2,), float(rows)), "facts")
    by_lot = SampleFilter("own:lots", lambda _: random.random() < 0.5, 2)
    answer = by_lot.passed_by_source(mesh, make_rows(64), LearntTokens(Truncated.KEEP, None), no_progress)
    both = answer.float()
    mesh.sharing.add_up(both, "what each of them was given")
    assert torch.equal(both, 2 * answer), "ranks that share rows have one answer"
    if rank == leaves_early:
        return
    if leaves_early >= 0:
        mesh.share(Message(b"more") if mesh.is_source else None, "the rows of another slice")
        mesh.add_up(count, "more rows")
    line = f"{mesh.dp_rank} of {mesh.dp_size}, {mesh.is_source}: {count.item():g} rows, {[f.tolist() for f in facts]}"
    sys.stderr.write(line)
    gang.add_up(count, "the end")
    gang.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except GroupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(3)
