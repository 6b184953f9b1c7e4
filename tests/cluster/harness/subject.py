"""A job that a test strikes again and again, and what it is made of between two blows.

For tests on the cluster of this machine: it reads the sample log from the claim's folder and processes from /proc.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_api.cluster import LABEL_ROLE, checkpoint_claim_name
from tests.cluster.harness import processes
from tests.cluster.harness.kubectl import Object, is_ready
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob
from tests.cluster.harness.volumes import folder_of_claim

GLOBAL, IN_PLACE = "RestartGlobal", "RestartInPlace"
"""What an event of a restart says was done."""
ROWS_PER_STEP = 32


@dataclass(frozen=True)
class Standing:
    """What a job is made of between two blows."""

    epoch: int
    restarts: int
    counted: int
    failures: Counter[str]
    """Role -> failures since the last global restart."""
    pods: dict[str, str]
    """Role -> uid of its pod."""
    ranks: dict[str, tuple[int, int]]
    """Role -> its rank's process: its number on this machine, and when it began."""
    reported: Counter[tuple[str, str]]
    """(reason, action) -> how often."""

    def num_restarts(self) -> int:
        """Of any scope."""
        return sum(count for (_, action), count in self.reported.items() if action in (GLOBAL, IN_PLACE))


class Subject:
    """The job that is struck."""

    def __init__(self, job: ClusterJob, operator: OperatorProcess) -> None:
        self.job = job
        self.operator = operator
        self.restarts = 0
        """Those that a test has answered for."""

    def standing(self) -> Standing:
        """As it is now; of every role there is one pod with one rank."""
        status = self.job.status()
        pods = {pod["metadata"]["labels"][LABEL_ROLE]: pod for pod in self.living()}
        return Standing(
            epoch=status["restart"]["epoch"],
            restarts=status["restart"]["globalRestarts"],
            counted=status["restart"]["countedTowardsMax"],
            failures=Counter({row["name"]: row["failures"] for row in status["roles"]}),
            pods={role: pod["metadata"]["uid"] for role, pod in pods.items()},
            ranks={role: self._rank(pod) for role, pod in pods.items()},
            reported=self.reported(),
        )

    def reported(self) -> Counter[tuple[str, str]]:
        """(reason, action) -> how often, until now."""
        reported: Counter[tuple[str, str]] = Counter()
        for event in self.job.events():
            reported[event["reason"], event["action"]] += int(event.get("series", {}).get("count", 1))
        return reported

    def since(self, before: Standing) -> Standing:
        """As it is now, at the end of a test, which answers for the restarts since `before`."""
        now = self.standing()
        self.restarts += now.num_restarts() - before.num_restarts()
        return now

    def living(self) -> list[Object]:
        """Its worker pods, without those that go."""
        return [pod for pod in self.job.pods() if "deletionTimestamp" not in pod["metadata"]]

    def log(self) -> Path:
        """Its sample log."""
        folder = folder_of_claim(self.job.kubectl, checkpoint_claim_name(self.job.name))
        return folder / "samples.jsonl"

    def trained(self) -> int:
        """Lines of its sample log. It only grows: what is trained again after a restart is logged again."""
        path = self.log()
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def train_on(self, steps: int = 2) -> None:
        """Waits until it has trained some more: by then a second restart for the same cause would be seen."""
        goal = self.trained() + steps * ROWS_PER_STEP
        self.wait(f"{steps} more steps", lambda: self.trained() >= goal)

    def wait_ready(self) -> None:
        """Waits until every role is ready, as the operator and the kubelet see it."""

        def ready() -> bool:
            return self.job.is_true("Ready") and all(is_ready(pod) for pod in self.living())

        self.wait("all to be ready", ready)

    def await_reported(self, reason: str, action: str, before: Standing) -> None:
        """Waits until that was reported once more than before."""

        def reported() -> bool:
            now = [event for event in self.job.events(reason) if event["action"] == action]
            return sum(int(e.get("series", {}).get("count", 1)) for e in now) > before.reported[reason, action]

        self.wait(f"event {reason} {action}", reported)

    def wait(self, what: str, observe: Callable[[], bool]) -> None:
        """Waits for the job; the error also has the operator's last message."""
        try:
            self.job.wait(what, observe)
        except AssertionError as error:
            ended = self.operator.exit_code
            state = "runs" if ended is None else f"has ended with {ended}"
            raise AssertionError(f"{error}\nThe operator {state}; its log:\n{self.operator.tail()}") from None

    def _rank(self, pod: Object) -> tuple[int, int]:
        return processes.the(processes.within(pod, "worker"), Kind.RANK).incarnation
