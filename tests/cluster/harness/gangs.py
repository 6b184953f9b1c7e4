"""Gangs as a test meets them: the scheduler and pretended nodes that it adds to the cluster, and a watch of who has
been placed at each moment.
"""

import json
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rljob_api.cluster import LABEL_JOB
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import NODE

SCHEDULER = "gang"
"""Called so by tests/cluster/node/gang.sh."""
_SECONDS = 900
"""To build it at first."""


def add_groups() -> None:
    """The CRD of PodGroups, and no one who looks at them."""
    _script("gang.sh", "crd")


def add_scheduler() -> None:
    """A scheduler that knows PodGroups, and their CRD."""
    _script("gang.sh")


def add_pretended_nodes(count: int) -> None:
    """Nodes of kwok with 8 GPUs each, whose pods run at once and do nothing."""
    _script("kwok.sh", str(count))


def pretended() -> Object:
    """The patch of a pod template that brings pods to those nodes."""
    toleration = {"key": "kwok", "operator": "Exists", "effect": "NoSchedule"}
    return {"spec": {"nodeSelector": {"type": "kwok"}, "tolerations": [toleration]}}


def _script(name: str, *arguments: str) -> None:
    done = subprocess.run([str(NODE / name), *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr.strip()}"


@dataclass
class Placement:
    """One job's pods that have a node, as they come and go."""

    needs: int
    """Pods that it cannot be without."""
    bound: set[str] = field(default_factory=set)
    since: float | None = None
    """When it began to be placed in part."""
    longest: float = 0.0
    """Seconds that it was placed in part at a time."""
    wholes: int = 0
    """How often it came to be placed as a whole."""

    def changed(self, now: float) -> None:
        """After a pod was placed or has gone."""
        if 0 < len(self.bound) < self.needs:
            self.since = self.since or now
            return
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
            self.since = None
            self.wholes += bool(self.bound)

    def let_go(self, now: float) -> None:
        """It is deleted, or over: that its pods leave one by one is no placement in part."""
        self.longest, self.since, self.needs = self.longest_until(now), None, 0

    def longest_until(self, now: float) -> float:
        """With what lasts still."""
        return max(self.longest, now - self.since if self.since is not None else 0.0)


class Watched:
    """Every binding and end of pods in a namespace, in the API server's order. `with Watched(...) as watched:`."""

    def __init__(self, kubectl: Kubectl, needs: dict[str, int]) -> None:
        """`needs`: job -> pods that it cannot be without."""
        self._command = ["kubectl", "--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace]
        self._command += ["get", "pods", "-l", LABEL_JOB, "--watch", "--output-watch-events", "-o", "json"]
        self.jobs = {job: Placement(count) for job, count in needs.items()}
        self._lock = threading.Lock()

    def is_whole(self, job: str) -> bool:
        """Whether all pods that it needs have a node now."""
        with self._lock:
            return len(self.jobs[job].bound) >= self.jobs[job].needs

    def let_go(self, *jobs: str) -> None:
        """Judges these no more. What they were until now counts."""
        with self._lock:
            for job in jobs:
                self.jobs[job].let_go(time.monotonic())

    def longest_in_part(self) -> dict[str, float]:
        """Job -> seconds."""
        with self._lock:
            now = time.monotonic()
            return {name: round(job.longest_until(now), 2) for name, job in self.jobs.items()}

    def __enter__(self) -> "Watched":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            if line.rstrip().endswith("}"):  # of an event, which one kubectl writes in a line and another in many
                with suppress(json.JSONDecodeError):
                    event = json.loads(text)
                    text = ""
                    self._saw(event["type"], event["object"])

    def _saw(self, kind: str, pod: Object) -> None:
        job = self.jobs.get(pod["metadata"]["labels"][LABEL_JOB])
        if job is None:
            return
        with self._lock:
            if kind == "DELETED":
                job.bound.discard(pod["metadata"]["uid"])
            elif pod["spec"].get("nodeName"):
                job.bound.add(pod["metadata"]["uid"])
            job.changed(time.monotonic())
