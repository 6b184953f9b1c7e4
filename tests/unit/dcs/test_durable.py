"""What was written durably is there after a power cut: with its content, and under its name."""

from pathlib import Path

from rljob_workers.dcs.checkpoints.on_disk import replace_synced, sync_folder, write_synced
from rljob_workers.telemetry.sample_logs import SampleLog, TrainedSample
from tests.power_cuts import noted_syncs


def test_a_written_file_is_whole_once_its_folder_is_synced(tmp_path: Path) -> None:
    with noted_syncs() as disk:
        write_synced(tmp_path / "file", [b"one", b"two"])
        assert disk.lost(tmp_path / "file") == "the name file"
        sync_folder(tmp_path)
        assert disk.lost(tmp_path / "file") is None


def test_a_replaced_file_is_whole_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with noted_syncs() as disk:
        assert disk.lost(tmp_path / "file") == "the content of file"
        replace_synced(tmp_path / "file", b"the new one")
        assert disk.lost(tmp_path / "file") is None


def test_audit_lines_are_on_the_disk_after_their_sync(tmp_path: Path) -> None:
    with noted_syncs() as disk:
        log = SampleLog(tmp_path / "samples.jsonl")
        log.append([TrainedSample("train_0", 0, 0, 0, 0, 1, 0, 1.0, valid=True)])
        log.sync()
        assert (tmp_path / "samples.jsonl").stat().st_size > 0
        assert disk.lost(tmp_path / "samples.jsonl") == "the name samples.jsonl"
        log.close()
