"""How calls to Redis and files become facts that two runs have in common."""

import json
from pathlib import Path

import pytest

from tests.recorded.jobs.calls import counts, shapes
from tests.recorded.jobs.files import facts
from tests.recorded.jobs.recording import Recorded, differences, merged

param = pytest.param
SUFFIX, RANK, RUN = "_34bbeb4238a9", "264278fec4aa", "73ab9d40149e1099c8b12c48fe5bc38a77f5be19"


def line(*parts: str, client: str = "unix:/tmp/control.sock") -> bytes:
    """As MONITOR has it."""
    quoted = " ".join('"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts)
    return f"+1795909565.932904 [0 {client}] {quoted}\r\n".encode()


def escaped(parts: str, *, client: str = "unix:/tmp/control.sock") -> bytes:
    return f"+1795909565.932904 [0 {client}] {parts}\r\n".encode()


BEGUN = line(
    *("FCALL", f"begin_life{SUFFIX}", "0", RUN, "admin-8aca094800eb", "7", "1", RANK, "actor-0.0"),
    json.dumps({"epoch": 1}),
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        param(
            [BEGUN, line("FCALL", f"claim{SUFFIX}", "0", RUN, "1", RANK, "12", "train", "0", "30000")],
            "FCALL claim # ID # <actor-0.0> # train #+",
            id="a rank is named by its role, ids and numbers by their kind",
        ),
        param([BEGUN], "FCALL begin_life # ID <admin> #+ ID actor-#.# JSON | epoch: int", id="a JSON's keys and types"),
        param(
            [escaped('"SET" "1:cd9d00e61290:2b166e24a" "RLQC\\x01\\x04"')], "SET #:ID:ID BYTES", id="a chunk of rows"
        ),
        param([line("UNLINK", "1:cd9d00e61290:2b166e24a", "1:cd9d00e61290:2b166e24b")], "UNLINK #:ID:ID+", id="many"),
        param([line("HGET", "p:17:groups", "3", client="lua")], "script HGET p:#:groups", id="a script's command"),
        param([line("SUBSCRIBE", "n:ref_log_probs")], "SUBSCRIBE n:ref_log_probs", id="names stay"),
    ],
)
def test_the_shape_of_a_call(lines: list[bytes], expected: str) -> None:
    assert expected in shapes(lines)


def test_what_any_client_asks_when_it_connects_is_no_call() -> None:
    assert shapes([line("AUTH", "(redacted)"), line("PING"), line("INFO", "server")]) == set()


def test_a_call_that_was_repeated_counts_once() -> None:
    committed = line("FCALL", f"commit_training{SUFFIX}", "0", RUN, "1", RANK, "5", "actor_train", "0", "0")
    again = line("FCALL", f"commit_training{SUFFIX}", "0", RUN, "1", RANK, "9", "actor_train", "1", "0")
    assert "commit_training: 2" in counts([committed, committed, again])


def test_facts_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/4-e1-264278fec4aa"
    folder.mkdir(parents=True)
    (folder / "RECORDED").touch()
    (folder / "config.json").write_text('{"hidden_size": 32}')
    (folder / "tickets.json").write_text('{"draws": [[8, 8]], "kills": {}}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1, "loss": 0.5}\n')
    (tmp_path / "latest").symlink_to("checkpoints/4-e1-264278fec4aa")
    assert facts(tmp_path) == {
        "checkpoints/#-e#-ID/RECORDED",
        "checkpoints/#-e#-ID/config.json hidden_size = 32",
        "checkpoints/#-e#-ID/tickets.json draws[][]: int",
        "checkpoints/#-e#-ID/tickets.json kills: dict",
        "metrics.jsonl step: int",
        "metrics.jsonl loss: float",
        "latest -> #-e#-ID",
    }


def test_what_some_runs_had_may_be_there_and_what_all_had_is_required() -> None:
    of = merged([{"files": {"a", "b"}}, {"files": {"a", "c"}}])["files"]
    recorded = Recorded(frozenset(of["always"]), frozenset(of["sometimes"]))
    assert differences(recorded, {"a", "b"}) == []
    assert differences(recorded, {"c", "d"}) == ["was always, and is not: a", "never was, and is: d"]
