"""Processes of a pod's container as this machine sees them, to be killed or frozen from outside.

Found by the container's cgroup, distinguished by the file that they write to. Needs the cluster of this machine.
"""

import os
import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.cluster.harness.kubectl import Kubectl, Object

_PROC = Path("/proc")
_START_TICK = 19
"""Field of `stat`, counted from the one after the command's name."""


class Kind(StrEnum):
    """What a process of a container is."""

    FIRST = "first"
    """The container's first process: the launcher, the coordinator, a Redis."""
    RANK = "rank"
    ENGINE = "engine"
    OTHER = "other"


@dataclass(frozen=True)
class Process:
    """A process of a container."""

    pid: int
    """On this machine."""
    kind: Kind
    number: int = 0
    """Of a rank, its rank in the pod. Pids say nothing of it: they come round."""

    @property
    def incarnation(self) -> tuple[int, int]:
        """Its number, and the machine's tick at which it began: numbers come round."""
        fields = (_PROC / str(self.pid) / "stat").read_text().rpartition(")")[2].split()
        return self.pid, int(fields[_START_TICK])

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


def of_container(kubectl: Kubectl, pod: str, container: str) -> list[Process]:
    """The processes of a pod's container now, by pid; an AssertionError if it does not run."""
    found = kubectl.get("pod", pod)
    assert found is not None, f"there is no pod {pod} in {kubectl.namespace}"
    return within(found, container)


def within(pod: Object, container: str) -> list[Process]:
    """The same of a pod that was just read."""
    identity = container_id(pod, container)
    assert identity, f"the container {container} of the pod {pod['metadata']['name']} does not run: {pod['status']}"
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and _is_in(entry, identity))
    return [_process(pid) for pid in pids]


def the(processes: list[Process], kind: Kind, number: int = 0) -> Process:
    """The process of a kind; of ranks, the one with this number."""
    return next(process for process in processes if process.kind is kind and process.number == number)


def container_id(pod: Object, container: str) -> str | None:
    """The runtime's id of the running container; it changes with every start."""
    for status in pod["status"].get("containerStatuses", []):
        if status["name"] == container and "running" in status["state"]:
            return str(status["containerID"]).removeprefix("containerd://")
    return None


def _is_in(entry: Path, identity: str) -> bool:
    try:
        return identity in (entry / "cgroup").read_text()
    except OSError:  # it ended meanwhile
        return False


def _process(pid: int) -> Process:
    """A launcher gives each of its children a log, by whose name it is known."""
    try:
        inner = re.search(r"^NSpid:.*\s(\d+)$", (_PROC / str(pid) / "status").read_text(), re.MULTILINE)
        output = (_PROC / str(pid) / "fd/1").readlink().name
    except OSError:
        return Process(pid, Kind.OTHER)
    if inner is not None and inner[1] == "1":
        return Process(pid, Kind.FIRST)
    whose = re.search(r"\.(\d+|engine(?:\.\d+)?)\.log$", output)
    if whose is None:
        return Process(pid, Kind.OTHER)
    return Process(pid, Kind.ENGINE) if whose[1].startswith("engine") else Process(pid, Kind.RANK, int(whose[1]))
