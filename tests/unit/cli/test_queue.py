"""`rljob queue` without a job: what it refuses, and what it makes of the coordinator's answers."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.queue import QueueCheck, QueuePeek
from rljob_cli.jobs.coordinator import QueueProblem
from rljob_cli.main import cli
from tests.unit.cli.scripted import Scripted

COMMANDS = ["stats", "peek", "check", "drain"]


def rljob(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["queue", *arguments])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_none_is_refused(command: str, tmp_path: Path) -> None:
    done = rljob(command, str(tmp_path / "none"))
    assert (done.exit_code, done.stdout) == (EXIT_BAD_MANIFEST, "")
    assert done.stderr.startswith(f"{tmp_path}/none is not a folder. Give the folder of a run ")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    done = rljob("stats", str(tmp_path))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert done.stderr == f"{tmp_path} is not the folder of a run: it has no job.json. Give the --out of a run.\n"


def make_folder(folder: Path, endpoints: str | None = None) -> str:
    (folder / "job.json").write_text("{}")
    if endpoints is not None:
        (folder / "endpoints.json").write_text(endpoints)
    return str(folder)


def test_a_run_that_is_over_is_named(tmp_path: Path) -> None:
    done = rljob("check", make_folder(tmp_path))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert done.stderr == (
        f"Nothing runs in {tmp_path}: a run has its endpoints.json there from its start to its end. Start it with rljob"
        " run.\n"
    )


def test_endpoints_that_are_damaged_are_named(tmp_path: Path) -> None:
    done = rljob("check", make_folder(tmp_path, "{}"))
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert "endpoints.json cannot be read (ValidationError)" in done.stderr


def test_a_coordinator_that_is_gone_is_named(tmp_path: Path) -> None:
    with socket.socket() as no_one:
        no_one.bind(("127.0.0.1", 0))  # and does not listen: no one else gets the port meanwhile
        endpoints = Endpoints(
            job="test",
            coordinator=f"http://127.0.0.1:{no_one.getsockname()[1]}",
            token="t",
            control_redis="unix://:p@/none",
            storage_units=[],
            run_dir=str(tmp_path),
            weights_dir=str(tmp_path),
        )
        done = rljob("stats", make_folder(tmp_path, endpoints.model_dump_json()))
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert done.stderr.startswith(f"The coordinator of the run in {tmp_path} does not answer (")
    assert done.stderr.endswith("See whether `rljob run` still runs there.\n")


@pytest.mark.parametrize("text", [["actor_train", "ref_log_probs"], ["train_1", "train_2"]])
def test_more_than_one_task_or_partition_is_refused(text: list[str], tmp_path: Path) -> None:
    done = rljob("peek", str(tmp_path), *text)
    assert done.exit_code == EXIT_BAD_MANIFEST
    assert done.stderr == f"WHAT: {' '.join(text)} is more than one task and one partition. Name at most one of each.\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_without_a_cluster_is_explained(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    done = rljob(command, "demo")
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert done.stderr.startswith("demo is no folder here, so it is taken for a name. There is no cluster to ask: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_examples(command: str) -> None:
    done = rljob(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output or command == "check"
    assert "the folder of a run on this machine" in done.output


@pytest.mark.parametrize(
    ("answer", "exit_code", "sentence"),
    [
        ((400, b'{"reason":"BadRequest","message":"task: no."}'), EXIT_BAD_MANIFEST, "task: no."),
        ((404, b'{"reason":"NotFound","message":"train_9: no."}'), EXIT_BAD_MANIFEST, "train_9: no."),
        ((503, b'{"reason":"NotOpen","message":"Ask again."}'), EXIT_FAILED, "Ask again."),
        ((500, b"Internal Server Error"), EXIT_FAILED, "The coordinator refuses (500): Internal Server Error"),
        ((200, b'{"rows":[]}'), EXIT_FAILED, "The coordinator's answer to /v1/queue/rows is not understood (more: "),
    ],
)
def test_a_refusal_is_its_sentence(answer: tuple[int, bytes], exit_code: int, sentence: str) -> None:
    with pytest.raises(QueueProblem) as raised:
        Scripted(answer).ask(QueuePeek, "/v1/queue/rows")
    assert raised.value.exit_code == exit_code
    assert str(raised.value).startswith(sentence)


def test_a_broken_queue_ends_the_check_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = QueueCheck(partitions=2, broken=["train_3: a chunk is gone"])
    monkeypatch.setattr("rljob_cli.commands.queue.coordinator_of", lambda *_: Scripted(broken))
    done = rljob("check", "demo")
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "BROKEN: train_3: a chunk is gone\n")
    done = rljob("check", "demo", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (
        EXIT_FAILED,
        {"holds": False, "partitions": 2, "broken": ["train_3: a chunk is gone"]},
    )
