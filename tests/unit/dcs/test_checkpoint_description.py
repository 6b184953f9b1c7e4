"""Which record a folder is or has, what lies in it, and whether its files are what was written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED, Role
from rljob_api.wire.checkpoint_report import (
    Answer,
    CheckpointQuestion,
    CheckpointReport,
    ExportDtype,
    ExportQuestion,
    StateKind,
)
from rljob_workers.dcs.checkpoints.command import Meter, export, main, show
from rljob_workers.dcs.checkpoints.description import find_record
from rljob_workers.models.slices import EXP_AVG, PARAMETER, STEPS, StateShare, StateSlice
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.value_head import critic_files
from tests.records import NAME, SPEC, make_record

WEIGHTS = {"a": torch.arange(24.0).reshape(6, 4), "b": torch.arange(5.0)}
SHARES = [
    StateShare(
        [
            StateSlice(PARAMETER, "a", (6, 4), (0, 0), WEIGHTS["a"][:2]),
            StateSlice(PARAMETER, "a", (6, 4), (4, 0), WEIGHTS["a"][4:]),
            StateSlice(EXP_AVG, "b", (5,), (0,), WEIGHTS["b"]),
        ],
        {"random": torch.arange(7, dtype=torch.uint8)},
        {STEPS: 12},
    ),
    StateShare([StateSlice(PARAMETER, "a", (6, 4), (2, 0), WEIGHTS["a"][2:4])]),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a record of two roles."""
    root = tmp_path / "checkpoints"
    make_record(root, WEIGHTS, SHARES)
    files = critic_files(SPEC, build_tokenizer(SPEC))
    make_record(root, {"b": WEIGHTS["b"]}, [], role=Role.CRITIC, dtype=torch.float32, described=files)
    return root


def shown(folder: Path, *, is_verified: bool = True) -> CheckpointReport:
    return show(CheckpointQuestion(folder=str(folder), is_verified=is_verified))


def test_a_record_is_described_by_its_heads(root: Path) -> None:
    report = shown(root)
    assert (report.version, report.epoch, report.lineage, report.is_recorded) == (4, 1, 1, True)
    assert (report.folder, report.latest_of, report.others) == (str(root / NAME), str(root), [])
    assert (report.is_intact, report.damage, report.reference) == (True, [], None)
    files = [path for path in (root / NAME).rglob("*") if path.is_file()]
    assert (report.files, report.bytes) == (len(files), sum(path.stat().st_size for path in files))
    actor, critic = report.roles
    assert (actor.role, critic.role) == (Role.ACTOR, Role.CRITIC)
    assert actor.model is not None
    assert (actor.model.model_type, actor.model.architecture) == ("qwen3", "Qwen3ForCausalLM")
    assert (actor.model.parameters, actor.model.dtypes, actor.model.bytes) == (29, {"bfloat16": 58}, 58)
    assert actor.model.parts == 2
    assert actor.state is not None
    assert (actor.state.ranks, actor.state.optimizer_steps, actor.state.bytes) == (2, 12, 123)
    assert actor.state.kinds == [
        StateKind(kind="exp_avg", slices=1, bytes=20),
        StateKind(kind="own", slices=1, bytes=7),
        StateKind(kind="parameter", slices=3, bytes=96),
    ]
    assert critic.model is not None
    assert (critic.model.architecture, critic.model.dtypes) == ("Qwen3ForSequenceClassification", {"float32": 20})
    assert critic.state is None


def add_reference(root: Path) -> None:
    """Which the record names, and its checksums do not: they were written before."""
    (root / "reference").mkdir()
    (root / "reference/0-e1-0123456789ab.safetensors").write_bytes(b"version 0")
    named = {"version": 0, "file": "0-e1-0123456789ab.safetensors", "checksum": "0" * 16}
    (root / NAME / "reference.json").write_text(json.dumps(named))


def test_a_reference_is_among_what_is_verified_unless_the_record_was_copied_without_it(
    root: Path, tmp_path: Path
) -> None:
    add_reference(root)
    report = shown(root)
    assert report.reference is not None
    assert (report.reference.version, report.reference.bytes, report.reference.is_here) == (0, 9, True)
    assert any(
        text.startswith(f"{root}/reference/0-e1-0123456789ab.safetensors has checksum") for text in report.damage
    )
    shutil.copytree(root / NAME, tmp_path / "elsewhere/best")
    report = shown(tmp_path / "elsewhere/best")
    assert (report.is_intact, report.version, report.lineage, report.latest_of) == (True, None, None, None)
    assert report.reference is not None
    assert not report.reference.is_here


