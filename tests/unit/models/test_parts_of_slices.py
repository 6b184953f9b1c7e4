"""State in slices: what ranks have cut one way is read cut any other way."""

from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_workers.models.blob import write_blob
from rljob_workers.models.slices import EXP_AVG, SavedState, StateShare, StateSlice, state_files

ROWS, WIDTH = 11, 3


def cut(tensor: torch.Tensor, world: int) -> list[tuple[int, torch.Tensor]]:
    """As FSDP cuts: pieces of one length along axis 0, of which the last may be short, or empty."""
    piece = -(-len(tensor) // world)
    return [(min(rank * piece, len(tensor)), tensor[rank * piece : (rank + 1) * piece]) for rank in range(world)]


def save(folder: Path, tensor: torch.Tensor, world: int) -> SavedState:
    for path in folder.iterdir():
        path.unlink()
    for rank, (first, rows) in enumerate(cut(tensor, world)):
        slices = [StateSlice(EXP_AVG, "w", tuple(tensor.shape), (first, 0), rows)] if len(rows) else []
        share = StateShare(slices, values={"optimizer.steps": 3})
        tensors, description = state_files("actor", rank)
        write_blob(folder / tensors, share.tensors())
        (folder / description).write_bytes(share.description())
    return SavedState(folder, "actor")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(saved_by=st.integers(1, 13), read_by=st.integers(1, 13))
def test_any_number_of_ranks_reads_what_any_number_has_saved(tmp_path: Path, saved_by: int, read_by: int) -> None:
    tensor = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    saved = save(tmp_path, tensor, saved_by)
    saved.check(EXP_AVG, {"w": (ROWS, WIDTH)})
    for first, rows in cut(tensor, read_by):
        target = torch.full_like(rows, torch.nan)
        saved.fill_part(EXP_AVG, "w", (first, 0), target)
        assert torch.equal(target, rows)


def test_a_part_of_a_part_of_a_row_is_read(tmp_path: Path) -> None:
    tensor = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    target = torch.full((4, 2), torch.nan)
    save(tmp_path, tensor, 4).fill_part(EXP_AVG, "w", (1, 1), target)
    assert torch.equal(target, tensor[1:5, 1:])
