"""Launchers and ranks against the real coordinator: deaths, epochs, and a coordinator that is killed meanwhile."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.names import EXIT_CUT_OFF
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import RankObservation
from rljob_api.wire.processes import LauncherExited
from rljob_api.wire.ranks import RankState
from tests.integration.dcs.world import World, job
from tests.integration.launcher.conftest import ACTOR, BODIES, ROLLOUT, ParentProcess, eventually, is_running
from tests.integration.transfer_queue.servers import Servers


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A running coordinator over empty servers, in a folder whose path is short enough for sockets.

    A parameter is for how long ranks do without it.
    """
    with tempfile.TemporaryDirectory(prefix="rlj-pod-") as folder:
        servers = Servers(Path(folder))
        servers.start()
        world = World(servers, Path(folder), job(absence_seconds=getattr(request, "param", None)))
        world.start()
        yield world
        world.stop()
        servers.stop()


@pytest.fixture
def parent(world: World) -> Iterator[ParentProcess]:
    parent = ParentProcess(Path(world.endpoints.run_dir), [BODIES, "conversing"])
    yield parent
    parent.close()


def ready(world: World, pod: PodKey, epoch: int, generation: int = 0) -> RankObservation:
    """The rank of `pod` once the coordinator has it Ready in this incarnation and its launcher says it runs."""

    def look() -> RankObservation | None:
        found = next((seen for seen in world.status().pods if seen.pod == pod), None)
        ranks = [] if found is None else found.ranks
        running = set() if found is None else {row.incarnation for row in found.processes if row.exit_code is None}
        for row in ranks:
            wanted = (row.epoch, row.generation) == (epoch, generation) and row.incarnation in running
            if wanted and row.state is RankState.READY:
                return row
        return None

    return eventually(f"{pod} Ready in epoch {epoch}, generation {generation}", look)


def test_a_death_in_place_then_a_new_epoch_then_the_end(world: World, parent: ParentProcess) -> None:
    world.begin()
    launchers = [parent.spawn(ACTOR), parent.spawn(ROLLOUT)]
    rank, bystander = ready(world, ACTOR, 1), ready(world, ROLLOUT, 1)
    os.kill(rank.pid, signal.SIGKILL)
    failure = eventually("the report", lambda: next(iter(world.status().failures), None))
    assert failure.id == f"uid-actor-0/0/{rank.incarnation}"
    world.order(1, {"actor-0": 1})
    ready(world, ACTOR, 1, 1)
    assert is_running(bystander.pid)
    world.raise_epoch(2)
    world.order(2)
    second = [ready(world, ACTOR, 2), ready(world, ROLLOUT, 2)]
    assert not is_running(bystander.pid)
    assert [report.id for report in world.status().failures] == [failure.id]
    world.order(2, phase=PodPhase.DONE)
    assert [parent.expect(LauncherExited).exit_code for _ in launchers] == [0, 0]
    assert not any(is_running(row.pid) for row in second)


@pytest.mark.parametrize("world", [2], indirect=True, ids=["ranks leave after 2 s"])
def test_a_death_while_the_coordinator_is_dead_is_reported_before_those_that_left_for_want_of_it(
    world: World, parent: ParentProcess
) -> None:
    """So that it counts, once: a rank that left by itself is held back until an order for it could have come."""
    world.begin()
    launcher = parent.spawn(ACTOR)
    parent.spawn(ROLLOUT)
    rank, other = ready(world, ACTOR, 1), ready(world, ROLLOUT, 1)
    # A beat of its main loop: the one before it, which waits for its answer and would be what gives up, has it.
    eventually("rollout to beat in its loop", lambda: ready(world, ROLLOUT, 1).waiting == "nothing")
    world.kill()
    os.kill(rank.pid, signal.SIGKILL)
    eventually("the launcher to have seen it", lambda: "was killed by SIGKILL" in parent.log("actor-0"))
    eventually("the other one to leave", lambda: f"exited with code {EXIT_CUT_OFF}" in parent.log("rollout-0"))
    assert "rollout-0.0: the coordinator at " in parent.log("rollout-0.0")
    world.start()
    failure = eventually("the report", lambda: next(iter(world.status().failures), None))
    assert failure.incarnation == rank.incarnation
    world.order(1, {"actor-0": 1, "rollout-0": 1})
    ready(world, ACTOR, 1, 1)
    assert ready(world, ROLLOUT, 1, 1).incarnation != other.incarnation
    assert [report.id for report in world.status().failures] == [failure.id]
    assert is_running(launcher)


@pytest.mark.long
@pytest.mark.parametrize("world", [8], indirect=True, ids=["ranks leave after 8 s"])
def test_a_rank_that_left_for_want_of_the_coordinator_is_reported_as_cut_off_with_its_launcher(
    world: World, parent: ParentProcess
) -> None:
    world.begin()
    parent.spawn(ROLLOUT)
    ready(world, ROLLOUT, 1)
    world.kill()
    eventually("it to leave", lambda: f"exited with code {EXIT_CUT_OFF}" in parent.log("rollout-0"))
    world.start()
    failure = eventually("the report", lambda: next(iter(world.status().failures), None))
    assert (failure.exit_code, failure.cut_off) == (EXIT_CUT_OFF, True)
    seen = eventually("its process", lambda: next((pod for pod in world.status().pods if pod.processes), None))
    assert [process.cut_off for process in seen.processes] == [True]


def test_a_coordinator_that_is_killed_costs_neither_rank_nor_launcher(world: World, parent: ParentProcess) -> None:
    world.begin()
    launcher = parent.spawn(ROLLOUT)
    rank = ready(world, ROLLOUT, 1)
    world.restart()
    assert ready(world, ROLLOUT, 1).incarnation == rank.incarnation
    assert is_running(launcher)
    assert world.status().failures == []


def test_a_launcher_that_came_back_by_itself_starts_nothing_before_its_order(
    world: World, parent: ParentProcess
) -> None:
    world.begin()
    first = parent.spawn(ACTOR)
    ready(world, ACTOR, 1)
    os.kill(first, signal.SIGKILL)
    parent.expect(LauncherExited)
    parent.spawn(ACTOR, restart_count=1)
    eventually("its registration", lambda: "is registered" in parent.log("actor-0").rpartition("ordered to")[2])
    assert "ordered to" not in parent.log("actor-0").rpartition("is registered")[2]
    world.order(1, {"actor-0": 1})
    ready(world, ACTOR, 1, 1)
