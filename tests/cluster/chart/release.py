"""The chart installed in a test's namespace: the operator from this checkout, for this namespace alone.

Runs helm as a user does; what helm says of a pod that does not start is filled up with the pod's own words.
"""

from pathlib import Path

import yaml

from tests.cluster.chart.helm import CHART, helm
from tests.cluster.chart.values import checkout_values
from tests.cluster.harness.kubectl import Kubectl, Object

RELEASE = "rl"
OPERATOR = f"{RELEASE}-rljob-operator"
"""Name of the Deployment, the Lease and the ServiceAccount."""
_PODS = "app.kubernetes.io/name=rljob-operator"
_IN_TIME = ("--wait", "--timeout", "480s")


class Release:
    """One release. `install` makes it; `gone` leaves nothing of it, whatever came of the test."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        """Its values lie in `folder`."""
        self.kubectl = kubectl
        self.scope = ("--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace)
        self._values = folder / "values.yaml"
        self._values.write_text(yaml.safe_dump({"namespaces": [kubectl.namespace], **checkout_values()}))

    def install(self, *changes: str) -> set[str]:
        """The operator's pods; `changes` as in `--set`. The CRD may be there already, from an earlier test."""
        self("install", RELEASE, str(CHART), *self.scope, *self._given(), *_set(changes), "--take-ownership")
        return self.pods()

    def upgrade(self, *changes: str, chart: Path = CHART) -> set[str]:
        """The operator's pods afterwards; `changes` as in `--set`."""
        self("upgrade", RELEASE, str(chart), *self.scope, *self._given(), *_set(changes))
        return self.pods()

    def begin_upgrade(self, *changes: str, chart: Path = CHART) -> None:
        """Waits for nothing; `changes` as in `--set-json`."""
        chosen = [argument for change in changes for argument in ("--set-json", change)]
        self("upgrade", RELEASE, str(chart), *self.scope, "--values", str(self._values), *chosen)

    def ended(self) -> dict[str, tuple[int, str]]:
        """Of each pod whose operator has ended: exit code and last message."""
        found: dict[str, tuple[int, str]] = {}
        for pod in self.kubectl.all("pods", _PODS):
            for status in pod["status"].get("containerStatuses", []):
                end = status["state"].get("terminated") or status["lastState"].get("terminated")
                if end is not None:
                    found[pod["metadata"]["name"]] = (end["exitCode"], end.get("message", ""))
        return found

    def uninstall(self) -> None:
        """Returns when the operator's pods are gone."""
        self("uninstall", RELEASE, *self.scope, *_IN_TIME)
        # Helm waits for the Deployment alone.
        self.kubectl.wait("the operator's pods to be gone", lambda: not self.kubectl.all("pods", _PODS))

    def gone(self) -> None:
        """Takes away what may still be there."""
        helm("uninstall", RELEASE, *self.scope, "--ignore-not-found")

    def __call__(self, *arguments: str) -> str:
        """What helm prints."""
        try:
            return helm(*arguments)
        except AssertionError as error:
            message = self.kubectl("logs", "--selector", _PODS, "--tail=20")
            raise AssertionError(f"{error}\n{self.kubectl.describe()}\nThe operator said last:\n{message}") from error

    def pods(self) -> set[str]:
        """Names of the operator's pods, those that are to stay, once the others are ordered to go."""
        # Helm waits for new ones and not for that.
        self.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=480s", seconds=500)
        found = self.kubectl.all("pods", _PODS)
        return {pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def wait_for_leader(self, among: set[str]) -> str:
        """The pod of these that leads, once one does."""

        def leader(lease: Object) -> list[str]:
            holder = lease["spec"].get("holderIdentity") or ""
            return [pod for pod in among if holder.startswith(pod)]

        return leader(self.kubectl.wait_for("lease", OPERATOR, f"to be held by one of {among}", leader))[0]

    def wait_for_leader_after(self, gone: str) -> None:
        """Returns once another than the pod that is gone leads; which one, no one can know."""

        def led(lease: Object) -> bool:
            holder = lease["spec"].get("holderIdentity") or gone
            return not holder.startswith(gone)

        self.kubectl.wait_for("lease", OPERATOR, f"to be held by another than {gone}", led)

    def _given(self) -> tuple[str, ...]:
        return ("--values", str(self._values), *_IN_TIME)


def _set(changes: tuple[str, ...]) -> list[str]:
    return [argument for change in changes for argument in ("--set", change)]
