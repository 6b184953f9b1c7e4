"""What is particular to an engine that is a program of its own: a slow start, hanging and dying on demand, its end."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import BODIES, ROLLOUT, Machine, eventually, is_running

SILENCE_SECONDS = 3
"""As in `test_engine`."""


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A parent whose engines take START seconds to start, where LIMIT are allowed: the parameter is `START:LIMIT`."""
    machine = Machine(tmp_path, [BODIES, f"exec:{request.param}"], SILENCE_SECONDS)
    yield machine
    machine.close()


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("machine", ["8:300"], indirect=True)
def test_a_start_may_take_longer_than_an_engine_may_be_silent(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    begun = machine.poll(ROLLOUT, "its start", lambda poll: bool(poll.engines)).engines[0]
    assert begun.state == "Starting"
    assert machine.engine(ROLLOUT).incarnation == begun.incarnation
    assert machine.coordinator.failures == []


@pytest.mark.parametrize("machine", ["1000:4"], indirect=True)
def test_a_start_that_takes_too_long_is_named_and_begun_anew(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    failure = machine.failure()
    assert failure.exit_code == -9
    assert "/alive for " in failure.message
    first = failure.incarnation
    machine.poll(ROLLOUT, "another start", lambda poll: [one.incarnation for one in poll.engines] != [first])


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_who_it_is_stands_in_a_file_and_how_many_threads_it_has_in_its_environment(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    said = json.loads((machine.run_dir / "engines/rollout-0/engine-0.json").read_text())
    assert said == {"incarnation": engine.incarnation, "pid": engine.pid, "url": engine.url}
    assert ask(f"{engine.url}/who") == f"{engine.pid} 1"


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_one_that_hangs_is_replaced_behind_the_same_port(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    with suppress(OSError):
        urllib.request.urlopen(f"{engine.url}/hang", timeout=0.5)
    assert f"it has not answered {engine.url}/alive for " in machine.failure().message
    assert machine.engine(ROLLOUT, other_than=engine.incarnation).url == engine.url
    assert not is_running(engine.pid)


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_one_that_ends_is_reported_with_its_last_words(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    with suppress(OSError):
        ask(f"{engine.url}/die")
    failure = machine.failure()
    assert failure.message == "The engine of rollout-0 exited with code 3: told to die"
    assert machine.log("rollout-0.engine").endswith("told to die\n")
    machine.engine(ROLLOUT, other_than=engine.incarnation)


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_it_dies_with_its_launcher(machine: Machine) -> None:
    launcher = machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    os.kill(launcher, signal.SIGKILL)
    eventually("the engine's end", lambda: not is_running(engine.pid))
