"""Logs that are kept beside the checkpoints: the newest incarnation of each process, and the one before it."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rljob_api.names import Role
from rljob_api.wire.logs import LogTail, begins_line, last_incarnations
from rljob_workers.kept_logs import RetainedLogs, main
from rljob_workers.launcher.forking import fork_child

FIRST, SECOND, THIRD = (begins_line(f"2026-01-0{day}T00:00:00Z") for day in (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", ("", ""), id="an empty log"),
        pytest.param("a\n", ("a\n", ""), id="a part of one long life"),
        pytest.param(f"{FIRST}a\n", ("a\n", ""), id="one life"),
        pytest.param(f"a\n{SECOND}b\n", ("b\n", "a\n"), id="the end of a life, and the next"),
        pytest.param(f"{FIRST}a\n{SECOND}b\n{THIRD}c\n", ("c\n", "b\n"), id="three lives"),
        pytest.param(f"{FIRST}a\nno end{SECOND}", (f"a\nno end{SECOND}", ""), id="a line that only looks like a mark"),
        pytest.param(f"{FIRST}a\n{SECOND}", ("", "a\n"), id="one that has written nothing yet"),
    ],
)
def test_incarnations_are_distinguished(text: str, expected: tuple[str, str]) -> None:
    assert last_incarnations(text) == expected


def retained(logs: RetainedLogs, *, previous: bool, role: Role | None = None) -> dict[str, str]:
    return {tail.name: tail.text for tail in logs.read(role, previous=previous).logs}


def test_the_incarnation_before_is_retained_when_another_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = RetainedLogs(tmp_path)
    assert retained(logs, previous=False) == {}
    for incarnation, text in (("one", "a"), ("one", "ab"), ("two", "c"), ("two", "cd"), ("two", "cde")):
        logs.retain(LogTail(name="actor-0.0", incarnation=incarnation, text=text))
    logs.retain(LogTail(name="actor_fwd-0.0", incarnation="one", text="f"))
    logs.retain(LogTail(name="rollout-1.engine.2", incarnation="one", text="e"))
    assert retained(logs, previous=False) == {"actor-0.0": "cde", "actor_fwd-0.0": "f", "rollout-1.engine.2": "e"}
    assert retained(logs, previous=True) == {"actor-0.0": "ab"}
    assert retained(logs, previous=False, role=Role.ACTOR) == {"actor-0.0": "cde"}
    assert main(["--run-dir", str(tmp_path), "--role", "actor", "--previous"]) == 0
    assert '"text": "ab"' in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../record", "actor-0", "actor-0.0.log", "checkpoints", "actor-0.0/../../x", ""])
def test_no_other_name_is_written(name: str) -> None:
    with pytest.raises(ValidationError):
        LogTail(name=name, incarnation="one", text="a")


def test_every_incarnation_begins_with_a_mark_that_is_none_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "actor-0.0.log"

    def quiet() -> int:
        return 0

    child = fork_child(quiet, log)
    assert child.last_output() == ""
    assert last_incarnations(log.read_text() + "a\n") == ("a\n", "")
