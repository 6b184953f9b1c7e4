"""What is particular to an engine that is a program of its own: a slow start, hanging and dying on demand, its end."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rljob_api.wire.logs import last_incarnations
from tests.integration.launcher.conftest import BODIES, ROLLOUT, Machine, eventually, is_running, make_job
from tests.integration.launcher.test_engine import Stopwatch

SILENCE_SECONDS = 3
"""As in `test_engine`, where a test needs it; a busy machine may keep any other engine waiting for longer."""


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A parent whose engines take START seconds to start, where LIMIT are allowed: the parameter is `START:LIMIT`.

    After that comes for how long they may be silent, if that is less than usual.
    """
    start, limit, silence = f"{request.param}:30".split(":")[:3]
    engine: dict[str, object] = {"startupTimeoutSeconds": int(limit), "env": {"OF_THE_JOB": "its own"}}
    machine = Machine(tmp_path, [BODIES, f"exec:{start}"], int(silence), engine=engine)
    yield machine
    machine.close()


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("machine", [f"8:300:{SILENCE_SECONDS}"], indirect=True)
def test_a_start_may_take_longer_than_an_engine_may_be_silent(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    begun = machine.poll(ROLLOUT, "its start", lambda poll: bool(poll.engines)).engines[0]
    assert begun.state == "Starting"
    assert machine.engine(ROLLOUT).incarnation == begun.incarnation
    assert machine.coordinator.failures == []


@pytest.mark.long
@pytest.mark.parametrize("machine", ["1000:4"], indirect=True)
def test_a_start_that_takes_too_long_is_named_and_begun_again(machine: Machine) -> None:
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
    message = json.loads((machine.run_dir / "engines/rollout-0/engine-0.json").read_text())
    assert message == {"incarnation": engine.incarnation, "pid": engine.pid, "url": engine.url}
    assert ask(f"{engine.url}/who") == f"{engine.pid} 1"
    assert ask(f"{engine.url}/variable/OF_THE_JOB") == "its own"


@pytest.mark.parametrize("machine", [f"0:300:{SILENCE_SECONDS}"], indirect=True)
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
def test_one_that_ends_is_reported_with_its_last_message(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    with suppress(OSError):
        ask(f"{engine.url}/die")
    failure = machine.failure()
    assert failure.message == "The engine of rollout-0 exited with code 3: told to die"
    newest, before = last_incarnations(machine.log("rollout-0.engine"))
    assert "told to die\n" in (newest, before), "the next life may have begun by now"
    machine.engine(ROLLOUT, other_than=engine.incarnation)


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_it_dies_with_its_launcher(machine: Machine) -> None:
    launcher = machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    os.kill(launcher, signal.SIGKILL)
    eventually("the engine's end", lambda: not is_running(engine.pid))


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_what_it_has_begun_goes_with_it_and_its_folder_is_empty_for_the_next(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    child = int(ask(f"{engine.url}/child"))
    folder = machine.run_dir / "rollout-0.engine.0"
    (folder / "left").touch()
    os.kill(engine.pid, signal.SIGKILL)
    machine.engine(ROLLOUT, other_than=engine.incarnation)
    assert not is_running(child)
    assert list(folder.iterdir()) == []
    assert machine.finish(ROLLOUT).exit_code == 0
    assert not folder.exists()


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_an_epoch_with_other_settings_replaces_it_behind_the_same_port(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    before = machine.engine(ROLLOUT)
    machine.coordinator.job = make_job(engine={"env": {"OF_THE_JOB": "another"}})
    machine.coordinator.order(ROLLOUT, epoch=2)
    after = machine.engine(ROLLOUT, other_than=before.incarnation)
    assert after.url == before.url
    assert ask(f"{after.url}/variable/OF_THE_JOB") == "another"
    assert machine.coordinator.failures == []


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_one_that_has_lost_a_part_is_replaced_although_it_answers(machine: Machine) -> None:
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    engine = machine.engine(ROLLOUT)
    child = int(ask(f"{engine.url}/child"))
    eventually("its launcher to have looked twice", Stopwatch(5))
    assert machine.coordinator.failures == []
    os.kill(child, signal.SIGKILL)
    assert machine.failure().message == (
        f"The engine of rollout-0 was killed by SIGKILL: its process {child} (sleep 100000) has ended"
    )
    machine.engine(ROLLOUT, other_than=engine.incarnation)


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_one_that_cannot_start_is_named_by_its_exception_and_given_up_over_epochs(machine: Machine) -> None:
    machine.coordinator.job = make_job(engine={"env": {"LACKS": "hidden_act"}})
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    message = "The engine of rollout-0 was killed by SIGKILL: KeyError: 'hidden_act' (<string>:1, in <module>)"
    first = machine.failure()
    assert (first.message, first.hopeless) == (message, None)
    machine.coordinator.order(ROLLOUT, epoch=2)
    third = machine.failure(3)
    assert (third.message, third.hopeless) == (f"{message} (3 starts, and it was never up)", "EngineCannotStart")
    machine.coordinator.job = make_job(engine={"env": {}})
    machine.coordinator.order(ROLLOUT, epoch=3)
    machine.engine(ROLLOUT, other_than=str(third.incarnation))


@pytest.mark.parametrize("machine", ["0:300"], indirect=True)
def test_one_that_something_kills_is_not_named_by_an_exception_that_it_has_survived(machine: Machine) -> None:
    """As the kernel does for want of memory, after an optional import has failed."""
    machine.coordinator.job = make_job(engine={"env": {"KILLED": "flash_attn"}})
    machine.spawn(ROLLOUT)
    machine.coordinator.order(ROLLOUT)
    third = machine.failure(3)
    assert third.message == (
        "The engine of rollout-0 was killed by SIGKILL: by neither its launcher nor itself, as where memory is full; "
        "the last exception in its log is KeyError: 'flash_attn' (<string>:1, in <module>)"
    )
    assert third.hopeless is None
