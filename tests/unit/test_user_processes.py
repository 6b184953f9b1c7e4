"""A process that runs a user's code and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOM = """
import os, signal, subprocess, sys, time
from rljob_workers.user_processes import run_and_end_all
def work():
    {code}
run_and_end_all(work)
"""

HELPERS = (
    "for alone in (False, True):\n"
    "        helper = subprocess.Popen(['sleep', '600'], start_new_session=alone)\n"
    "        print(helper.pid, flush=True)\n    "
)
"""One in the group of the process, one in a session of its own."""


def run(code: str, *starter: str) -> subprocess.Popen[str]:
    command = [*starter, sys.executable, "-c", ROOM.format(code=code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def is_there(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def pids() -> Iterator[list[int]]:
    found: list[int] = []
    yield found
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("pass", 0, id="at its end"),
        pytest.param("sys.exit(3)", 3, id="by its exit code"),
        pytest.param("1 / 0", 1, id="by an exception"),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, id="by a signal"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, id="by SIGKILL"),
    ],
)
def test_helpers_end_with_the_work_whose_end_is_the_processs(end: str, code: int, pids: list[int]) -> None:
    process = run(HELPERS + end)
    output, _ = process.communicate(timeout=60)
    pids += [int(line) for line in output.split()]
    assert process.returncode == code
    assert len(pids) == 2
    assert not any(map(is_there, pids))


def test_semaphores_of_a_process_that_is_killed_with_its_group_are_unlinked() -> None:
    """As a rank's process is at its end."""
    code = (
        "import multiprocessing\n"
        "from rljob_workers.user_processes import begin_from_a_server\n"
        "begin_from_a_server()\n"
        "lock = multiprocessing.Lock()\n"
        "print(lock._semlock.name, flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        file = Path(f"/dev/shm/sem.{process.stdout.readline().strip().removeprefix('/')}")
        assert file.exists()
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not file.exists()


@pytest.mark.parametrize(
    ("starter", "number", "code"),
    [
        pytest.param((), signal.SIGTERM, 1, id="SIGTERM"),
        pytest.param(("sh", "-c", '"$@" & wait', "sh"), signal.SIGKILL, -signal.SIGKILL, id="the starter's death"),
    ],
)
def test_work_and_helpers_end_with(starter: tuple[str, ...], number: int, code: int, pids: list[int]) -> None:
    with run(HELPERS + "time.sleep(600)", *starter) as process:
        assert process.stdout is not None
        pids += [int(process.stdout.readline()) for _ in range(2)]
        assert all(map(is_there, pids))
        process.send_signal(number)
        assert process.wait(60) == code
    deadline = time.monotonic() + 60
    while any(map(is_there, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_there, pids))
