"""kubectl as tests call it: objects in, objects out, in one namespace. What is only read is asked of the API server.

A command that fails, and a wait that is over, raise with all that a reader needs: the pods' states and the last events.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.cluster.harness.reader import Reader, ReadFailed, reader

Object = dict[str, Any]
Holds = Callable[[Object], Any]
"""Something true where it holds."""
T = TypeVar("T")

_LOOK_AGAIN_SECONDS = 0.2
"""At least, and twice as long as a look took: it is work for the machine that is waited for."""
_MAX_LOOK_AGAIN_SECONDS = 0.6
_SHARE_OF_WAIT = 0.2
"""What has not come for long is looked at less often."""
_NUM_EVENTS = 25

PATIENCE_SECONDS = 420.0
"""Of a wait, unless it says something else: a wait that succeeds costs nothing, on a machine that is busy too."""
_COMMAND_SECONDS = 120.0


class KubectlFailed(AssertionError):
    """kubectl said no; its message is the API server's."""


class NotInTime(AssertionError):
    """A wait is over: who waited for what, and how the namespace looked then."""


@dataclass(frozen=True)
class Kubectl:
    """One namespace of one cluster."""

    kubeconfig: str
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """The same for another namespace."""
        return replace(self, namespace=namespace)

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = _COMMAND_SECONDS) -> str:
        """What kubectl prints."""
        done = self._run(arguments, stdin, seconds)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def refusal(self, *manifests: Object) -> str:
        """What the API server says against these manifests, which it must not take."""
        done = self._run(("apply", "--dry-run=server", "-f", "-"), _as_list(manifests), _COMMAND_SECONDS)
        if done.returncode == 0:
            raise AssertionError(f"the API server took what it must refuse: {done.stdout.strip()}")
        return done.stderr

    def apply(self, *manifests: Object) -> None:
        """Creates or changes objects."""
        self("apply", "-f", "-", stdin=_as_list(manifests))

    def get(self, kind: str, name: str) -> Object | None:
        """The object, or None if there is none."""
        return self._read(lambda cluster: cluster.get(kind, self.namespace, name))

    def all(self, kind: str, selector: str = "") -> list[Object]:
        """The objects of a kind, or of some that commas separate, those that a label selector picks."""
        return self._read(lambda cluster: cluster.all(kind, self.namespace, selector))

    def merge(self, kind: str, name: str, patch: Object, *, subresource: str | None = None) -> None:
        """Merges a patch into an object, or into its status."""
        of = [f"--subresource={subresource}"] if subresource else []
        self("patch", kind, name, "--type=merge", *of, "-p", json.dumps(patch))

    def delete(self, kind: str, name: str, *, force: bool = False) -> None:
        """Asks for an object's end and does not wait for it. By force, a pod's kubelet is not asked either."""
        self("delete", kind, name, "--wait=false", *(["--grace-period=0", "--force"] if force else []))

    def wait(self, what: str, observe: Callable[[], T | None], *, seconds: float = PATIENCE_SECONDS) -> T:
        """Looks until there is something (neither None nor false); `what` completes "waited for ..."."""
        began = time.monotonic()
        while True:
            looked = time.monotonic()
            if found := observe():
                return found
            now = time.monotonic()
            if now > began + seconds:
                raise NotInTime(f"the test waited {seconds:.0f} s for {what}.\n{self.describe()}")
            pause = min(_MAX_LOOK_AGAIN_SECONDS, _SHARE_OF_WAIT * (now - began))
            time.sleep(max(_LOOK_AGAIN_SECONDS, pause, 2 * (now - looked)))

    def wait_for(self, kind: str, name: str, what: str, holds: Holds, *, seconds: float = PATIENCE_SECONDS) -> Object:
        """The object, once something holds of it."""

        def look() -> Object | None:
            found = self.get(kind, name)
            return found if found is not None and holds(found) else None

        return self.wait(f"{kind} {name} {what}", look, seconds=seconds)

    def wait_ready(self, pod: str, *, seconds: float = PATIENCE_SECONDS) -> Object:
        """The pod, once it is Ready."""
        return self.wait_for("pod", pod, "to be Ready", is_ready, seconds=seconds)

    def wait_gone(self, kind: str, name: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Returns once there is no such object."""
        self.wait(f"{kind} {name} to be gone", lambda: self.get(kind, name) is None, seconds=seconds)

    def describe(self) -> str:
        """The pods and the last events of the namespace, for an error."""
        pods = self._run(("get", "pods", "-o", "wide"), None, _COMMAND_SECONDS)
        events = self._run(("get", "events", "--sort-by=.lastTimestamp", "--no-headers"), None, _COMMAND_SECONDS)
        last = "\n".join(events.stdout.splitlines()[-_NUM_EVENTS:])
        return f"Pods of {self.namespace}:\n{pods.stdout or pods.stderr}\nLast events:\n{last or events.stderr}"

    def _read(self, question: Callable[[Reader], T]) -> T:
        try:
            return question(reader(self.kubeconfig))
        except ReadFailed as error:
            raise KubectlFailed(str(error)) from error

    def _run(self, arguments: tuple[str, ...], stdin: str | None, seconds: float) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", self.kubeconfig, "--namespace", self.namespace, *arguments]
        try:
            return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as late:
            raise NotInTime(f"the test waited {seconds:.0f} s for the end of `{' '.join(command)}`") from late


def is_ready(pod: Object) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _as_list(manifests: tuple[Object, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
