"""What a launcher finds around it: where services are, where logs go, which plugins its loop has, how it ends.

Made by `launcher.run_launcher` (one machine) and by `pod` (a container); read by the launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints
from rljob_workers.launcher.loop_plugins import LoopPlugin


class WhenDone(Enum):
    """What a launcher does once its job is done and nothing runs any more."""

    LEAVES = "Leaves"
    STAYS = "Stays"
    """Until SIGTERM: whoever started it would only start it again."""


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
