"""The surroundings of a launcher: its pod's identity, its services, logs and devices, the plugins of its loop.

`launcher.run_launcher` (one machine) and `pod` (a container) make it; the launcher reads it and calls the plugins. A
plugin never calls the launcher.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.identity import Endpoints, PodKey
from rljob_api.wire.launchers import EngineState


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Which incarnation of which pod this launcher is; part of every failure's id."""

    pod: PodKey
    pod_uid: str
    container_restart_count: int

    def failure_id(self, incarnation: str) -> str:
        """One cause, one id, however often it is reported."""
        return f"{self.pod_uid}/{self.container_restart_count}/{incarnation}"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine of the pod."""

    state: EngineState | None = None
    """None: not started yet, or not wanted any more."""
    starts: int = 0
    """Incarnations so far."""


@dataclass(frozen=True, slots=True)
class LauncherState:
    """What the launcher knows of its pod at the end of a turn."""

    order: PodOrder | None = None
    num_ranks: int = 0
    ranks_up: int = 0
    ranks_ready: int = 0
    """Alive, in the order's epoch and generation, and Ready by their own report."""
    rank_starts: int = 0
    engines: tuple[EngineFacts, ...] = ()
    """By index."""
    seen_seq: int = 0


class LoopPlugin(Protocol):
    """Something with a turn in the launcher's loop. No turn may wait."""

    def turn(self, state: LauncherState) -> None:
        """Does what can be done at once."""

    def watch(self, poller: select.poll) -> None:
        """Registers what it waits for."""

    def close(self) -> None:
        """Closes what a forked child must not have."""


class WhenDone(Enum):
    """What a launcher does once its job is done and nothing runs any more."""

    LEAVES = "Leaves"
    STAYS = "Stays"
    """Until SIGTERM: the kubelet would only start it again."""


@dataclass(frozen=True, slots=True)
class LauncherEnvironment:
    """Around one launcher."""

    endpoints_of: Callable[[RLJob], Endpoints]
    """A job of a later epoch may have other storage units."""
    logs: Path
    when_done: WhenDone
    plugins: tuple[LoopPlugin, ...] = ()
    devices_of: Callable[[RLJob], tuple[str, ...]] = lambda _: ()
    """The pod's, as CUDA_VISIBLE_DEVICES names them; none: it computes on the CPU. Asked when a child is started, since
    the job that is read first may be older than the pod."""


def one_machine(endpoints: Endpoints, devices: Sequence[str]) -> LauncherEnvironment:
    """Of a local run, whose supervisor deals the machine's devices to the pods."""
    logs = Path(endpoints.run_dir) / "logs"
    return LauncherEnvironment(lambda _: endpoints, logs, WhenDone.LEAVES, devices_of=lambda _: tuple(devices))
