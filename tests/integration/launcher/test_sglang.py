"""The real SGLang as a launcher's child: three processes each, any of which may be killed, and nothing of it stays.

One parent for all tests, since its import takes 14 seconds of a core; a pod of its own for each.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineProcess
from rljob_api.wire.processes import LauncherExited
from tests.integration.launcher.conftest import (
    BODIES,
    Machine,
    eventually,
    is_running,
    make_job,
    new_interpreter,
)

SGLANG: dict[str, object] = {"kind": "SGLang"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With SGLang imported, and its folders in memory, where a run has them: names of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="rljob-test-", dir="/dev/shm") as memory:
        folder = tmp_path_factory.mktemp("sglang")
        command = [BODIES, "sglang"]
        machine = Machine(folder, command, start=new_interpreter, engine=SGLANG, memory=Path(memory))
        yield machine
        machine.close()
        assert list(Path(memory).iterdir()) == []


@dataclass(frozen=True)
class Server:
    """One incarnation of an engine, with all of its processes, and files that would stay where no one removed them."""

    engine: EngineProcess
    pids: dict[str, int]
    """By what they call themselves: server, scheduler, detokenizer."""
    files: frozenset[str]


def processes_of(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group and is_running(int(entry.name)):
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def title_of(pid: int) -> str:
    title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    return next((part for part in ("scheduler", "detokenizer") if part in title), "server")


def files_of(pid: int) -> set[str]:
    """What it has mapped of shared memory, and its sockets that have names."""
    mapped = [line.split(maxsplit=5)[5:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    nodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            nodes.add(str(entry.readlink()))
    bound = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    sockets = {text[7] for text in bound if len(text) == 8 and f"socket:[{text[6]}]" in nodes}
    shared = {name for names in mapped for name in names if name.startswith("/dev/shm/")}
    return {name for name in shared | sockets if name.startswith("/") and not name.endswith(" (deleted)")}


def server(machine: Machine, pod: PodKey, other_than: str = "") -> Server:
    engine = machine.engine(pod, other_than)
    pids = {title_of(pid): pid for pid in processes_of(engine.pid)}
    assert pids.keys() == {"server", "scheduler", "detokenizer"}
    return Server(engine, pids, frozenset().union(*(files_of(pid) for pid in pids.values())))


def has_ended(server: Server) -> bool:
    return not any(is_running(pid) for pid in server.pids.values())


def all_gone(server: Server) -> bool:
    return has_ended(server) and not any(map(os.path.exists, server.files))


def report(machine: Machine, server: Server) -> str:
    """What its launcher says of its end."""

    def look() -> str | None:
        reported = (one for one in machine.coordinator.failures if one.incarnation == server.engine.incarnation)
        return next((one.message for one in reported), None)

    return eventually(f"the report of {server.engine.incarnation}", look)


def pod(replica: int) -> PodKey:
    return PodKey(role=Role.ROLLOUT, replica=replica)


@pytest.mark.long
@pytest.mark.parametrize(
    ("replica", "victim"), [pytest.param(0, "server"), pytest.param(1, "scheduler"), pytest.param(2, "detokenizer")]
)
def test_whichever_of_its_processes_is_killed_all_go_and_begin_again(
    machine: Machine, replica: int, victim: str
) -> None:
    machine.spawn(pod(replica))
    machine.coordinator.order(pod(replica))
    before = server(machine, pod(replica))
    assert before.files
    os.kill(before.pids[victim], signal.SIGKILL)
    after = server(machine, pod(replica), other_than=before.engine.incarnation)
    assert after.engine.url == before.engine.url
    assert all_gone(before)
    assert report(machine, before).startswith(f"The engine of {pod(replica)} ")
    assert machine.finish(pod(replica)).exit_code == 0
    eventually("all of the second life to be gone", lambda: all_gone(after))
    assert not (machine.memory / f"{pod(replica)}.engine.0").exists()


def test_all_of_its_processes_go_with_a_launcher_that_is_killed_and_the_next_one_finds_nothing(
    machine: Machine,
) -> None:
    launcher = machine.spawn(pod(3))
    machine.coordinator.order(pod(3))
    before = server(machine, pod(3))
    os.kill(launcher, signal.SIGKILL)
    eventually("all of its processes to be gone", lambda: has_ended(before))
    machine.expect(LauncherExited)
    machine.spawn(pod(3), restart_count=1)
    server(machine, pod(3), other_than=before.engine.incarnation)
    assert all_gone(before)
    assert machine.finish(pod(3)).exit_code == 0


def test_a_flag_that_it_does_not_know_is_reported_by_its_last_message(machine: Machine) -> None:
    machine.coordinator.job = make_job(engine={**SGLANG, "args": ["--no-such-flag"]})
    machine.spawn(pod(4))
    machine.coordinator.order(pod(4))

    def reported() -> str | None:
        return next((one.message for one in machine.coordinator.failures if one.pod == pod(4)), None)

    assert "unrecognized arguments: --no-such-flag" in eventually("a report", reported)
    machine.finish(pod(4))


def test_an_epoch_with_another_kind_replaces_the_engines(machine: Machine) -> None:
    """Also where their pods have not imported the other: it does so itself."""
    machine.coordinator.job = make_job(engine=SGLANG)
    machine.spawn(pod(5))
    machine.coordinator.order(pod(5))
    before = server(machine, pod(5))
    machine.coordinator.job = make_job(engine={"kind": "Torch"})
    machine.coordinator.order(pod(5), epoch=2)
    after = machine.engine(pod(5), other_than=before.engine.incarnation)
    assert processes_of(after.pid) == [after.pid]
    eventually("the servers of SGLang to be gone", lambda: all_gone(before))
    assert not [one for one in machine.coordinator.failures if one.pod == pod(5)]
    assert machine.finish(pod(5), epoch=2).exit_code == 0
