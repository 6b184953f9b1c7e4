"""The end of a run: what was still told is written down, every process ends, memory is given back."""

import asyncio
import shutil
import time
from contextlib import suppress

from rljob_operator.coordinator_follower import CoordinatorFollower
from rljob_operator.coordinator_link import CoordinatorError
from rljob_operator.core import PodState
from rljob_operator.local import processes
from rljob_operator.local.infrastructure import Infrastructure
from rljob_operator.local.pods import Pods
from rljob_operator.local.services import CONTROL, COORDINATOR, PARENT, Services
from rljob_operator.local.timeline import merge

LAST_WORDS_SECONDS = 5.0
COORDINATOR_SECONDS = 3.0
PARENT_SECONDS = 3.0
CONTROL_SECONDS = 10.0
"""It writes the rest of its append-only file."""
GONE_SECONDS = 5.0
"""Processes killed with their parent vanish at once; only one in the middle of device I/O takes longer."""


async def shut_down(
    services: Services, infrastructure: Infrastructure, pods: Pods, follower: CoordinatorFollower, *, killed: bool
) -> None:
    """In the order in which nothing is missed: events, pods, coordinator, storage, control state."""
    is_held_up = infrastructure.is_stopped(COORDINATOR) or infrastructure.is_stopped(CONTROL)
    if infrastructure.is_alive(COORDINATOR) and not is_held_up and not killed:
        await _hear_the_rest(follower)
    launchers = [fact.launcher_pid for fact in pods.facts() if fact.state is PodState.RUNNING and fact.launcher_pid]
    for pid in launchers:
        processes.kill(pid)
    await pods.close()
    await infrastructure.stop(PARENT, patience=0.0 if killed else PARENT_SECONDS)
    await infrastructure.stop(COORDINATOR, patience=0.0 if killed else COORDINATOR_SECONDS)
    for probe in services.probes():
        if probe.name != CONTROL:
            await infrastructure.stop(probe.name, patience=0.0)
    await infrastructure.stop(CONTROL, patience=CONTROL_SECONDS)
    await _until_gone(launchers)
    services.listener.close()
    shutil.rmtree(services.memory, ignore_errors=True)
    services.folder.endpoints.unlink(missing_ok=True)
    merge(services.folder.path)


async def _hear_the_rest(follower: CoordinatorFollower) -> None:
    with suppress(CoordinatorError, TimeoutError):
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            while await follower.catch_up(0.0):
                pass


async def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while any(processes.is_running(pid) for pid in pids) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
