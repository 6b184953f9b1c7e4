"""Runs the package TransferQueue's own tests and tutorials against our adapter and lists what passes.

    make test-peer        after which the package is installed (it is in the benchmarks' lock only)

The package's files are taken from where it is installed and run as they are; `transfer_queue` leads to our adapter
(`alias/`). Servers are real, and so is Ray. Exits with 1 when an applicable case fails.
"""

# ruff: noqa: T201 -- it prints what it found

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.integration.transfer_queue.servers import Servers
from tests.peer.applicable import APPLICABLE, CASES_NOT_APPLICABLE, NOT_APPLICABLE, TUTORIALS

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_SECONDS = 900


@dataclass(frozen=True)
class Outcome:
    name: str
    state: str
    """passed, failed, skipped (by the package itself), n/a (see `applicable`)"""
    why: str = ""


def main() -> None:
    installed = Path(sysconfig.get_path("purelib"))
    if not (installed / APPLICABLE[0]).exists():
        sys.exit("tests.peer: the package TransferQueue is not installed. Run scripts/install bench.")
    with tempfile.TemporaryDirectory(prefix="rljob-peer-", ignore_cleanup_errors=True) as folder:
        outcomes = [*_run_tests(installed, Path(folder)), *_run_tutorials(installed, Path(folder))]
    outcomes += [Outcome(name, "n/a", why) for name, why in NOT_APPLICABLE.items()]
    for outcome in outcomes:
        print(f"{outcome.state:8} {outcome.name}{': ' + outcome.why if outcome.why else ''}")
    counts = {
        state: sum(outcome.state == state for outcome in outcomes) for state in ("passed", "failed", "skipped", "n/a")
    }
    print(json.dumps(counts))
    sys.exit(1 if counts["failed"] or not counts["passed"] else 0)


def _run_tests(installed: Path, folder: Path) -> list[Outcome]:
    outcomes = []
    for name in APPLICABLE:
        copied = folder / Path(name).name
        shutil.copy(installed / name, copied)
        report = folder / "report.xml"
        report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={folder}", f"--junitxml={report}"]
        code, output = _run([sys.executable, "-m", "pytest", *options, str(copied)], folder)
        if not report.exists():
            outcomes.append(Outcome(name, "failed", f"pytest ended with {code}: {output[-2000:]}"))
            continue
        outcomes += _read_report(name, report)
    return outcomes


def _read_report(name: str, report: Path) -> list[Outcome]:
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        trouble = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        state = "passed" if trouble is None else "skipped" if trouble.tag == "skipped" else "failed"
        why = "" if trouble is None else (trouble.get("message") or "").splitlines()[0][:300]
        if state == "failed" and case.get("name") in CASES_NOT_APPLICABLE:
            state, why = "n/a", CASES_NOT_APPLICABLE[str(case.get("name"))]
        outcomes.append(Outcome(f"{name}::{case.get('name')}", state, why))
    return outcomes


def _run_tutorials(installed: Path, folder: Path) -> list[Outcome]:
    outcomes = []
    for name in TUTORIALS:
        copied = folder / "tutorial" / Path(name).name
        copied.parent.mkdir(exist_ok=True)
        shutil.copy(installed / name, copied)
        code, output = _run([sys.executable, "-W", "ignore", str(copied)], folder)
        outcomes.append(Outcome(name, "passed" if code == 0 else "failed", "" if code == 0 else output[-2000:]))
    return outcomes


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    """One program on servers of its own."""
    data = Path(tempfile.mkdtemp(dir=folder))
    servers = Servers(data)
    servers.start()
    try:
        endpoints = data / "endpoints.json"
        endpoints.write_text(servers.endpoints.model_dump_json())
        path = os.pathsep.join([str(_HERE / "alias"), str(_ROOT)])
        environ = {
            **os.environ,
            "PYTHONPATH": path,
            "RLJOB_ENDPOINTS": str(endpoints),
            "OMP_NUM_THREADS": "1",
            # A machine that does other work, too, is not Ray's to judge.
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        return 124, f"it ran for more than {_SECONDS} s: {error.stdout!r}"
    finally:
        servers.stop()


if __name__ == "__main__":
    main()
