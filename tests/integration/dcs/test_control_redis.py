"""The control Redis and the storage units die; the coordinator opens again only what is whole."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.launchers import LauncherPoll
from rljob_api.wire.observation import EventKind, ServerState
from rljob_workers.dcs.errors import IncarnationOver
from rljob_workers.launcher.coordinator_calls import LauncherClient
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually


class PollingLauncher:
    """A launcher that polls and does nothing else, telling of a seq."""

    def __init__(self, world: World, role: Role) -> None:
        self._seen_seq = 0
        self._received_seq = -1
        self._client: LauncherClient = world.launcher_client()
        self._stop = threading.Event()
        hello = world.hello(role)
        self._client.register(hello)
        world.launchers[str(hello.pod)] = hello
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def report(self, seq: int) -> None:
        """Reports of `seq` from here on; returns once the coordinator has received it."""
        self._seen_seq = seq
        eventually(lambda: self._received_seq == seq, "a poll that tells of the seq")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        order = None
        while not self._stop.is_set():
            poll = LauncherPoll(carried=order, ranks=[], seen_seq=self._seen_seq, wait_seconds=0.5)
            self._client.begin_poll(poll)
            answer = self._client.collect()
            while answer is None and self._client.is_polling:
                time.sleep(0.002)
                answer = self._client.collect()
            if answer is not None:
                order, self._received_seq = answer.order, poll.seen_seq


@pytest.fixture
def launchers(world: World) -> Iterator[list[PollingLauncher]]:
    world.begin()
    polling = [PollingLauncher(world, Role.ACTOR), PollingLauncher(world, Role.ADVANTAGES)]
    yield polling
    for launcher in polling:
        launcher.stop()


def seq(world: World) -> int:
    with world.servers.control.admin() as admin:
        return int(admin.hget("q:meta", "seq"))


def test_a_restart_of_the_whole_server_is_opened_again(world: World, launchers: list[PollingLauncher]) -> None:
    rank = world.rank(Role.ACTOR)
    rank.ready()
    launchers[0].report(seq(world))
    before = world.status()
    world.servers.restart_control()
    rank.ready()
    after = world.status()
    assert after.server is ServerState.OPEN
    assert (after.epoch, after.last_event) == (before.epoch, before.last_event)
    assert world.reported(EventKind.STATE_LOST) == []


def test_a_lost_tail_is_named_and_cured_by_an_epoch(world: World, launchers: list[PollingLauncher]) -> None:
    length = world.servers.sync_control()
    rank = world.rank(Role.ACTOR)
    rank.ready()
    launchers[1].report(seq(world) + 1)
    eventually(lambda: world.status().server is ServerState.OPEN, "an open server")
    world.servers.restart_control(length)
    eventually(lambda: world.status().server is ServerState.LOST, "ControlStateLost")
    for _ in range(10):
        rank.pulse()
        assert world.status().server is ServerState.LOST
    assert len(world.reported(EventKind.STATE_LOST)) == 1
    assert world.status().pods[0].ranks[0].incarnation == rank.incarnation.id
    world.raise_epoch(2)
    world.order(2)
    assert world.status().server is ServerState.OPEN
    later = world.rank(Role.ACTOR, epoch=2)
    later.ready()
    world.servers.restart_control()  # the launchers still report numbers from the tail that was lost
    later.ready()
    assert len(world.reported(EventKind.STATE_LOST)) == 1
    ids = [event.id for event in world.events()]
    assert ids == list(range(1, len(ids) + 1))


def test_a_lost_tail_is_found_by_a_coordinator_that_died_with_it(
    world: World, launchers: list[PollingLauncher]
) -> None:
    length = world.servers.sync_control()
    world.rank(Role.ACTOR).ready()
    launchers[1].report(seq(world) + 1)
    world.kill()
    world.servers.restart_control(length)
    world.start()
    eventually(lambda: world.status().server is ServerState.LOST, "ControlStateLost")


def test_a_resumed_run_is_opened_though_no_earlier_launcher_runs(world: World) -> None:
    world.begin()
    world.register(Role.ACTOR)
    world.kill()
    world.servers.restart_control()
    world.start()
    assert world.raise_epoch(2).epoch == 2


def test_beats_wait_while_the_control_redis_is_away(world: World, launchers: list[PollingLauncher]) -> None:
    rank = world.rank(Role.ACTOR)
    world.servers.control.kill()
    eventually(lambda: world.status().server is ServerState.OPENING, "the loss of the connection")
    for _ in range(20):
        rank.pulse(waiting="the control Redis")
        time.sleep(0.02)
    world.servers.control.start()
    rank.ready()
    assert world.status().server is ServerState.OPEN


def test_a_unit_that_comes_back_empty_is_reported(world: World, launchers: list[PollingLauncher]) -> None:
    world.servers.empty_unit(1)
    (event,) = eventually(lambda: world.reported(EventKind.UNIT_LOST), "StorageUnitLost")
    assert "Storage unit 1 came back without its rows" in event.message


TABLE = {"cursor": 3, "front": [], "draws": [], "kills": {}}


def write_record(world: World, tickets: str | None) -> Path:
    """A checkpoint of a job whose control state is gone; gives where its table of draws is, or would be."""
    folder = Path(world.endpoints.run_dir) / "checkpoints"
    (folder / "7-e3-aaaaaaaaaaaa").mkdir(parents=True)
    path = folder / "7-e3-aaaaaaaaaaaa" / "tickets.json"
    if tickets is not None:
        path.write_text(tickets)
    (folder / "record.json").write_text(
        '{"id":{"lineage":3,"version":7},"epoch":3,"folder":"7-e3-aaaaaaaaaaaa","checksums":{},'
        '"ancestry":{"1":4,"3":-1}}'
    )
    return path


def test_a_job_without_an_intact_table_of_draws_fails_by_its_name(world: World) -> None:
    """It begins with the record all the same: as a job of version 0 it would prune what its user may restore."""
    path = write_record(world, '{"cursor": 3')
    assert world.raise_epoch(4).version == 7
    (failure,) = world.status().failures
    assert failure.kind is FailureKind.REPORTED
    assert f"{path} is not the table of draws of a checkpoint. Restore 7-e3-aaaaaaaaaaaa from a copy" in failure.message
    path.write_text(json.dumps(TABLE))
    world.acknowledge(failure.id)
    assert world.raise_epoch(5).version == 7
    assert world.status().failures == []


def test_a_fresh_control_redis_takes_over_the_record_file(world: World) -> None:
    write_record(world, json.dumps(TABLE))
    restore = world.raise_epoch(4)
    assert (restore.version, restore.folder) == (7, "7-e3-aaaaaaaaaaaa")
    assert world.status().recorded == 7


def test_an_epoch_that_has_left_something_beside_the_checkpoints_is_not_begun_again(world: World) -> None:
    """A later job of the name begins with an empty control Redis: its folders and lines must not be the earlier's."""
    write_record(world, json.dumps(TABLE))
    eventually(lambda: world.status().server is ServerState.OPEN, "the control Redis to be open")
    assert (world.status().epoch, world.status().earlier_epoch) == (0, 3)
    with pytest.raises(IncarnationOver, match="epoch: 3 is not above 3, in which the checkpoints here were last"):
        world.raise_epoch(3)
    assert world.raise_epoch(4).lineage == 4
    assert world.status().earlier_epoch == 0

    # Epoch 5 records nothing, and the control Redis is lost with it.
    world.raise_epoch(5)
    world.kill()
    world.servers.renew_control()
    world.start()
    eventually(lambda: world.status().server is ServerState.OPEN, "the new control Redis to be open")
    assert (world.status().epoch, world.status().earlier_epoch) == (0, 5)
    restore = world.raise_epoch(6)
    assert (restore.version, restore.folder) == (7, "7-e3-aaaaaaaaaaaa")


def test_an_epoch_that_was_noted_and_not_opened_is_no_earlier_jobs(world: World, tmp_path: Path) -> None:
    """The coordinator dies in between. The same decision opens that very epoch, over an earlier job's files."""
    write_record(world, json.dumps(TABLE))
    world.kill()
    world.start(RLJOB_FAILPOINTS="coordinator.epoch_raised=1", RLJOB_FAILPOINTS_DIR=str(tmp_path))
    raising = threading.Thread(target=lambda: world.raise_epoch(4, "a"))
    raising.start()
    assert world.process is not None
    world.process.wait(PATIENCE_SECONDS)
    assert json.loads((Path(world.endpoints.run_dir) / "checkpoints" / "begun.json").read_text()) == {"epoch": 4}
    world.start()
    raising.join(PATIENCE_SECONDS)
    assert not raising.is_alive()
    assert (world.status().epoch, world.status().earlier_epoch) == (4, 0)
