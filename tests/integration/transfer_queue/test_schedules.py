"""The real queue under random schedules and faults, against the contract of what is never lost.

RLJOB_SCHEDULE_SEEDS sets the number of seeds (24 unless set; `make test-schedule`, and so `make test-long`, runs many).
A failure names its seed.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rljob_api.spec.rollout import GroupOrder
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import World, describe, make_shape

SEEDS = int(os.environ.get("RLJOB_SCHEDULE_SEEDS", "24"))
BLOCKS = 6
MOST_ACTIONS = 6000
MOST_FAULTS = 5
ORDERS: list[dict[str, Any]] = [
    {},
    {"order": GroupOrder.SWAP},
    {"order": GroupOrder.SWAP, "carries": True},
    {"order": GroupOrder.SWAP, "carries": True, "more_groups": 2},
]
CHECK_EVERY = 40


@pytest.mark.timeout(3600)  # all the seeds that one asks for
@pytest.mark.parametrize("block", range(BLOCKS), ids=lambda block: f"staleness-{block % 3}-every-{1 + block // 3}")
def test_every_row_is_trained_once_whatever_happens(servers: Servers, block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        servers.wipe()
        if seed % 8 == 7:
            servers.renew_control()
        run_schedule(servers, seed, staleness=block % 3, every_steps=1 + block // 3)


def run_schedule(servers: Servers, seed: int, *, staleness: int, every_steps: int) -> None:
    random = Random(seed)
    steps = {"step_rows": 2} if seed % 4 == 3 else {}
    shape = make_shape(staleness=staleness, rollouts=5, critic=seed // 6 % 2, **steps)
    shape = replace(shape, has_curriculum=seed % 2 == 1, **ORDERS[seed // 6 % len(ORDERS)])
    world = World(servers, shape, random, every_steps=every_steps)
    # Killing the control Redis costs most of a schedule's time: some schedules do it.
    faults = [strike_replica, strike_forward, strike_job, strike_unit, take_work] + [strike_control, strike_tail] * (
        seed % 8 == 7
    )
    left = MOST_FAULTS
    try:
        for action in itertools.count():
            assert action < MOST_ACTIONS, f"seed {seed}: no end in sight: {describe(world)} {world.admin.stats()}"
            if world.finished:
                break
            if action % 200 == 100 and seed % 8 == 7:
                world.sync()
            if left and random.random() < 0.015:
                left -= 1
                random.choice(faults)(world)
                assert world.proof() == [], f"seed {seed}: after a fault: {describe(world)}"
            world.act()
            if action % CHECK_EVERY == 0:
                assert world.admin.check() == [], f"seed {seed}: {describe(world)}"
            assert world.history.broken == [], f"seed {seed}: {describe(world)}"
        assert_once(world, seed)
        assert world.proof() == [], f"seed {seed}: at the end: {describe(world)}"
    finally:
        world.close()


def assert_once(world: World, seed: int) -> None:
    tasks = [task.name for task in world.shape.training_tasks]
    wanted = set(itertools.product(tasks, range(world.shape.num_rollouts), range(world.shape.rows_per_partition)))
    surviving = world.history.surviving()
    assert set(surviving) == wanted, f"seed {seed}: rows are missing"
    assert set(surviving.values()) == {1}, f"seed {seed}: rows were trained twice: {describe(world)}"


def strike_replica(world: World) -> None:
    world.kill_replica(world.random.randrange(len(world.replicas)))


def take_work(world: World) -> None:
    world.take_back(world.random.randrange(len(world.replicas)))


def strike_forward(world: World) -> None:
    world.kill_forward(world.random.randrange(len(world.forwards)))


def strike_job(world: World) -> None:
    world.restart("somebody died")


def strike_unit(world: World) -> None:
    world.lose_unit(world.random.randrange(len(world.servers.units)))


def strike_control(world: World) -> None:
    world.restart_control()


def strike_tail(world: World) -> None:
    world.lose_tail()
