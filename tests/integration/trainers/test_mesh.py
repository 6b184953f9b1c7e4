"""Ranks that share a model have the source's rows, each row counts once, and a rank that is gone is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.mesh import Mesh, Message, data_parallel
from tests.integration.preloaded.client import fork_program
from tests.integration.trainers.mesh_ranks import DP_RANK_OF

PATIENCE_SECONDS = 300.0
"""Never measured: on a busy machine the imports of a rank alone take a good part of a minute."""


def all_ranks(folder: Path, leaves_early: int = -1) -> list[tuple[int, str]]:
    """Exit code and last message of each rank."""
    processes = []
    for rank in range(len(DP_RANK_OF)):
        with (folder / f"errors{rank}").open("wb") as errors:
            arguments = [str(folder), str(rank), str(leaves_early)]
            processes.append(fork_program("tests.integration.trainers.mesh_ranks", arguments, output=errors))
    codes = [process.wait(PATIENCE_SECONDS) for process in processes]
    return [(code, (folder / f"errors{rank}").read_text()) for rank, code in enumerate(codes)]


def test_a_source_sends_its_rows_and_each_row_counts_once(tmp_path: Path) -> None:
    for rank, (code, text) in enumerate(all_ranks(tmp_path)):
        dp_rank, is_source = DP_RANK_OF[rank], rank < 2
        assert (code, text) == (0, f"{dp_rank} of 2, {is_source}: 8 rows, [[3.0, 3.0], [5.0, 5.0]]")


def test_a_source_that_is_gone_is_named_by_the_rank_that_shares_its_rows(tmp_path: Path) -> None:
    ended = all_ranks(tmp_path, leaves_early=1)
    assert [code for code, _ in ended] == [3, 0, 3, 3]
    assert "rank 3 of the 2 that share rows could not share the size of the rows of another slice" in ended[3][1]


def test_a_mesh_of_one_is_its_own_source() -> None:
    mesh = data_parallel(SingleRank())
    values = torch.tensor([2.0])
    mesh.add_up(values, "rows")
    assert (mesh.dp_rank, mesh.dp_size, values.item()) == (0, 1, 2.0)
    assert mesh.share(Message(b"rows"), "rows").header == b"rows"
    assert [one.tolist() for one in mesh.gather(values, "facts")] == [[2.0]]


@pytest.mark.parametrize("dp_rank_of", [[0, 0], [1]])
def test_a_mesh_that_does_not_fit_its_gang_is_refused(dp_rank_of: list[int]) -> None:
    with pytest.raises(ValueError, match="each rank needs one"):
        Mesh.of(SingleRank(), dp_rank_of)
