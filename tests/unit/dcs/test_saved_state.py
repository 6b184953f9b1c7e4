"""What the coordinator writes below the checkpoint path is durable before it says so."""

from __future__ import annotations

from pathlib import Path

from rljob_api.names import Epoch
from rljob_workers.dcs.coordinator.restoring import SavedFolder
from tests.power_cuts import noted_syncs

FOLDER = "4-e1-0123456789ab"


def test_a_damaged_folder_is_aside_for_good(tmp_path: Path) -> None:
    """A power cut that brought its name back would bring it back among the checkpoints."""
    (tmp_path / FOLDER).mkdir()
    saved = SavedFolder(tmp_path)
    with noted_syncs() as disk:
        assert saved.keep_aside(FOLDER) == f"{FOLDER}.damaged"
        assert disk.lost_name(tmp_path / f"{FOLDER}.damaged") is None
        assert disk.brings_back(tmp_path) == set()
    assert saved.keep_aside(FOLDER) == f"{FOLDER}.damaged", "also where it died before it said so"


def test_a_begun_epoch_is_on_the_disk(tmp_path: Path) -> None:
    saved = SavedFolder(tmp_path)
    with noted_syncs() as disk:
        saved.note_epoch(Epoch(3))
        assert disk.lost(tmp_path / "begun.json") is None
    assert saved.last_epoch() == 3
