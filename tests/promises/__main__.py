"""Breaks promises of the product, one after the other, and shows that the tests notice each.

    python -m tests.promises                             all
    python -m tests.promises restart-table lost-replies  these
    python -m tests.promises --output json

The named tests of a promise pass with the product as it is, and each fails by an assertion with the promise broken.
Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.promises.patch import PatchLost, Promise
from tests.promises.running import Outcome, run
from tests.promises.table import PROMISES


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the tests keep a promise."""

    promise: str
    file: str
    tests: tuple[str, ...]
    seconds: float
    """Under the patch, with the start of pytest."""
    assertion: str
    """The first that failed."""
    problem: str
    """Why the promise is not kept by its tests; "" where it is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    by_name = {promise.name: promise for promise in PROMISES}
    parser = argparse.ArgumentParser(
        prog="tests.promises", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(by_name)}")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in by_name]:
        parser.error(f"NAME: there is no promise {unknown[0]}. Choose one of {', '.join(by_name)}.")
    chosen = [by_name[name] for name in options.names] or list(PROMISES)
    tests = list(dict.fromkeys(test for promise in chosen for test in promise.tests))
    _show(f"{len(tests)} tests of {len(chosen)} promises, with the product as it is")
    whole = run(tests, None)
    verdicts = []
    for number, promise in enumerate(chosen, 1):
        verdict = _verdict(promise, whole)
        verdicts.append(verdict)
        _show(f"{number:2d} of {len(chosen)}  {_line(verdict)}")
    if options.output == "json":
        sys.stdout.write(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
    problems = [verdict for verdict in verdicts if verdict.problem]
    _show(f"{len(verdicts) - len(problems)} of {len(verdicts)} broken promises are noticed")
    return 1 if problems else 0


def _verdict(promise: Promise, whole: Outcome) -> Verdict:
    """`whole`: the tests of all promises, none broken."""
    tests, file = promise.tests, str(promise.file)
    if problem := whole.unproven(tests):
        return Verdict(promise.name, file, tests, 0.0, "", problem)
    try:
        outcome = run(tests, promise)
    except PatchLost as lost:
        return Verdict(promise.name, file, tests, 0.0, "", str(lost))
    problem = outcome.unnoticed(tests)
    return Verdict(promise.name, file, tests, round(outcome.seconds, 1), outcome.assertion, problem)


def _line(verdict: Verdict) -> str:
    state = f"NOT NOTICED: {verdict.problem}" if verdict.problem else f"noticed: {verdict.assertion}"
    return f"{verdict.promise:32} {verdict.seconds:6.1f} s  {state}"


def _show(line: str) -> None:
    """Beside the result, since it is for people who wait."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
