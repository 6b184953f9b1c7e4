"""A forked program is as a new one: it has what it was given, and nothing of the programs before it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.integration.preloaded.client import Forked, fork_program
from tests.integration.preloaded.image import MARK

SECONDS = 120
STATEMENT = """
import json, os, random, signal, sys, threading
held = {int(name): os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
print(json.dumps({
    "arguments": sys.argv[1:],
    "given": os.environ.get("GIVEN"),
    "held": sorted(path for number, path in held.items() if number > 2 and os.path.exists(path)),
    "threads": threading.active_count(),
    "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "child": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
    "chance": random.random(),
    "parent": os.getppid(),
    "left": getattr(json, "left", None),
}))
json.left = "behind"
os.environ["GIVEN"] = "left behind"
"""


def fork(
    folder: Path,
    text: str,
    *arguments: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    pass_fds: Sequence[int] = (),
) -> Forked:
    program = folder / "program.py"
    program.write_text(text)
    with (folder / "output.txt").open("wb") as output:
        return fork_program(str(program), arguments, environment=environment, output=output, pass_fds=pass_fds)


def stated(folder: Path) -> str:
    return (folder / "output.txt").read_text()


def test_it_has_what_it_was_given_and_nothing_of_those_before(tmp_path: Path) -> None:
    with (tmp_path / "passed").open("wb") as passed:
        assert (
            fork(tmp_path, STATEMENT, "a", "b", pass_fds=[passed.fileno()], environment={"GIVEN": "x"}).wait(SECONDS)
            == 0
        )
        first = json.loads(stated(tmp_path))
    assert fork(tmp_path, STATEMENT).wait(SECONDS) == 0
    second = json.loads(stated(tmp_path))
    assert (first["arguments"], first["given"], first["held"]) == (["a", "b"], "x", [str(tmp_path / "passed")])
    assert (second["arguments"], second["given"], second["held"], second["left"]) == ([], None, [], None)
    for one in (first, second):
        assert (one["threads"], one["interrupts"], one["child"]) == (1, True, True)
    assert first["chance"] != second["chance"]


def test_it_ends_as_a_program_ends(tmp_path: Path) -> None:
    ends = {
        "pass": 0,
        "import sys\nsys.exit(3)": 3,
        "import sys\nsys.exit('a word')": 1,
        "raise ValueError('a word')": 1,
        "import os\nos._exit(75)": 75,
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": -9,
    }
    assert {text: fork(tmp_path, text).wait(SECONDS) for text in ends} == ends
    assert fork(tmp_path, "import sys\nsys.exit('a word')").wait(SECONDS) == 1
    assert stated(tmp_path) == "a word\n"


def test_failpoints_are_armed_for_the_one_that_is_given_them(tmp_path: Path) -> None:
    text = "from rljob_api.failpoints import failpoint\nfailpoint('here')"
    armed = {"RLJOB_FAILPOINTS": "here=1", "RLJOB_FAILPOINTS_DIR": str(tmp_path)}
    assert fork(tmp_path, text, environment=armed).wait(SECONDS) == -signal.SIGKILL
    assert fork(tmp_path, text).wait(SECONDS) == 0


def test_it_can_be_signalled_and_is_found_by_its_mark(tmp_path: Path) -> None:
    one, other = (fork(tmp_path, "import time\ntime.sleep(1e6)", environment={MARK: digit * 32}) for digit in "12")
    for process, digit in ((one, "1"), (other, "2")):
        deadline = time.monotonic() + SECONDS
        while f"{MARK}={digit * 32}".encode() not in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
            assert time.monotonic() < deadline
        assert process.poll() is None
        process.kill()
        assert process.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.long
def test_it_dies_with_the_tests_that_asked_for_it(tmp_path: Path) -> None:
    asking = (
        "import os, sys, time\n"
        "from tests.integration.preloaded.client import fork_program\n"
        "forked = fork_program(sys.argv[1], [], output=open(os.devnull, 'wb'))\n"
        "print(forked.pid, flush=True)\n"
        "time.sleep(1e6)\n"
    )
    sleeps = tmp_path / "sleeps.py"
    sleeps.write_text("import time\ntime.sleep(1e6)")
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", asking, str(sleeps)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stdout=-1
    ) as asker:
        assert asker.stdout is not None
        pid = int(asker.stdout.readline())
        asker.kill()
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline, "it outlives the tests"
        time.sleep(0.01)
