"""Each patch that breaks a promise still applies once, and the tests that must notice it are there."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.promises.__main__ import main
from tests.promises.patch import PatchLost, Promise, broken
from tests.promises.running import Case, Outcome, State
from tests.promises.table import PROMISES

ROOT = Path(__file__).parents[2]
ALL = [pytest.param(promise, id=promise.name) for promise in PROMISES]


@pytest.mark.parametrize("promise", ALL)
def test_a_promise_can_be_broken(promise: Promise) -> None:
    text = broken(promise, ROOT)
    assert text != (ROOT / promise.file).read_text()
    if promise.file.suffix == ".py":
        ast.parse(text)


@pytest.mark.parametrize("promise", ALL)
def test_the_tests_of_a_promise_are_there(promise: Promise) -> None:
    assert promise.tests
    for test in promise.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_there_are_twenty_and_each_has_a_name_and_a_sentence_of_its_own() -> None:
    assert len(PROMISES) >= 20
    assert len({promise.name for promise in PROMISES}) == len(PROMISES)
    assert len({promise.sentence for promise in PROMISES}) == len(PROMISES)


LATE = Promise(
    name="late",
    sentence="A late call is refused.",
    where="rljob_api.calls:Calls.take",
    old="if late:",
    new="if False:",
    tests=("tests/unit/test_calls.py::test_late",),
)
SOURCE = """\
def take(late):
    if late:
        return


class Calls:
    def take(self, late):
        if late:
            raise ValueError
"""


def test_only_the_named_function_is_patched() -> None:
    assert LATE.file == Path("crds/rljob_api/calls.py")
    head, _, tail = SOURCE.rpartition("if late:")
    assert LATE.patched(SOURCE) == f"{head}if False:{tail}"
    assert replace(LATE, where="rljob_api/calls.lua").file == Path("crds/rljob_api/calls.lua")


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        pytest.param(
            replace(LATE, where="rljob_api.calls:Calls.put"),
            "promise late: crds/rljob_api/calls.py has no Calls.put. Move the patch in tests/promises along",
            id="no such function",
        ),
        pytest.param(
            replace(LATE, old="if early:"),
            "promise late: Calls.take in crds/rljob_api/calls.py has this 0 times, and must have it once: 'if early:'",
            id="nowhere",
        ),
        pytest.param(
            replace(LATE, where="rljob_api/calls.lua"),
            "promise late: the file in crds/rljob_api/calls.lua has this 2 times, and must have it once: 'if late:'",
            id="twice",
        ),
    ],
)
def test_a_patch_whose_code_has_moved_names_promise_and_file(promise: Promise, sentence: str) -> None:
    with pytest.raises(PatchLost) as lost:
        promise.patched(SOURCE)
    assert str(lost.value).startswith(sentence)


def test_a_patch_of_a_file_that_is_gone_names_it(tmp_path: Path) -> None:
    with pytest.raises(PatchLost, match=r"promise late: there is no file crds/rljob_api/calls\.py\."):
        broken(LATE, tmp_path)


T, U = "tests/unit/test_calls.py::test_late", "tests/unit/test_calls.py::test_early"
RED, GREEN = Case(T, State.FAILED, "assert 1 == 2"), Case(T, State.PASSED)


def ended(exit_code: int, *cases: Case) -> Outcome:
    return Outcome(exit_code, cases, 1.0, "collected\n2 failed in 1 s\n")


@pytest.mark.parametrize(
    ("outcome", "tests", "problem"),
    [
        pytest.param(ended(1, GREEN, RED), (T,), "", id="some case of it fails"),
        pytest.param(ended(0, GREEN), (T,), f"{T} does not fail", id="none does"),
        pytest.param(ended(1, RED), (T, U), f"{U} does not fail", id="one of two tests does not"),
        pytest.param(
            ended(1, RED, Case(T, State.ERROR, "NameError: late")),
            (T,),
            f"{T} is in error, and not failed by an assertion: NameError: late",
            id="what is patched does not work at all",
        ),
        pytest.param(ended(2), (T,), f"{T} does not fail", id="nothing was collected"),
        pytest.param(ended(2, RED), (T,), "pytest ended with exit code 2: 2 failed in 1 s", id="it was interrupted"),
    ],
)
def test_a_broken_promise_is_noticed_by_a_failed_assertion_of_each_test(
    outcome: Outcome, tests: tuple[str, ...], problem: str
) -> None:
    assert outcome.unnoticed(tests) == problem


def test_a_promise_that_does_not_hold_is_reported() -> None:
    assert ended(0, GREEN).unproven((T,)) == ""
    assert ended(1, RED).unproven((T,)) == f"{T} is failed without the patch: assert 1 == 2"
    assert ended(0, GREEN).unproven((U,)) == f"{U} was not run: 2 failed in 1 s"


def test_a_promise_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["restart-tables"])
    assert "NAME: there is no promise restart-tables. Choose one of" in capsys.readouterr().err
