"""Coordinator and control Redis come back together, a tail of the state lost: whose word opens the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.launchers import LauncherHello, LauncherPoll
from rljob_api.wire.observation import EventKind, ServerState
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.server_gate import ACROSS_MACHINES, ON_ONE_MACHINE, TICK_SECONDS, OpeningPatience
from rljob_workers.transfer_queue.admin import QueueAdminTiming
from tests.integration.dcs.world import World, context_here, job


class Successor:
    """A coordinator in this process, after the one of the world died. Its clock goes on only when it is ordered to."""

    def __init__(self, world: World, patience: OpeningPatience) -> None:
        self.now = 0.0
        context = context_here(world.endpoints, job(), lambda: self.now, QueueAdminTiming())
        self.admin = context.admin
        self.coordinator = Coordinator(context, Path(world.endpoints.run_dir), patience)

    def look(self, after: float = 0.0) -> ServerState:
        self.now += after
        self.coordinator.gate.attended.tick()
        self.coordinator.gate.check()
        return self.coordinator.gate.state

    def look_for(self, seconds: float) -> ServerState:
        """Undisturbed."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.look(TICK_SECONDS)
        return self.coordinator.gate.state


@pytest.fixture
def launchers(world: World) -> list[LauncherHello]:
    """Two that live; coordinator and Redis died, and what the actor's rank did last is lost."""
    world.begin()
    launchers = [world.register(Role.ACTOR), world.register(Role.ADVANTAGES)]
    length = world.servers.sync_control()
    world.rank(Role.ACTOR).ready()
    world.kill()
    world.servers.restart_control(length)
    return launchers


Make = Callable[[OpeningPatience], Successor]


@pytest.fixture
def successor(world: World) -> Iterator[Make]:
    made: list[Successor] = []

    def make(patience: OpeningPatience) -> Successor:
        made.append(Successor(world, patience))
        return made[-1]

    yield make
    for one in made:
        one.admin.close()


FAR = 1 << 40
"""A seq that the server has not reached."""


def poll(seen_seq: int) -> LauncherPoll:
    return LauncherPoll(carried=None, ranks=[], seen_seq=seen_seq, wait_seconds=0)


def test_who_was_held_up_has_not_waited_and_still_learns_of_the_loss(
    launchers: list[LauncherHello], successor: Make
) -> None:
    one = successor(ON_ONE_MACHINE)
    assert one.look() is ServerState.OPENING
    assert one.look(after=60) is ServerState.OPENING
    one.coordinator.launchers.receive_poll(launchers[0].launcher, poll(FAR))
    assert one.look() is ServerState.OPENING, "the other launcher may live, too"
    assert one.look_for(ON_ONE_MACHINE.silent_one_seconds) is ServerState.LOST


@pytest.mark.usefixtures("launchers")
def test_where_no_one_speaks_a_run_is_resumed(successor: Make) -> None:
    one = successor(ON_ONE_MACHINE)
    assert one.look_for(ON_ONE_MACHINE.all_silent_seconds + TICK_SECONDS) is ServerState.OPEN


def test_across_machines_a_message_may_come_late(launchers: list[LauncherHello], successor: Make) -> None:
    one = successor(ACROSS_MACHINES)
    assert one.look_for(10) is ServerState.OPENING
    for launcher in launchers:
        one.coordinator.launchers.receive_poll(launcher.launcher, poll(FAR))
    assert one.look() is ServerState.LOST


def test_no_one_waits_for_launchers_whose_pods_have_others_now(
    world: World, launchers: list[LauncherHello], successor: Make
) -> None:
    one = successor(ACROSS_MACHINES)
    assert one.look_for(1) is ServerState.OPENING
    one.coordinator.launchers.receive_hello(world.hello(Role.ACTOR))
    assert one.look() is ServerState.OPENING
    one.coordinator.launchers.receive_hello(world.hello(Role.ADVANTAGES))
    assert one.look() is ServerState.OPEN


def test_a_process_that_was_ordered_to_end_is_not_waited_for(world: World, successor: Make) -> None:
    world.begin()
    world.register(Role.ACTOR)
    world.order(1, phase=PodPhase.DONE)
    world.kill()
    world.servers.restart_control()
    one = successor(ACROSS_MACHINES)
    assert one.look() is ServerState.OPEN


def test_the_report_of_a_launcher_that_was_replaced_is_not_that_of_its_successor(world: World, successor: Make) -> None:
    world.begin()
    replaced = world.register(Role.ACTOR)
    world.register(Role.ACTOR)
    world.kill()
    world.servers.restart_control()
    one = successor(ACROSS_MACHINES)
    one.coordinator.launchers.receive_hello(replaced)
    assert one.look() is ServerState.OPENING


def test_a_coordinator_that_was_held_up_calls_no_one_silent(launchers: list[LauncherHello], successor: Make) -> None:
    one = successor(ON_ONE_MACHINE)
    for launcher in launchers:
        one.coordinator.launchers.receive_poll(launcher.launcher, poll(0))
    assert one.look() is ServerState.OPEN

    def ages() -> list[float]:
        return [pod.poll_age_seconds for pod in one.coordinator.status().pods]

    one.now += 4
    assert ages() == [4, 4]
    one.now += 60
    assert ages() == [0, 0]
    one.look()
    assert ages() == [0, 0]
    one.look(after=3)
    assert ages() == [3, 3]


@pytest.mark.usefixtures("launchers")
def test_another_table_of_columns_is_reported_once_where_a_run_is_resumed(world: World, successor: Make) -> None:
    """As rows of a release before that stored no table."""
    with world.servers.control.admin() as admin:
        admin.hset("q:meta", "layout", "0123456789ab")
    for _ in range(2):
        one = successor(ON_ONE_MACHINE)
        one.look_for(ON_ONE_MACHINE.all_silent_seconds + TICK_SECONDS)
        events = one.coordinator.store.events_after(0).events
        reports = [event.message for event in events if event.kind == EventKind.COLUMNS_CHANGED]
        assert reports == [
            "The table of columns changed (no row has a field): 0 groups that were put since the checkpoint cannot be"
            " used, and are generated again from the same prompts."
        ]
