"""A pod with two ranks and two engines: each rank drives its own, and each comes back by itself."""

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.wire.launchers import EngineProcess, LauncherPoll
from tests.integration.launcher.conftest import ACTOR, BODIES, ROLLOUT, Machine, eventually, is_running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machine]:
    """A parent whose pods have two ranks, and two engines where their role has any."""
    machine = Machine(tmp_path, [BODIES, "pair"])
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