@pytest.mark.parametrize("given", [".", NAME, "latest"])
def test_the_latest_record_is_found(root: Path, given: str) -> None:
    """The newest with a mark where the record file is gone; what is half written or put aside is none."""
    for name in ("3-e2-0123456789ab", "10-e1-0123456789ab", f".partial-{NAME}", f"{NAME}.damaged"):
        shutil.copytree(root / NAME, root / name)
    assert find_record(root / given).name == NAME
    assert shown(root / given, is_verified=False).others == ["10-e1-0123456789ab", "3-e2-0123456789ab"]
    (root / "record.json").unlink()
    assert find_record(root).name == "10-e1-0123456789ab"
    assert find_record(root / f"{NAME}.damaged").written_as == find_record(root / NAME).written_as


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda path: None, r"here is not a folder\. Give a record", id="nothing"),
        pytest.param(lambda path: path.mkdir(), r"here has no record of a checkpoint: nothing was saved", id="empty"),
    ],
)
def test_a_folder_without_a_record_is_refused(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    make(tmp_path / "here")
    with pytest.raises(ValueError, match=text):
        find_record(tmp_path / "here")


def test_what_is_half_written_is_no_record(root: Path) -> None:
    shutil.copytree(root / NAME, root / f".partial-{NAME}")
    with pytest.raises(ValueError, match="is no record: it is still being written, or a death has left it"):
        find_record(root / f".partial-{NAME}")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def spoil_head(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("file", "damage", "is_seen_at_once"),
    [
        pytest.param("model-00002-of-00002.safetensors", flip, False, id="a bit of a tensor"),
        pytest.param("model-00002-of-00002.safetensors", spoil_head, True, id="a head"),
        pytest.param("actor-00001.safetensors", Path.unlink, True, id="a rank's file"),
        pytest.param("actor-00001.json", spoil_head, True, id="a rank's description"),
        pytest.param("critic/config.json", spoil_head, True, id="a config"),
        pytest.param("checksums.json", spoil_head, False, id="the checksums"),
        pytest.param("checksums.json", Path.unlink, False, id="no checksums"),
    ],
)
def test_damage_is_named(root: Path, file: str, damage: Callable[[Path], None], *, is_seen_at_once: bool) -> None:
    damage(root / NAME / file)
    report = shown(root)
    assert report.is_intact is False
    assert [text for text in report.damage if text.startswith(f"{root / NAME / file} ")], report.damage
    assert shown(root, is_verified=False).is_intact is (False if is_seen_at_once else None)


def exporting(root: Path, to: Path, *, is_verified: bool = True, dtype: ExportDtype | None = None) -> ExportQuestion:
    return ExportQuestion(folder=str(root), to=str(to), role=Role.ACTOR, dtype=dtype, is_verified=is_verified)


def test_an_export_states_what_it_made(root: Path, tmp_path: Path) -> None:
    report = export(exporting(root, tmp_path / "to", dtype=ExportDtype.FLOAT32))
    assert (report.record, report.version, report.parameters, report.bytes) == (str(root / NAME), 4, 29, 116)
    assert (report.dtypes, report.parts) == ({"float32": 116}, 1)
    assert (report.tensors, report.tensors_published, report.tensors_exact, report.tensors_converted) == (2, 0, 1, 1)


def answered(capsys: pytest.CaptureFixture[str], what: str, question: CheckpointQuestion | ExportQuestion) -> Answer:
    code = main([what, question.model_dump_json()])
    answer = Answer.model_validate_json(capsys.readouterr().out.splitlines()[-1])
    assert code == (0 if answer.refusal is None else answer.refusal.exit_code)
    return answer


@pytest.mark.parametrize("file", ["model-00002-of-00002.safetensors", "actor-00001.safetensors", "tokenizer.json"])
def test_no_export_is_made_of_what_is_damaged(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    flip(root / NAME / file)
    answer = answered(capsys, "export", exporting(root, tmp_path / "to", dtype=ExportDtype.FLOAT32))
    assert answer.refusal is not None
    assert answer.refusal.exit_code == EXIT_FAILED
    assert f"{root / NAME} is damaged: {root / NAME / file} has checksum" in answer.refusal.sentence
    assert not (tmp_path / "to").exists()


def test_an_export_reads_no_state_that_it_does_not_need(root: Path, tmp_path: Path) -> None:
    flip(root / NAME / "actor-00001.safetensors")
    assert export(exporting(root, tmp_path / "to")).is_verified
    flip(root / NAME / "model-00002-of-00002.safetensors")
    assert not export(exporting(root, tmp_path / "again", is_verified=False)).is_verified


def test_what_cannot_be_answered_is_a_refusal(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    answer = answered(capsys, "export", exporting(root, tmp_path / "file"))
    assert answer.refusal is not None
    assert answer.refusal.exit_code == EXIT_BAD_MANIFEST
    answer = answered(capsys, "export", exporting(root, tmp_path / "file/deeper"))
    assert answer.refusal is not None
    assert answer.refusal.exit_code == EXIT_FAILED, "the file system has refused it"


def test_a_record_that_its_job_deletes_meanwhile_is_not_called_damaged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rljob_workers.dcs.checkpoints import command

    class Deleting(Meter):
        def add(self, num_bytes: int) -> None:
            shutil.rmtree(root / NAME, ignore_errors=True)

    monkeypatch.setattr(command, "Meter", Deleting)
    with pytest.raises(ValueError, match="was deleted meanwhile, as a job does that runs"):
        shown(root)


def test_progress_is_printed_every_two_seconds_and_at_most_twenty_times(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    meter = Meter("verified", 1000, lambda: now)
    for now, done in ((101.9, 100), (102.0, 100), (103.9, 200), (104.0, 1), (104.5, 1), (106.4, 47), (106.5, 2)):  # noqa: B007 - the clock's
        meter.add(done)
    lines = [Answer.model_validate_json(line).progress for line in capsys.readouterr().out.splitlines()]
    assert [(line.what, line.done_bytes, line.total_bytes) for line in lines if line is not None] == [
        ("verified", 200, 1000),
        ("verified", 401, 1000),
        ("verified", 451, 1000),
    ]


def test_to_show_a_record_nothing_heavy_is_imported() -> None:
    script = "import sys, rljob_workers.dcs.checkpoints.command as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "numpy", "transformers"}
