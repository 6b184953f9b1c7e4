"""Tests against a copy of the product's packages, in which at most one promise is broken.

The copy stands before the installed packages on PYTHONPATH, so that the tests, the files beside them and every process
that they start import it; the working tree stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.promises.patch import SOURCES, Promise, broken

ROOT = Path(__file__).parents[2]

_ASSERTED = ("AssertionError", "assert ", "Failed: DID NOT RAISE", 'failed on teardown with "AssertionError')
"""How the message of a test begins whose assertion failed; the last where a fixture has looked for what is broken."""


class State(Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    """An assertion ended it."""
    ERROR = "in error"
    """Anything else ended it: what was patched does not work at all."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a test, as pytest ended it."""

    test: str
    """Its test as the table names it, without the case's parameters."""
    state: State
    message: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run of pytest over some tests."""

    exit_code: int
    cases: tuple[Case, ...]
    seconds: float
    output: str

    def unproven(self, tests: Collection[str]) -> str:
        """Why these tests do not hold of the product as it is; "" where they do."""
        run = {case.test for case in self.cases}
        if missing := [test for test in tests if test not in run]:
            return f"{missing[0]} was not run: {self._end}"
        bad = next((case for case in self.cases if case.test in tests and case.state is not State.PASSED), None)
        return "" if bad is None else f"{bad.test} is {bad.state.value} without the patch: {bad.message}"

    def unnoticed(self, tests: Collection[str]) -> str:
        """Why these tests do not show that the promise is broken; "" where each fails by an assertion."""
        bad = next((case for case in self.cases if case.state in (State.ERROR, State.SKIPPED)), None)
        if bad is not None:
            return f"{bad.test} is {bad.state.value}, and not failed by an assertion: {bad.message}"
        red = {case.test for case in self.cases if case.state is State.FAILED}
        if green := [test for test in tests if test not in red]:
            return f"{green[0]} does not fail"
        return "" if self.exit_code == _TESTS_FAILED else f"pytest ended with exit code {self.exit_code}: {self._end}"

    @property
    def assertion(self) -> str:
        """The first that failed."""
        return next((case.message for case in self.cases if case.state is State.FAILED), "")

    @property
    def _end(self) -> str:
        return _line(self.output.strip().rpartition("\n")[2])


_TESTS_FAILED = 1
"""Exit code of pytest where tests failed, and nothing but tests."""


@contextmanager
def copied(promise: Promise | None) -> Iterator[Path]:
    """A folder with the packages, and in them this promise broken."""
    with tempfile.TemporaryDirectory(prefix="rljob-promise-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for package, source in SOURCES.items():
            shutil.copytree(ROOT / source / package, folder / source / package)
        if promise is not None:
            text = broken(promise, ROOT)
            (folder / promise.file).write_text(text)
        yield folder


def run(tests: Collection[str], promise: Promise | None) -> Outcome:
    """Runs tests, those that take long too, with the promise broken; None: with the product as it is."""
    with copied(promise) as folder:
        report = folder / "report.xml"
        path = os.pathsep.join(str(folder / source) for source in SOURCES.values())
        environment = {**os.environ, "PYTHONPATH": path, "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
        options = ["-q", "-m", "", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        cases = tuple(_cases(report)) if report.exists() else ()
        return Outcome(done.returncode, cases, time.monotonic() - began, done.stdout)


def _cases(report: Path) -> Iterator[Case]:
    for case in ElementTree.parse(report).iter("testcase"):
        test = _test_of(case.get("classname", ""), case.get("name", ""))
        bad = next((found for name in ("failure", "error", "skipped") if (found := case.find(name)) is not None), None)
        if bad is None:
            yield Case(test, State.PASSED)
            continue
        message = bad.get("message", "")
        state = (
            State.FAILED if message.startswith(_ASSERTED) else State.SKIPPED if bad.tag == "skipped" else State.ERROR
        )
        yield Case(test, state, _line(message))


def _test_of(place: str, name: str) -> str:
    """`tests.unit.test_x` and `test_y[case]` as the table names the test."""
    parts = place.split(".")
    module = next((n for n, part in enumerate(parts, 1) if part.startswith("test_")), len(parts))
    return "::".join([f"{'/'.join(parts[:module])}.py", *parts[module:], name.partition("[")[0]])


def _line(message: str) -> str:
    return message.partition("\n")[0][:200]
