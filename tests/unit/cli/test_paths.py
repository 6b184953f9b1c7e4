"""Paths that the file system refuses, in every field that names one: a sentence each, and exit code 64."""

from __future__ import annotations

import errno
import os
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.base import ApiModel
from rljob_api.manifest import job_of
from rljob_api.rule import WITHOUT_RULES
from rljob_api.spec import RLJob
from rljob_cli.checks.manifests import examine
from rljob_cli.checks.paths import KINDS, PathKind, named_paths, path_findings, with_nothing_at
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

FUNCTION = {"function": "m:f", "path": "PATH"}
SOURCES = {"sources": [{"prompts": "PATH"}, {"prompts": "PATH"}], "prompts": "PATH", "chatTemplate": {"file": "PATH"}}
EVERYWHERE: dict[str, Any] = {
    "spec.model.path": "PATH",
    "spec.model.tokenizerPath": "PATH",
    "spec.data": SOURCES,
    "spec.algorithm": {"path": "PATH"},
    "spec.checkpoint.path": "PATH",
    "spec.evaluation": {"everySteps": 1, "sets": [{"name": "a", "data": SOURCES}]},
    "spec.rollout.function": FUNCTION,
    "spec.rollout.curriculum": FUNCTION,
    "spec.rollout.dynamicSampling": {"filter": "m:f", "path": "PATH"},
    "spec.rollout.reward": {"custom": FUNCTION, "sum": [{"name": "a", "custom": FUNCTION}]},
    "spec.roles.critic": {"modelPath": "PATH"},
    "spec.roles.reference": {"modelPath": "PATH"},
    "spec.roles.rollout": {"engine": {"python": "PATH"}},
}
"""A job that names a path wherever it can; no rule between fields holds for it."""


def job(path: str) -> RLJob:
    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(inner) for key, inner in value.items()}
        return [put(inner) for inner in value] if isinstance(value, list) else path if value == "PATH" else value

    return job_of(put(changed(EVERYWHERE)), WITHOUT_RULES)


def fields_of(model: type[ApiModel], place: str = "") -> Iterator[str]:
    """Fields of the models whose name is that of a path."""
    for name, field in model.model_fields.items():
        here = f"{place}.{field.alias or name}".removeprefix(".")
        if name in KINDS or name.endswith("path"):
            yield here
        inner, seen = [field.annotation], []
        while inner:
            one = inner.pop()
            inner += typing.get_args(one)
            seen.append(one)
        for one in seen:
            if isinstance(one, type) and issubclass(one, ApiModel):
                yield from fields_of(one, here)


NAMED = list(named_paths(job("PATH")))


def test_every_field_of_the_models_that_is_a_path_is_known_as_one() -> None:
    found = {".".join(str(step) for step in named.place if isinstance(step, str)) for named in NAMED}
    assert found == set(fields_of(RLJob))
    assert len(found) == 18


def a_loop(folder: Path) -> str:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return "a"


def below_a_loop(folder: Path) -> str:
    return f"{a_loop(folder)}/train"


def below_a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return "file/train"


def a_pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def locked(folder: Path) -> str:
    (folder / "locked").mkdir(mode=0o000)
    return "locked"


def below_locked(folder: Path) -> str:
    return f"{locked(folder)}/train"


