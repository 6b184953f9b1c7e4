"""The engine: outlives ranks and epochs, keeps its port, and comes back by itself when it dies or hangs.

One that is forked and one that is a program of its own pass the same tests.
"""

import functools
import json
import operator
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_api.wire.failures import FailureKind
from tests.integration.launcher.conftest import BODIES, ROLLOUT, Machine, eventually, is_running

SILENCE_SECONDS = 3
"""How long an engine may be silent: longer than a busy machine lets a process wait that has done nothing wrong."""


def who_answers(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode()).split()


@dataclass(frozen=True)
class Kind:
    """A kind of engine, as these tests ask it."""

    command: str
    path: str
    """Asked by its launcher."""
    who: Callable[[Machine, str], list[str]]
    """Incarnation and process id of the server that answers at a URL."""


def asked_once(machine: Machine, url: str) -> list[str]:
    """Not refused while it is away: the connection waits in the backlog of the launcher's socket."""
    del machine
    return who_answers(url)[:2]


def asked_until_it_answers(machine: Machine, url: str) -> list[str]:
    """A program's port refuses until it is bound; who it is, its launcher has written down."""

    def look() -> list[str] | None:
        before = identity(machine)
        with suppress(OSError):
            (pid, _) = who_answers(url)
            return [str(before["incarnation"]), pid] if before == identity(machine) else None
        return None

    return eventually("an answer", look)


def identity(machine: Machine) -> dict[str, object]:
    found = json.loads((machine.run_dir / "engines/rollout-0/engine-0.json").read_text())
    assert isinstance(found, dict)
    return found


FORKED = Kind("small", "/health", asked_once)
PROGRAM = Kind("exec:0", "/alive", asked_until_it_answers)


@pytest.fixture(params=[pytest.param(FORKED, id="forked"), pytest.param(PROGRAM, id="program")])
def kind(request: pytest.FixtureRequest) -> Kind:
    assert isinstance(request.param, Kind)
    return request.param


@pytest.fixture
def machine(tmp_path: Path, kind: Kind, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A parent whose engines are of this kind."""
    machine = Machine(tmp_path, [BODIES, kind.command], getattr(request, "param", 30))
    yield machine
    machine.close()


def test_the_engine_outlives_its_rank_and_a_new_epoch(machine: Machine, kind: Kind) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    rank, engine = machine.rank(ROLLOUT), machine.engine(ROLLOUT)
    os.kill(rank.pid, signal.SIGKILL)
    machine.failure()
    machine.coordinator.order(ROLLOUT, generation=1)
    machine.rank(ROLLOUT, generation=1)
    machine.coordinator.order(ROLLOUT, epoch=2)
    machine.rank(ROLLOUT, epoch=2)
    assert machine.engine(ROLLOUT) == engine
    assert kind.who(machine, engine.url) == [engine.incarnation, str(engine.pid)]
    assert machine.finish(ROLLOUT, epoch=2).exit_code == 0
    assert not is_running(engine.pid)


def test_a_killed_engine_comes_back_behind_the_same_port_and_its_rank_stays(machine: Machine, kind: Kind) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    rank, engine = machine.rank(ROLLOUT), machine.engine(ROLLOUT)
    os.kill(engine.pid, signal.SIGKILL)
    eventually("its end", lambda: not is_running(engine.pid))
    assert kind.who(machine, engine.url)[0] != engine.incarnation
    second = machine.engine(ROLLOUT, other_than=engine.incarnation)
    assert second.url == engine.url
    failure = machine.failure()
    assert failure.kind is FailureKind.ENGINE_EXITED
    assert failure.id == f"uid-rollout-0/0/{engine.incarnation}"
    assert (failure.rank, failure.exit_code) == (None, -9)
    assert failure.message.startswith("The engine of rollout-0 was killed by SIGKILL")
    assert is_running(rank.pid)


def test_an_engine_that_dies_again_and_again_comes_back_again(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    for count in range(1, 5):
        os.kill(engine.pid, signal.SIGKILL)
        engine = machine.engine(ROLLOUT, other_than=engine.incarnation)
        machine.failure(count)
    assert len({failure.id for failure in machine.coordinator.failures}) == 4


@pytest.mark.parametrize("machine", [SILENCE_SECONDS], indirect=True)
def test_a_stopped_engine_is_found_named_and_replaced(machine: Machine, kind: Kind) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    os.kill(engine.pid, signal.SIGSTOP)
    failure = machine.failure()
    assert failure.kind is FailureKind.ENGINE_EXITED
    assert f"it has not answered {engine.url}{kind.path} for " in failure.message
    machine.engine(ROLLOUT, other_than=engine.incarnation)
    eventually("the stopped engine to be gone", lambda: not is_running(engine.pid))


@pytest.mark.parametrize("machine", [SILENCE_SECONDS], indirect=True)
def test_a_launcher_that_was_stopped_itself_does_not_blame_its_engine(machine: Machine) -> None:
    launcher = machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    for _ in range(2):
        os.kill(launcher, signal.SIGSTOP)
        eventually(
            "the launcher to be stopped for longer than the engine may be silent", Stopwatch(SILENCE_SECONDS + 0.5)
        )
        os.kill(launcher, signal.SIGCONT)
        before = machine.coordinator.state(ROLLOUT)
        machine.poll(ROLLOUT, "the next poll", functools.partial(operator.is_not, before))
    assert machine.engine(ROLLOUT) == engine
    assert machine.coordinator.failures == []


class Stopwatch:
    """True once the given time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __call__(self) -> bool:
        return time.monotonic() >= self._end
