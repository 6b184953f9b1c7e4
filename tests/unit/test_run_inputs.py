"""What a role reads from outside of the run: which files, and what is said of their content."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_workers import run_inputs
from rljob_workers.run_inputs import (
    BLOCK_BYTES,
    BLOCKS,
    WHOLE_BYTES,
    Input,
    Kind,
    content_of,
    contents_of,
    files_of,
    inputs_of,
    stamp_of,
)
from tests.unit.api.manifests import changed

FUNCTION = {"function": "mine:score", "path": "/code"}


def fields(role: Role, changes: dict[str, Any]) -> dict[str, str]:
    """Field -> path of what the role reads."""
    spec = RLJobSpec.model_validate(changed(changes)["spec"])
    return {each.field: each.path for each in inputs_of(spec, role)}


@pytest.mark.parametrize(
    ("role", "changes", "expected"),
    [
        (Role.ROLLOUT, {}, {"data.prompts": "prompts.jsonl"}),
        (Role.ACTOR, {}, {}),
        (
            Role.ROLLOUT,
            {"spec.data": {"sources": [{"prompts": "/a", "weight": 1}, {"prompts": "/b", "weight": 1}]}},
            {"data.sources[0].prompts": "/a", "data.sources[1].prompts": "/b"},
        ),
        (
            Role.ROLLOUT,
            {"spec.evaluation": {"everySteps": 2, "sets": [{"name": "held", "data": {"prompts": "/h"}}]}},
            {"data.prompts": "prompts.jsonl", "evaluation.sets[0].data.prompts": "/h"},
        ),
        (
            Role.ROLLOUT,
            {"spec.model": {"path": "/model"}},
            {"data.prompts": "prompts.jsonl", "model.path (its tokenizer)": "/model"},
        ),
        (
            Role.ROLLOUT,
            {"spec.rollout.reward": {"custom": FUNCTION}},
            {"rollout.reward.custom.function": "/code", "data.prompts": "prompts.jsonl"},
        ),
        (
            Role.ROLLOUT,
            {"spec.rollout.reward": {"custom": FUNCTION}, "spec.rollout.function": FUNCTION},
            {
                "rollout.reward.custom.function and spec.rollout.function.function": "/code",
                "data.prompts": "prompts.jsonl",
            },
        ),
        (Role.ACTOR, {"spec.model": {"path": "/model"}}, {"model.path": "/model"}),
        (Role.ACTOR, {"spec.algorithm.sampleFilter": "mine:keeps"}, {"algorithm.sampleFilter": "mine"}),
        (
            Role.REFERENCE,
            {"spec.roles.reference": {"modelPath": "/teacher"}},
            {"roles.reference.modelPath": "/teacher"},
        ),
        (Role.REFERENCE, {}, {}),
    ],
    ids=[
        "prompts",
        "an actor of a made model reads nothing",
        "every source of a mixture",
        "an evaluation's prompts",
        "a tokenizer",
        "a reward's code",
        "code of one folder is one input",
        "the actor's first weights",
        "a module that is installed",
        "a teacher",
        "the policy is its own reference",
    ],
)
def test_what_a_role_reads(role: Role, changes: dict[str, Any], expected: dict[str, str]) -> None:
    assert fields(role, changes) == expected


@pytest.mark.parametrize(("given", "may_change"), [({}, False), ({"changedWeights": "Accept"}, True)])
def test_a_teachers_weights_may_change_where_that_is_asked_for(given: dict[str, str], may_change: bool) -> None:
    spec = RLJobSpec.model_validate(changed({"spec.roles.reference": {"modelPath": "/teacher", **given}})["spec"])
    (found,) = inputs_of(spec, Role.REFERENCE)
    assert found.may_change is may_change


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        (Kind.ROWS, "rows.jsonl", {"rows.jsonl"}),
        (Kind.ROWS, "part-*.parquet", {"part-0.parquet", "part-1.parquet"}),
        (Kind.ROWS, "saved", {"state.json", "data.arrow"}),
        (Kind.ROWS, "not-there.jsonl", set()),
        (Kind.MODEL, "model", {"model.safetensors", "config.json"}),
        (Kind.TOKENIZER, "model", {"tokenizer.json"}),
        (Kind.FILE, "rows.jsonl", {"rows.jsonl"}),
    ],
    ids=["a file", "a pattern", "a saved data set", "no file", "weights", "a tokenizer", "a template"],
)
def test_the_files_of_an_input(tmp_path: Path, kind: Kind, path: str, expected: set[str]) -> None:
    names = ("rows.jsonl", "part-0.parquet", "part-1.parquet", "saved/state.json", "saved/data.arrow")
    for name in (*names, "model/model.safetensors", "model/config.json", "model/tokenizer.json", "model/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert set(files_of(Input("x", str(tmp_path / path), kind))) == expected


def test_code_is_what_was_imported_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("entry_for_inputs.py", "helper_for_inputs.py", "other_for_inputs.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "entry_for_inputs.py").write_text("import helper_for_inputs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = Input("x", str(tmp_path), Kind.CODE, modules=("entry_for_inputs",))
    assert files_of(given) == {}
    __import__("entry_for_inputs")
    try:
        assert set(files_of(given)) == {"entry_for_inputs.py", "helper_for_inputs.py"}
        everywhere = Input("x", "/", Kind.CODE, modules=("entry_for_inputs",))
        assert not [name for name in files_of(everywhere) if "site-packages" in name or "rljob_workers" in name]
    finally:
        for name in ("entry_for_inputs", "helper_for_inputs"):
            del sys.modules[name]


def test_the_rows_of_a_file_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}')
    assert content_of(file, has_rows=True).rows == 2
    assert content_of(file, has_rows=False).rows is None
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), tmp_path / "rows.parquet")
    assert content_of(tmp_path / "rows.parquet", has_rows=True).rows == 3


def test_a_damaged_table_has_no_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"PAR1 and nothing else")
    assert content_of(file, has_rows=True).rows is None


def test_many_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change between the parts is not seen then, and one in a small file is."""
    size = 2 * BLOCKS * BLOCK_BYTES
    files = {name: tmp_path / name for name in ("a", "b", "small")}
    for file in files.values():
        file.write_bytes(bytes(size if file.name != "small" else 10))

    def changed_since(before: dict[str, Any]) -> list[str]:
        return [name for name, content in contents_of(files, has_rows=False).items() if content != before[name]]

    whole = contents_of(files, has_rows=False)
    with files["a"].open("r+b") as content:
        content.seek(BLOCK_BYTES)
        content.write(b"x")
    assert changed_since(whole) == ["a"]
    monkeypatch.setattr(run_inputs, "ALL_WHOLE_BYTES", 2 * size)
    parts = contents_of(files, has_rows=False)
    with files["a"].open("r+b") as content:
        content.seek(BLOCK_BYTES)
        content.write(b"y")
    files["small"].write_bytes(b"x" * 10)
    assert changed_since(parts) == ["small"]


