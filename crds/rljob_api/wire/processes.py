"""Between `rljob run` and the preloaded parent that forks the launchers of this machine: JSON lines over a socket pair.

The parent reads `SpawnLauncher` lines and writes `LauncherSpawned` and `LauncherExited` lines; it ends with its socket.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_api.base import WireModel
from rljob_api.wire.identity import PodKey


class SpawnLauncher(WireModel):
    """Fork a launcher for this pod."""

    kind: Literal["SpawnLauncher"] = "SpawnLauncher"
    pod: PodKey
    pod_uid: str
    container_restart_count: int = 0
    manifest: str
    """Path of the resolved RLJob (JSON)."""
    endpoints: str
    """Path of the `Endpoints` file (JSON, mode 0600)."""
    devices: list[str] = []
    """The pod's, as CUDA_VISIBLE_DEVICES names them; empty: it computes on the CPU."""


class ParentReady(WireModel):
    """Sent once, when the heavy libraries are imported."""

    kind: Literal["ParentReady"] = "ParentReady"
    pid: int


class LauncherSpawned(WireModel):
    """The launcher runs."""

    kind: Literal["LauncherSpawned"] = "LauncherSpawned"
    pod_uid: str
    pid: int


class LauncherExited(WireModel):
    """The launcher is gone; -9 for SIGKILL."""

    kind: Literal["LauncherExited"] = "LauncherExited"
    pod_uid: str
    pid: int
    exit_code: int


ParentMessage = Annotated[ParentReady | LauncherSpawned | LauncherExited, Field(discriminator="kind")]
PARENT_MESSAGE: TypeAdapter[ParentReady | LauncherSpawned | LauncherExited] = TypeAdapter(ParentMessage)
