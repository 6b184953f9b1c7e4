"""Sources of weights that no receiver reads yet are refused by name; a trainer's buckets are copied once."""

from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import WeightShare
from rljob_workers.models.weights import (
    Bucket,
    Buckets,
    ExportKind,
    Folder,
    Group,
    IpcHandle,
    SourceNotTaken,
    WeightSource,
    full_folder,
)


def test_a_folder_of_all_weights_is_a_path() -> None:
    assert full_folder(Folder(Path("v3")), "An engine") == Path("v3")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Folder(Path("v3"), ExportKind.ADAPTER), "An engine takes all weights, not those of an adapter: v3"),
        (Group("host:1", 2, 3, "digest"), "An engine takes weights from a folder, not from a Group"),
        (IpcHandle({}), "An engine takes weights from a folder, not from a IpcHandle"),
    ],
)
def test_everything_else_is_refused(source: WeightSource, sentence: str) -> None:
    with pytest.raises(SourceNotTaken, match=f"^{sentence}"):
        full_folder(source, "An engine")


def test_the_host_copy_of_an_export_is_made_once_and_not_before_it_is_asked_for() -> None:
    made: list[dict[str, torch.Tensor]] = []

    def stage() -> dict[str, torch.Tensor]:
        made.append({"scale": torch.ones(1)})
        return made[-1]

    live = Bucket({"scale": torch.zeros(1)}, is_live=True)
    buckets = Buckets(WeightShare(0, 1, "layout"), lambda: iter([live]), stage)
    assert list(buckets.on_device()) == [live]
    assert made == []
    assert buckets.on_host() is buckets.on_host()
    assert len(made) == 1


def test_what_lies_on_the_host_is_its_own_copy() -> None:
    tensors = {"scale": torch.ones(1)}
    buckets = Buckets.of_host(tensors)
    assert buckets.on_host() is tensors
    assert [bucket.tensors for bucket in buckets.on_device()] == [tensors]