def test_files_that_are_more_than_before_are_compared_by_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is added, so that they are read in parts now; and is gone again."""
    size = 2 * BLOCKS * BLOCK_BYTES
    files = {name: tmp_path / name for name in ("a", "b", "small")}
    for name, file in files.items():
        file.write_bytes(bytes(size if name != "small" else 10))
    monkeypatch.setattr(run_inputs, "ALL_WHOLE_BYTES", 2 * size + 10)
    whole = contents_of(files, has_rows=False)
    (tmp_path / "c").write_bytes(bytes(size))
    more = contents_of({**files, "c": tmp_path / "c"}, has_rows=False)
    assert whole["a"].digest != more["a"].digest
    assert all(whole[name].has_bytes_of(more[name]) and more[name].has_bytes_of(whole[name]) for name in files)
    with files["a"].open("r+b") as content:
        content.write(b"x")
    again = contents_of(files, has_rows=False)
    assert [name for name in files if not more[name].has_bytes_of(again[name])] == ["a"]


@pytest.mark.parametrize("at", [0, WHOLE_BYTES + 4 * BLOCK_BYTES - 1], ids=["its first byte", "its last byte"])
def test_of_a_large_file_both_ends_count_and_little_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as content:
        content.truncate(WHOLE_BYTES + 4 * BLOCK_BYTES)
    before = content_of(file, has_rows=False)
    with file.open("r+b") as content:
        content.seek(at)
        content.write(b"x")
    after = content_of(file, has_rows=False)
    assert before.num_bytes == after.num_bytes
    assert before.digest != after.digest
    monkeypatch.setattr(run_inputs, "WHOLE_BYTES", 0)
    assert content_of(file, has_rows=False) == after


def test_a_stamp_is_of_names_sizes_and_times(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    first = stamp_of({"a": file})
    assert stamp_of({"a": file}) == first
    assert stamp_of({"b": file}) != first
    os.utime(file, ns=(1, 1))
    assert stamp_of({"a": file}) != first