CONVERTED = "Save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8."
READABLE = {kind: f"Give {kind.value} that can." for kind in PathKind}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(a_loop, os.strerror(errno.ELOOP), id="a loop of links"),
        pytest.param(below_a_loop, os.strerror(errno.ELOOP), id="below a loop of links"),
        pytest.param(lambda _: "n" * 300, os.strerror(errno.ENAMETOOLONG), id="a name that is too long"),
        pytest.param(below_a_file, os.strerror(errno.ENOTDIR), id="below a file"),
        pytest.param(below_locked, os.strerror(errno.EACCES), id="below a folder that may not be entered"),
        pytest.param(locked, os.strerror(errno.EACCES), id="a folder that may not be read"),
    ],
)
def test_what_the_file_system_refuses(make: Callable[[Path], str], reason: str, users_folder: Path) -> None:
    named = make(users_folder)
    found = path_findings(job(named), users_folder, is_elsewhere=False)
    refused = {
        one.place: f"{one.field}: {users_folder}/{named} cannot be read ({reason}). {READABLE[one.kind]}"
        for one in NAMED
        if one.kind is not PathKind.ANY
    }
    if make is locked:
        refused |= {
            one.place: f"{one.field}: {users_folder}/{named} is a folder. Give a file."
            for one in NAMED
            if one.kind is PathKind.FILE
        }
    assert {place: finding.text for place, finding in found.items()} == refused


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """Root may read everything: where the test is root's, it goes on as another user in a folder of theirs."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        Path(name).chmod(0o777)
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_pipe_is_no_file_of_rows_and_no_template(tmp_path: Path) -> None:
    found = path_findings(job(a_pipe(tmp_path)), tmp_path, is_elsewhere=False)
    for named in NAMED:
        expected = (
            f"{named.field}: {tmp_path}/pipe is no file but a pipe, a socket or a device. Give {named.kind.value}."
        )
        assert (found[named.place].text if named.place in found else None) == (
            None if named.kind is PathKind.ANY else expected
        )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("a\0b", "'a\\x00b' has a NUL in it, which no path has. Correct it.", id="a NUL"),
        pytest.param(
            "~not-a-user-here/a",
            "'~not-a-user-here/a' begins with the home of a user who is not known here. Write it out, or as"
            " ./~not-a-user-here/a for a folder.",
            id="the home of a user who is not known",
        ),
    ],
)
def test_a_text_that_is_no_path(text: str, sentence: str, tmp_path: Path) -> None:
    for is_elsewhere in (False, True):
        found = path_findings(job(text), tmp_path, is_elsewhere=is_elsewhere)
        assert {place: finding.text for place, finding in found.items()} == {
            named.place: f"{named.field}: {sentence}" for named in NAMED
        }


def test_what_is_not_there_is_left_to_the_check_of_its_field_but_for_a_template(tmp_path: Path) -> None:
    reason = os.strerror(errno.ENOENT)
    for text in ("nothing/here", "nothing/here-*"):
        found = path_findings(job(text), tmp_path, is_elsewhere=False)
        assert {place: finding.text for place, finding in found.items()} == {
            one.place: f"{one.field}: {tmp_path}/{text} cannot be read ({reason}). {READABLE[one.kind]}"
            for one in NAMED
            if one.kind is PathKind.FILE
        }


def test_a_template_is_text_in_utf_8(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}", encoding="utf-16")
    places = [named for named in NAMED if named.kind is PathKind.FILE]
    found = path_findings(job("t.jinja"), tmp_path, is_elsewhere=False)
    for named in places:
        expected = f"{named.field}: {tmp_path}/t.jinja is UTF-16 or UTF-32. {CONVERTED}"
        assert found[named.place].text == expected
    (tmp_path / "t.jinja").write_text("{{ messages }}", encoding="utf-8-sig")
    found = path_findings(job("t.jinja"), tmp_path, is_elsewhere=False)
    assert not {named.place for named in places} & set(found)


def test_a_match_of_a_pattern_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "train-0").symlink_to("train-0")
    found = path_findings(job("train-*"), tmp_path, is_elsewhere=False)
    reason = os.strerror(errno.ELOOP)
    for named in NAMED:
        if named.kind is PathKind.ROWS:
            expected = f"{named.field}: {tmp_path}/train-0 cannot be read ({reason}). {READABLE[named.kind]}"
            assert found[named.place].text == expected


def test_refused_paths_name_nothing_and_the_rest_stays(tmp_path: Path) -> None:
    given = job("a")
    places = [named.place for named in NAMED]
    left = with_nothing_at(given, places[:3])
    assert [named.text == "a" for named in named_paths(left)] == [False] * 3 + [True] * (len(places) - 3)
    assert with_nothing_at(given, []) == given


@pytest.mark.parametrize("command", [["validate"], ["validate", "--static"], ["run", "--dry-run"], ["reward"]])
def test_a_loop_is_a_sentence_of_every_command_beside_the_others(command: list[str], tmp_path: Path) -> None:
    a_loop(tmp_path)
    manifest = changed({"spec.data.prompts": "a", "spec.rollout.batchSize": 0})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    done = CliRunner().invoke(cli, [command[0], str(tmp_path / "job.yaml"), *command[1:]])
    assert done.exit_code == 64, done.output
    sentences = [line.partition(": ")[2].split(": ")[0] for line in done.output.strip().splitlines()]
    assert sentences == ["spec.rollout.batchSize", "spec.data.prompts"]


@pytest.mark.parametrize("text", ["a", "a/b", "n" * 300, "~not-a-user-here/a", "a\0b"])
def test_a_manifest_is_rendered_whatever_its_paths_name(text: str, tmp_path: Path) -> None:
    a_loop(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"spec.model": {"path": text}})))
    done = CliRunner().invoke(cli, ["render", str(tmp_path / "job.yaml")])
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.output)["spec"]["model"]["path"] == text


def test_a_file_that_vanishes_between_two_looks_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({})))

    def gone(*_: object, **__: object) -> None:
        (tmp_path / "vanished").read_bytes()

    monkeypatch.setattr("rljob_cli.checks.manifests.prompt_findings", gone)
    with pytest.raises(ValueError, match=r"vanished cannot be read any more \(No such file or directory\)\. Put it"):
        examine(tmp_path / "job.yaml")
