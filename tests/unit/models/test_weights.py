"""Sources of weights that no receiver reads yet are refused by name."""

from pathlib import Path

import pytest

from rljob_workers.models.weights import (
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
