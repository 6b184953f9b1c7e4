"""The state in a checkpoint: independent of how many ranks wrote it, and refused where it does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.models.blob import write_blob
from rljob_workers.models.slices import EXP_AVG, SavedState, StateShare, StateSlice, state_files

WHOLE = {"a": torch.arange(24.0).reshape(6, 4), "b": torch.arange(5.0), "c": torch.tensor(3.0)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in WHOLE.items()}


def cut(ranks: int, along: int) -> list[StateShare]:
    """Every tensor in `ranks` slices along an axis; what has no such axis is the first rank's."""
    slices: list[list[StateSlice]] = [[] for _ in range(ranks)]
    for name, tensor in WHOLE.items():
        if tensor.dim() <= along:
            slices[0].append(StateSlice(EXP_AVG, name, SHAPES[name], (0,) * tensor.dim(), tensor))
            continue
        start = 0
        for rank, part in enumerate(torch.tensor_split(tensor, ranks, along)):
            offset = tuple(start if axis == along else 0 for axis in range(tensor.dim()))
            slices[rank].append(StateSlice(EXP_AVG, name, SHAPES[name], offset, part))
            start += part.shape[along]
    return [StateShare(parts, {"random": torch.tensor([rank])}, {"steps": 7}) for rank, parts in enumerate(slices)]


def write(folder: Path, shares: list[StateShare]) -> SavedState:
    for rank, share in enumerate(shares):
        tensors, description = state_files("actor", rank)
        write_blob(folder / tensors, share.tensors())
        (folder / description).write_bytes(share.description())
    return SavedState(folder, "actor")


@settings(max_examples=15, deadline=None)
@given(ranks=st.integers(1, 4), along=st.integers(0, 1))
def test_what_any_number_of_ranks_wrote_is_read_whole(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, along: int
) -> None:
    saved = write(tmp_path_factory.mktemp("state"), cut(ranks, along))
    saved.check(EXP_AVG, SHAPES)
    found = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
    saved.fill(EXP_AVG, found)
    assert all(torch.equal(found[name], WHOLE[name]) for name in WHOLE)
    assert saved.values == {"steps": 7}
    assert [saved.own(rank)["random"].item() for rank in range(ranks)] == list(range(ranks))
    assert saved.own(ranks) == {}, "a rank that did not exist then"


def test_a_rank_may_have_several_slices_of_a_tensor(tmp_path: Path) -> None:
    """As of queries, keys and values that tensor parallelism deals out by groups of heads."""
    slices = [
        StateSlice(EXP_AVG, "a", SHAPES["a"], (row, column), WHOLE["a"][row : row + 2, column : column + 2])
        for row, column in [(0, 0), (2, 0), (4, 0), (0, 2), (2, 2), (4, 2)]
    ]
    shares = [StateShare(slices[::2], {"random": torch.tensor([0])}), StateShare(slices[1::2])]
    assert list(shares[0].tensors()) == ["exp_avg/a", "exp_avg/a@4,0", "exp_avg/a@2,2", "own/random"]
    saved = write(tmp_path, shares)
    saved.check(EXP_AVG, {"a": SHAPES["a"]})
    found, part = torch.full(SHAPES["a"], -1.0), torch.full((3, 3), -1.0)
    saved.fill(EXP_AVG, {"a": found})
    saved.fill_part(EXP_AVG, "a", (1, 1), part)
    assert torch.equal(found, WHOLE["a"])
    assert torch.equal(part, WHOLE["a"][1:4, 1:4])


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        pytest.param({**SHAPES, "a": (4, 6)}, r"exp_avg of a has shape \[\(6, 4\)\], not \[4, 6\]", id="another shape"),
        pytest.param({**SHAPES, "d": (1,)}, r"exp_avg of d has shape \[\], not \[1\]", id="a tensor more"),
        pytest.param({"a": (6, 4), "b": (5,)}, "exp_avg of c is not of this model", id="a tensor less"),
    ],
)
def test_another_model_is_named(tmp_path: Path, shapes: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(ValueError, match=f"is of another model \\({text}\\)"):
        write(tmp_path, cut(2, 0)).check(EXP_AVG, shapes)


def test_a_slice_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exp_avg of a is not there whole"):
        write(tmp_path, cut(2, 0)[:1]).check(EXP_AVG, {"a": (6, 4), "b": (5,), "c": ()})


def test_a_folder_without_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no state of actor"):
        SavedState(tmp_path, "actor")
