"""A pod with two ranks and two engines: each rank drives its own, and each comes back by itself."""

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.wire.launchers import EngineProcess, EngineState, LauncherPoll
from tests.integration.launcher.conftest import ACTOR, BODIES, ROLLOUT, Machine, eventually, is_running, make_job


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machine]:
    """A parent whose pods have two ranks, and two engines where their role has any."""
    machine = Machine(tmp_path, [BODIES, "small"], ranks_per_pod=2)
    yield machine
    machine.close()


def both_run(poll: LauncherPoll) -> bool:
    return [engine.state for engine in poll.engines] == ["Running", "Running"]


def has_begun(pair: Machine, rank: str) -> bool:
    return "begins" in pair.log(rank)


def engines(pair: Machine) -> list[EngineProcess]:
    return pair.poll(ROLLOUT, "both engines to run", both_run).engines


def test_each_rank_drives_its_own_engine(pair: Machine) -> None:
    pair.spawn(ROLLOUT)
    pair.coordinator.order(ROLLOUT)
    first, second = engines(pair)
    assert (first.index, second.index) == (0, 1)
    assert len({first.url, second.url, first.incarnation, second.incarnation}) == 4
    for rank, engine in enumerate((first, second)):
        eventually(f"rank {rank} to begin", functools.partial(has_begun, pair, f"rollout-0.{rank}"))
        assert (pair.run_dir / f"drives.{rank}").read_text() == engine.url
    assert pair.coordinator.hellos[0].ranks_per_pod == 2
    assert pair.finish(ROLLOUT).exit_code == 0
    assert not is_running(first.pid)
    assert not is_running(second.pid)


def test_an_engine_that_dies_comes_back_and_the_other_stays(pair: Machine) -> None:
    pair.spawn(ROLLOUT)
    pair.coordinator.order(ROLLOUT)
    first, second = engines(pair)
    os.kill(second.pid, signal.SIGKILL)
    failure = pair.failure()
    assert failure.engine == 1
    assert failure.message.startswith("Engine 1 of rollout-0 was killed by SIGKILL")
    then = pair.poll(
        ROLLOUT, "another engine 1", lambda poll: both_run(poll) and poll.engines[1].incarnation != second.incarnation
    )
    assert then.engines[0] == first
    assert then.engines[1].url == second.url
    assert [rank.exit_code for rank in then.ranks] == [None, None]
    assert not (pair.run_dir / "logs/rollout-0.engine.log").exists()
    assert (pair.run_dir / "logs/rollout-0.engine.1.log").exists()


def test_a_rank_that_dies_takes_neither_engine_with_it_and_a_role_without_engines_has_none(pair: Machine) -> None:
    for pod in (ROLLOUT, ACTOR):
        pair.spawn(pod)
        pair.coordinator.order(pod)
    before = engines(pair)
    ranks = pair.poll(ROLLOUT, "both ranks", lambda poll: len(poll.ranks) == 2).ranks
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert pair.failure().rank == 1
    pair.coordinator.order(ROLLOUT, generation=1)
    pair.poll(
        ROLLOUT,
        "both ranks in the next generation",
        lambda poll: [(rank.generation, rank.exit_code) for rank in poll.ranks] == [(1, None), (1, None)],
    )
    assert engines(pair) == before
    assert pair.poll(ACTOR, "two ranks", lambda poll: len(poll.ranks) == 2).engines == []


def test_an_epoch_with_another_number_of_ranks_needs_no_other_pod(pair: Machine) -> None:
    pair.spawn(ROLLOUT)
    pair.coordinator.order(ROLLOUT)
    before = {engine.pid for engine in engines(pair)}
    pair.coordinator.job = make_job(ranks_per_pod=3)
    pair.coordinator.order(ROLLOUT, epoch=2)
    three = pair.poll(ROLLOUT, "three engines and ranks", lambda poll: shape(poll) == (3, [(2, None)] * 3))
    assert before.isdisjoint(engine.pid for engine in three.engines)
    assert len({engine.url for engine in three.engines}) == 3
    pair.coordinator.job = make_job(ranks_per_pod=1)
    pair.coordinator.order(ROLLOUT, epoch=3)
    pair.poll(ROLLOUT, "one engine and one rank", lambda poll: shape(poll) == (1, [(3, None), (2, -9), (2, -9)]))
    assert not any(is_running(pid) for pid in before)
    assert pair.finish(ROLLOUT, epoch=3).exit_code == 0
    assert not any(is_running(engine.pid) for engine in three.engines)


def shape(poll: LauncherPoll) -> tuple[int, list[tuple[int, int | None]]]:
    """Engines that run, and each rank's epoch and exit code."""
    return [one.state for one in poll.engines].count(EngineState.RUNNING), [(r.epoch, r.exit_code) for r in poll.ranks]
