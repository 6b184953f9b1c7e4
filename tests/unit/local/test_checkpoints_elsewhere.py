"""Checkpoints outside of the run folder: of one run at a time, kept or deleted with it, and nothing of others."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from rljob_api.spec import RLJob
from rljob_operator.local import earlier_run
from rljob_operator.local.earlier_run import Earlier
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_folder import RunFolder
from tests.power_cuts import noted_syncs
from tests.unit.api.manifests import changed
from tests.unit.dcs.test_checkpoint_on_disk import give_an_io_error
from tests.unit.local.test_earlier_run import CHECKPOINT, OURS, a_run, add, files, job, start_over


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved"


@pytest.fixture
def other_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def begin(path: Path, manifest: RLJob) -> None:
    folder = RunFolder.open(path, fresh=False)
    try:
        folder.begin(manifest)
    finally:
        folder.close()


def manifest_of(path: Path) -> RLJob:
    return RLJob.model_validate_json((path / "job.json").read_bytes())


@pytest.mark.parametrize("given", ["absolute", "relative"])
def test_a_retained_run_has_its_own_checkpoints(run: Path, saved: Path, given: str) -> None:
    manifest = job(path=str(saved) if given == "absolute" else "../saved")
    a_run(run, manifest)
    start_over(run, manifest)
    a_run(run, manifest)
    retained = run.with_name("run.1")
    assert manifest_of(retained).spec.checkpoint.path == f"{saved}.1"
    begin(retained, manifest_of(retained))
    with pytest.raises(RunRefused, match=r"^spec\.checkpoint\.path: .* differs from"):
        begin(retained, manifest)
    assert start_over(retained, manifest_of(retained)) == f"the earlier run is kept in {retained}.1 and {saved}.1.1"
    assert manifest_of(run).spec.checkpoint.path == manifest.spec.checkpoint.path
    assert (saved / CHECKPOINT).exists()


def test_a_retained_run_is_on_the_disk(run: Path, saved: Path) -> None:
    manifest = job(path=str(saved))
    a_run(run, manifest)
    add(run, "notes.txt")
    with noted_syncs() as disk:
        start_over(run, manifest)
        of_run = ["", "run.json", "job.json", "logs", "logs/actor-0.0.log", "redis/control", "engines/rollout-0"]
        of_saved = ["", "run.json", "record.json", CHECKPOINT, "reference", f"reference/{CHECKPOINT}.safetensors"]
        retained = [run.with_name("run.1") / name for name in of_run]
        retained += [saved.with_name("saved.1") / name for name in of_saved]
        assert [disk.lost_name(path) for path in retained] == [None] * len(retained)
        assert disk.brings_back(run) == set()
        assert disk.brings_back(saved) == set()


@pytest.mark.parametrize("place", ["_move", "_rename_checkpoints", "_remove_empty", "sync_folder"])
def test_a_start_that_was_cut_off_anywhere_is_finished_by_the_next(
    run: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    manifest = job(path=str(saved))
    a_run(run, manifest)
    all_of_it = files(run), files(saved)
    cut_off = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(earlier_run, place, Mock(side_effect=cut_off))
        with pytest.raises(RunRefused, match="No space left on device"):
            start_over(run, manifest)
    retained, retained_saved = run.with_name("run.1"), saved.with_name("saved.1")
    if (run / "run.json").exists():
        start_over(run, manifest)
    assert (files(retained), files(retained_saved)) == all_of_it
    assert (files(run), files(saved)) == (set(), set())
    assert manifest_of(retained).spec.checkpoint.path == str(retained_saved)
    begin(retained, manifest_of(retained))


def test_a_run_that_was_renamed_after_its_start_was_cut_off_is_retained_beside_its_new_name(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(run, job())
    with monkeypatch.context() as patch:
        patch.setattr(earlier_run, "_move", Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(RunRefused, match="Input/output error"):
            start_over(run, job())
    renamed = run.rename(run.with_name("renamed"))
    start_over(renamed, job())
    assert files(run.with_name("renamed.1")) == set(OURS)


def is_text(file: Path) -> None:
    file.write_text("cross country, 12 km")


def is_an_object(file: Path) -> None:
    file.write_text('{"distance": 12}')


def is_a_record_of_a_run(file: Path) -> None:
    file.unlink()
    a_run(file.parent, job())


@pytest.mark.parametrize("made", [is_text, is_an_object, is_a_record_of_a_run, give_an_io_error])
def test_a_file_that_states_nothing_of_checkpoints_is_not_written_over(
    run: Path, saved: Path, made: Callable[[Path], None]
) -> None:
    manifest = job(path=str(saved))
    saved.mkdir()
    file = saved / "run.json"
    file.touch()
    made(file)
    before = file.lstat().st_ino, file.lstat().st_mtime_ns
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {file} (does not say whose|cannot be read \()"):
        begin(run, manifest)
    a_run(run.with_name("earlier"), job())
    with pytest.raises(RunRefused, match=r"^spec\.checkpoint\.path: "):
        start_over(run.with_name("earlier"), manifest, Earlier.DELETED)
    assert (run.with_name("earlier") / "metrics.jsonl").exists()
    assert (file.lstat().st_ino, file.lstat().st_mtime_ns) == before


def test_a_record_that_cannot_be_read_is_not_written_again(run: Path) -> None:
    a_run(run, job())
    folder = RunFolder.open(run, fresh=False)
    give_an_io_error(run / "run.json")
    with pytest.raises(RunRefused, match=rf"^--out: {run}/run.json cannot be read \(Input/output error\)"):
        folder.begin(job())
    folder.close()
    assert (run / "run.json").is_symlink()


@pytest.mark.parametrize("name", ["saved", "reference", "saved/reference"])
def test_a_copy_deletes_nothing_of_the_run_that_it_was_copied_from(tmp_path: Path, run: Path, name: str) -> None:
    checkpoints, copied = tmp_path / name, tmp_path / "copied"
    a_run(run, job(path=str(checkpoints)))
    shutil.copytree(run, copied)
    before = files(checkpoints)
    start_over(copied, job(), Earlier.DELETED)
    assert files(copied) == set()
    assert files(checkpoints) == before
    start_over(run, job(), Earlier.DELETED)
    assert files(checkpoints) == set()


@pytest.mark.parametrize("earlier", [Earlier.RETAINED, Earlier.DELETED])
def test_a_start_that_is_refused_leaves_the_earlier_run_where_it_is(run: Path, saved: Path, earlier: Earlier) -> None:
    a_run(run, job())
    other = RunFolder.open(run.with_name("other"), fresh=False)
    other.begin(job(path=str(saved)))
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} is in use by another run"):
        start_over(run, job(path=str(saved)), earlier)
    other.close()
    another = RLJob.model_validate(changed({"spec.checkpoint.path": str(saved), "spec.seed": 5}))
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} has the checkpoints of another run"):
        start_over(run, another, earlier)
    with pytest.raises(RunRefused, match=r"^spec\.checkpoint\.path: /proc/saved cannot be written"):
        start_over(run, job(path="/proc/saved"), earlier)
    assert files(run) == set(OURS)
    start_over(run, job(path=str(saved)), earlier)  # of which the other one has recorded nothing


def test_a_link_on_the_way_below_the_run_folder_is_not_followed(tmp_path: Path, run: Path) -> None:
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    run.mkdir()
    (run / "sub").symlink_to(elsewhere)
    manifest = job(path="sub/ckpt")
    a_run(run, manifest)
    before = files(run), files(elsewhere)
    for earlier in (Earlier.RETAINED, Earlier.DELETED):
        with pytest.raises(RunRefused, match=rf"^--fresh: {run}/sub is a link to {elsewhere}, so that"):
            start_over(run, manifest, earlier)
    assert (files(run), files(elsewhere)) == before


def test_checkpoints_behind_a_link_are_retained_on_their_own_disk(run: Path, saved: Path, other_disk: Path) -> None:
    (other_disk / "ckpt").mkdir()
    saved.symlink_to(other_disk / "ckpt")
    manifest = job(path=str(saved))
    a_run(run, manifest)
    before = files(saved)
    assert start_over(run, manifest) == f"the earlier run is kept in {run}.1 and {other_disk}/ckpt.1"
    assert files(other_disk / "ckpt.1") == before
    assert (files(run), files(saved)) == (set(), set())
    begin(run.with_name("run.1"), manifest_of(run.with_name("run.1")))


def test_nothing_is_moved_where_a_part_is_on_another_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a subvolume is, which is no mount."""
    a_run(run, job())
    monkeypatch.setattr(earlier_run, "_device", lambda path: len(set(path.parts) & {"redis"}))
    with pytest.raises(
        RunRefused, match=rf"^--fresh: {run}/redis/control is on another disk than {run.parent}, so that"
    ):
        start_over(run, job())
    assert files(run) == set(OURS)
    start_over(run, job(), Earlier.DELETED)
    assert files(run) == set()


@pytest.mark.parametrize("earlier", [Earlier.RETAINED, Earlier.DELETED])
def test_what_damage_and_kills_have_left_goes_with_its_run(run: Path, earlier: Earlier) -> None:
    a_run(run, job())
    left = [f"{CHECKPOINT}.damaged/model.safetensors", "record.json.damaged", ".record.json.123", ".begun.json.4"]
    theirs = {f"checkpoints/{name}" for name in ("1-e1-mine.damaged", "latest.damaged", ".record.json.bak")}
    add(run, *(f"checkpoints/{name}" for name in left), *theirs)
    start_over(run, job(), earlier)
    assert files(run) == theirs
