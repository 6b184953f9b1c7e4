"""Who ends an engine that does nothing: a process beside it, and only that incarnation of it which was started last."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rljob_workers.engines.incarnation import EngineIdentity, end_engine, read_reason, write_identity

END_IT = """
import sys
from pathlib import Path
from rljob_api.machine.process_stat import STATE, stat_of
from rljob_workers.engines.incarnation import end_engine, read_identity

file = Path(sys.argv[1])
ended = end_engine(file, 'it lies')
print(ended, stat_of(read_identity(file).pid)[STATE])
"""


DEAF = "trap '' TERM; while true; do sleep 600; done"


@pytest.fixture(params=[["sleep", "600"], ["sh", "-c", DEAF]], ids=["asleep", "deaf to SIGTERM"])
def server(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(request.param, start_new_session=True) as process:
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def ended_by_a_sibling(identity: Path) -> str:
    """What a rank is answered whose parent is that of the server, as a launcher is of both; the server's state then."""
    done = subprocess.run([sys.executable, "-c", END_IT, str(identity)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_sibling_ends_the_incarnation_that_was_started_last(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "engine-0.json"
    write_identity(file, EngineIdentity("0123456789ab", server.pid, "http://127.0.0.1:1"))
    assert ended_by_a_sibling(file) == "0123456789ab Z", "it waits until the process has ended"
    assert server.wait(240) == -9
    assert read_reason(file, "0123456789ab") == "it lies"
    assert read_reason(file, "another life") is None


def test_a_number_that_is_another_process_by_now_is_left_alone(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "engine-0.json"
    write_identity(file, EngineIdentity("0123456789ab", server.pid, "http://127.0.0.1:1"))
    assert end_engine(file, "it lies") is None, "it is this process's child, and not that of its parent"
    assert server.poll() is None


def test_an_engine_that_was_not_started_or_has_ended_is_nothing_to_end(tmp_path: Path) -> None:
    file = tmp_path / "engine-0.json"
    assert end_engine(file, "it lies") is None
    gone = subprocess.Popen(["true"])
    gone.wait(240)
    write_identity(file, EngineIdentity("0123456789ab", gone.pid, "http://127.0.0.1:1"))
    assert end_engine(file, "it lies") is None
