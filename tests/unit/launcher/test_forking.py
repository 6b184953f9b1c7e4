"""Exit codes and last message: what counts as the user's error, and what is kept of a log."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import ModelSpec
from rljob_workers.launcher.forking import LAST_OUTPUT_BYTES, Child, how_it_ended, is_users_error
from rljob_workers.models.tokenizers import build_tokenizer


def refuse_a_folder() -> None:
    build_tokenizer(ModelSpec(path="/absent"))


def raise_in_a_library() -> None:
    list(zip([1], [1, 2], strict=True))


def raise_runtime_error() -> None:
    raise RuntimeError


def parse_half_a_document() -> None:
    json.loads("{")


def validate_nothing() -> None:
    RLJobSpec.model_validate({})


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(refuse_a_folder, True, id="a sentence of ours is for the user"),
        pytest.param(raise_in_a_library, False, id="the same type from elsewhere is a failure"),
        pytest.param(raise_runtime_error, False, id="another type is a failure"),
        pytest.param(parse_half_a_document, False, id="half a JSON document is a failure"),
        pytest.param(validate_nothing, False, id="a message that does not parse is a failure"),
    ],
)
def test_users_errors(cause: Callable[[], None], expected: bool) -> None:
    with pytest.raises((ValueError, RuntimeError, ValidationError)) as raised:
        cause()
    assert is_users_error(raised.value) is expected


def test_last_messages_are_the_tail_of_this_incarnation_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier life\n")
    child = Child(pid=1, log=log, log_offset=log.stat().st_size)
    assert child.last_output() == ""
    with log.open("a") as file:
        file.write("the last words\n")
    assert child.last_output() == "the last words"


def test_last_messages_are_bounded_in_bytes_whatever_they_are_made_of(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10_000 + b"\xff" * 5000 + "der Schluß".encode())
    text = Child(pid=1, log=log, log_offset=0).last_output()
    assert len(text.encode()) <= LAST_OUTPUT_BYTES
    assert text.endswith("der Schluß")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (64, "exited with code 64"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_end_as_text(code: int, text: str) -> None:
    assert how_it_ended(code) == text


def run_in_a_child(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """`exec_program` takes its process over."""
    code = f"import os; from rljob_workers.launcher.forking import exec_program; exec_program({arguments}, os.environ)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_a_program_ignores_no_signal_that_only_python_ignores() -> None:
    done = run_in_a_child(["cat", "/proc/self/status"])
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SigIgn:"))
    ignored = int(line.split()[1], 16)  # the parent of the tests may have others ignored, as nohup does
    assert not [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1]


def test_a_program_that_is_not_there_is_a_sentence() -> None:
    done = run_in_a_child(["/absent/engine", "--port", "1"])
    assert done.stderr.rstrip().endswith(
        "ValueError: The program /absent/engine cannot be started: No such file or directory."
        " Install it in the worker's image."
    )
