"""A folder that is started over: what a run wrote is kept or deleted, what anybody else has there is not touched."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.local import earlier_run
from rljob_operator.local.earlier_run import Earlier
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_folder import RunFolder
from tests.unit.api.manifests import changed

CHECKPOINT = "12-e1-0123456789ab"
OURS = (
    "status.json",
    "metrics.jsonl",
    "events.jsonl",
    "generations.jsonl",
    "job.json",
    "job.1.json",
    "run.json",
    "logs/actor-0.0.log",
    "logs/rollout-1.engine.2.log",
    "logs/storage-0.log",
    "timeline/actor_fwd-0.0.0123456789ab.jsonl",
    "redis/control/appendonlydir/appendonly.aof.manifest",
    "devices/actor-0.0.json",
    "engines/rollout-0/engine-0.json",
    f"checkpoints/{CHECKPOINT}/model.safetensors",
    f"checkpoints/.partial-{CHECKPOINT}/model.safetensors",
    f"checkpoints/reference/{CHECKPOINT}.safetensors",
    "checkpoints/record.json",
    "checkpoints/begun.json",
    "checkpoints/inputs.json",
    "checkpoints/latest",
)
THEIRS = (
    "job.yaml",
    "notes.txt",
    "checkpoints/mymodel.bin",
    "checkpoints/my-sft/model.safetensors",
    "checkpoints/12-e1-mine/model.safetensors",
    "checkpoints/reference/mine.safetensors",
    "logs/mine.log",
    "redis/dump.rdb",
    "timeline/mine.jsonl",
    "metrics.jsonl.bak",
    "my-samples.jsonl",
    "logs/actor-0.0.log.gz",
    f"checkpoints/{CHECKPOINT}.tar",
)


def job(**checkpoint: str) -> RLJob:
    return RLJob.model_validate(changed({f"spec.checkpoint.{field}": value for field, value in checkpoint.items()}))


def a_run(path: Path, manifest: RLJob) -> None:
    """A run of `manifest` that has come to an end, as far as its files show."""
    folder = RunFolder.open(path, fresh=False)
    folder.begin(manifest)
    folder.write_manifest(manifest)
    folder.close()
    (path / "status.json").write_text(RLJobStatus(restart=RestartStatus(epoch=1)).model_dump_json(by_alias=True))
    for name in OURS:
        entry = path / name
        if name.startswith("checkpoints/") and manifest.spec.checkpoint.path is not None:
            entry = path / manifest.spec.checkpoint.path / name.removeprefix("checkpoints/")
        entry.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("latest"):
            entry.symlink_to(CHECKPOINT)
        elif not entry.exists():
            entry.write_text(name)


def add(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)


def files(path: Path) -> set[str]:
    found = {str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_symlink() or entry.is_file()}
    return found - {"lock"}


def start_over(path: Path, manifest: RLJob, earlier: Earlier = Earlier.RETAINED) -> str:
    folder = RunFolder.open(path, fresh=True)
    try:
        return folder.start_over(manifest, earlier)
    finally:
        folder.close()


def without_record(path: Path) -> None:
    """As a version that kept none has left it."""
    (path / "run.json").unlink()


def as_it_is(path: Path) -> None:
    pass


@pytest.mark.parametrize("earlier", [Earlier.RETAINED, Earlier.DELETED])
@pytest.mark.parametrize("made", [as_it_is, without_record])
def test_what_the_run_wrote_goes_and_all_else_stays(
    tmp_path: Path, earlier: Earlier, made: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    a_run(run, job())
    add(run, *THEIRS)
    made(run)
    for number in (1, 2):
        message = start_over(run, job(), earlier)
        assert files(run) == set(THEIRS)
        if earlier is Earlier.DELETED:
            assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
            return
        assert message == f"the earlier run is kept in {run}.{number}"
        retained = tmp_path / f"run.{number}"
        assert files(retained) == set(OURS)
        again = RunFolder.open(retained, fresh=False)
        again.begin(job())  # it can be gone on with
        again.close()
        a_run(run, job())


@pytest.mark.parametrize("names", [OURS[:1], THEIRS[2:3], THEIRS[-3:-2], OURS[:4], ("run.json",), ("notes.txt",)])
def test_a_folder_that_was_never_a_run_is_not_started_over(tmp_path: Path, names: tuple[str, ...]) -> None:
    add(tmp_path, *names)
    with pytest.raises(RunRefused, match=r"no record of a run|is not the record of a run"):
        RunFolder.open(tmp_path, fresh=True)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {Path(name).name for name in names}


@pytest.mark.parametrize("name", ["job.json", "metrics.jsonl", "logs/actor-0.log", "lock"])
def test_a_first_run_writes_over_nothing(tmp_path: Path, name: str) -> None:
    add(tmp_path, name, "checkpoints/mymodel.bin")
    with pytest.raises(RunRefused, match=rf"^--out: {tmp_path}.*{name}"):
        RunFolder.open(tmp_path, fresh=False)
    assert (tmp_path / name).read_text() == name


def test_nothing_is_made_where_no_folder_can_be() -> None:
    with pytest.raises(RunRefused, match=r"^--out: /proc/no/such cannot be written \(.*\)\. Choose another folder"):
        RunFolder.open(Path("/proc/no/such"), fresh=False)


def test_a_link_is_neither_followed_nor_moved(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "disk", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    a_run(run, job())
    before = files(run), files(elsewhere)
    with pytest.raises(RunRefused, match=rf"^--fresh: {run}/checkpoints is a link to {elsewhere}, so that"):
        start_over(run, job(), Earlier.DELETED)
    assert (files(run), files(elsewhere)) == before


@pytest.mark.parametrize(
    ("mount", "earlier"),
    [
        ("", Earlier.RETAINED),
        ("redis", Earlier.RETAINED),
        (f"checkpoints/{CHECKPOINT}", Earlier.DELETED),
        (f"checkpoints/{CHECKPOINT}/in my data", Earlier.DELETED),
    ],
)
def test_a_mount_is_neither_moved_nor_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, earlier: Earlier
) -> None:
    run = tmp_path / "run"
    a_run(run, job())
    written = str(run / mount).replace(" ", r"\040")
    (tmp_path / "mountinfo").write_text(f"36 35 98:0 /mnt1 {written} rw,noatime master:1 - ext3 /dev/root rw\n")
    monkeypatch.setattr(earlier_run, "_MOUNTS", tmp_path / "mountinfo")
    with pytest.raises(RunRefused, match=rf"^--fresh: {run / mount} is a mount of its own"):
        start_over(run, job(), earlier)
    assert files(run) == set(OURS)


def test_a_start_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    run = tmp_path / "run"
    a_run(run, job())
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "leaves": 1}))
    (tmp_path / "run.1").mkdir()
    (run / "metrics.jsonl").rename(tmp_path / "run.1" / "metrics.jsonl")
    half = RunFolder.open(run, fresh=False)
    with pytest.raises(RunRefused, match=r"was cut off while it cleared the folder\. Run again with --fresh"):
        half.begin(job())
    half.close()
    start_over(run, job())
    assert files(run) == set()
    assert files(tmp_path / "run.1") == set(OURS)


def test_checkpoints_elsewhere_go_with_their_run(tmp_path: Path) -> None:
    run, saved = tmp_path / "run", tmp_path / "saved"
    manifest = job(path=str(saved))
    a_run(run, manifest)
    add(saved, "mymodel.bin")
    assert start_over(run, manifest) == f"the earlier run is kept in {run}.1 and {saved}.1"
    assert files(saved) == {"mymodel.bin"}
    assert files(run) == set()
    assert (tmp_path / "saved.1" / CHECKPOINT / "model.safetensors").exists()


def test_a_copy_of_a_run_decides_nothing_about_checkpoints_elsewhere(tmp_path: Path) -> None:
    run, saved, copied = tmp_path / "run", tmp_path / "saved", tmp_path / "copied"
    manifest = job(path=str(saved))
    a_run(run, manifest)
    shutil.copytree(run, copied)
    before = files(saved)
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} has checkpoints that are not of"):
        start_over(copied, manifest, Earlier.DELETED)
    folder = RunFolder.open(copied, fresh=False)
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} has the checkpoints of another run"):
        folder.begin(manifest)
    folder.close()
    assert files(saved) == before
    shutil.rmtree(copied)
    run.rename(copied)  # what was moved is no copy
    folder = RunFolder.open(copied, fresh=False)
    folder.begin(manifest)
    folder.close()


def test_two_runs_do_not_share_a_folder_of_checkpoints(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    first = RunFolder.open(tmp_path / "first", fresh=False)
    first.begin(job(path=str(saved)))
    second = RunFolder.open(tmp_path / "second", fresh=False)
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} is in use by another run"):
        second.begin(job(path=str(saved)))
    first.close()
    (saved / "record.json").write_text("{}")
    other = changed({"spec.checkpoint.path": str(saved), "spec.seed": 5})
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} has the checkpoints of another run"):
        second.begin(RLJob.model_validate(other))
    second.close()
    with pytest.raises(RunRefused, match=rf"^spec\.checkpoint\.path: {saved} has checkpoints that are not of"):
        start_over(tmp_path / "second", RLJob.model_validate(other))
    shutil.rmtree(tmp_path / "first")  # a machine was lost, and its run goes on in another folder
    third = RunFolder.open(tmp_path / "third", fresh=False)
    third.begin(job(path=str(saved)))
    third.close()


def test_a_folder_in_use_is_not_cleared(tmp_path: Path) -> None:
    a_run(tmp_path, job())
    folder = RunFolder.open(tmp_path, fresh=False)
    with pytest.raises(RunRefused, match=rf"is in use by `rljob run` \(process {os.getpid()}\)"):
        RunFolder.open(tmp_path, fresh=True)
    folder.close()
    assert files(tmp_path) == set(OURS)
