"""A real RLJob on the cluster, driven as its user would: apply, watch, break, prove.

Every wait has a deadline and says what it waited for, what the status says, and how the pods and events look.
"""

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_api.cluster import LABEL_COMPONENT, LABEL_JOB, LABEL_ROLE
from rljob_cli.jobs.sample_log import AuditReport
from tests.cluster.harness import processes
from tests.cluster.harness.kubectl import PATIENCE_SECONDS, Kubectl, Object
from tests.cluster.harness.processes import Kind, Process
from tests.cluster.harness.volumes import audit_job

REWARDS = Path(__file__).parents[1] / "rewards"


def make_job(name: str = "job", **changes: dict[str, Any]) -> Object:
    """A job that trains in seconds: a tiny model reverses digits. `changes` are merged into the spec's sections."""
    spec: dict[str, Any] = {
        "model": {
            "config": {
                "hiddenSize": 32,
                "intermediateSize": 64,
                "headDim": 8,
                "tokenizer": {"kind": "Character", "alphabet": "0123456789="},
            }
        },
        "data": {"prompts": "data/reverse-digits.jsonl"},
        "algorithm": {"kl": {"coefficient": 0.001}},
        "rollout": {
            "numRollouts": 30,
            "batchSize": 8,
            "samplesPerPrompt": 4,
            "maxStaleness": 1,
            "sampling": {"maxNewTokens": 3},
            "reward": {"characterMatch": {}},
        },
        "training": {"globalBatchSize": 32, "microBatchSize": 32, "optimizer": {"learningRate": 1e-3}},
        "roles": {"reference": {}, "actorFwd": {}, "advantages": {}},
        "checkpoint": {"everySteps": 2, "volume": {"size": "1Gi"}},
        "restartPolicy": {"heartbeatTimeoutSeconds": 10, "stallTimeoutSeconds": 120},
        "telemetry": {"sampleLog": True},
    }
    for section, values in changes.items():
        spec[section] = {**spec[section], **values} if isinstance(values, dict) and section in spec else values
    _state_who_computes_on_the_cpu(spec["roles"])
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}


def _state_who_computes_on_the_cpu(roles: dict[str, Any]) -> None:
    """Where any role has GPUs each says it; no node of the tests has an engine that would use them."""
    if not any(role and role.get("gpus") for role in roles.values()):
        return
    for name in ("actor", "rollout", "actorFwd", "reference"):
        if roles.get(name, {}) is not None:
            roles[name] = {"gpus": 0, **roles.get(name, {})}
    roles["rollout"].setdefault("engine", {}).setdefault("kind", "Torch")


_FEW_PODS: dict[str, dict[str, Any]] = {
    "algorithm": {"kl": {"coefficient": 0}},
    "roles": {"reference": None, "actorFwd": None, "advantages": None},
    "transferQueue": {"storageUnits": 1},
}


def make_small_job(name: str = "job", **changes: dict[str, Any]) -> Object:
    """The same with as few pods as a job can have, for tests that look at no role which it lacks."""
    spec: dict[str, Any] = {section: {**few, **changes.get(section, {})} for section, few in _FEW_PODS.items()}
    return make_job(name, **{**changes, **spec})


def leaves_nothing(job: Object) -> Object:
    """The same job, whose checkpoints go with it."""
    checkpoint = job["spec"].setdefault("checkpoint", {})
    checkpoint["volume"] = {**checkpoint.get("volume", {}), "onDelete": "Delete"}
    return job


def slowed(job: Object, reward: str = "slow", folder: Path = REWARDS) -> Object:
    """The same job at one or two steps a second (`slower`: less), by a reward of the tests that takes its time.

    `folder` has `slow.py`: a copy of it, where a test opens the gate of `gated`.
    """
    spec = job["spec"]
    custom = {"custom": {"function": f"slow:{reward}", "path": str(folder)}}
    mount = {"name": "rewards", "mountPath": str(folder), "readOnly": True}
    template = {
        "spec": {
            "containers": [{"name": "worker", "volumeMounts": [mount]}],
            "volumes": [{"name": "rewards", "hostPath": {"path": str(folder), "type": "Directory"}}],
        }
    }
    roles = {**spec["roles"], "rollout": {**spec["roles"].get("rollout", {}), "template": template}}
    return {**job, "spec": {**spec, "rollout": {**spec["rollout"], "reward": custom}, "roles": roles}}


@contextmanager
def gated_rewards() -> Iterator[Path]:
    """A folder with a reward that is slow until there is a file `go`; pods run as another user, and read it."""
    with tempfile.TemporaryDirectory(prefix="rljob-gate-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(REWARDS / "slow.py", folder)
        yield folder


class ClusterJob:
    """One RLJob in one namespace."""

    def __init__(self, kubectl: Kubectl, manifest: Object) -> None:
        """`apply` makes it."""
        self.kubectl = kubectl
        self.name: str = manifest["metadata"]["name"]
        self.manifest = manifest

    def apply(self) -> "ClusterJob":
        """As `kubectl apply`."""
        self.kubectl.apply(self.manifest)
        return self

    def change(self, patch: Object) -> None:
        """Merges a patch into the spec."""
        self.kubectl.merge("rljob", self.name, {"spec": patch})

    def object(self) -> Object:
        """The resource as it is."""
        found = self.kubectl.get("rljob", self.name)
        assert found is not None, f"there is no RLJob {self.name} in {self.kubectl.namespace}"
        return found

    def status(self) -> Object:
        """Its status, {} before there is one."""
        status: Object = self.object().get("status", {})
        return status

    def is_true(self, condition: str) -> bool:
        """Whether a condition is true."""
        return self.condition(condition).get("status") == "True"

    def condition(self, kind: str) -> Object:
        """A condition as it is, {} before there is one."""
        found: list[Object] = self.status().get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def epoch(self) -> int:
        """The epoch in the status."""
        return int(self.status().get("restart", {}).get("epoch", 0))

    def step(self) -> int:
        """Last trained rollout id that the status reports (up to 15 s late), -1 before the first."""
        step = self.status().get("training", {}).get("step")
        return -1 if step is None else int(step)

    def wait(self, what: str, observe: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits until `look` says so; the error also has the status."""

        def checked() -> bool:
            if observe():
                return True
            ended = [kind for kind in ("Succeeded", "Failed") if self.is_true(kind)]
            assert not ended or observe(), (
                f"{self.name} has {ended[0]} while the test waited for {what}: {self.summary()}"
            )
            return False

        try:
            self.kubectl.wait(f"{self.name}: {what}", checked, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.summary()}") from None

    def wait_true(self, condition: str, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for a condition."""
        self.wait(f"condition {condition}", lambda: self.is_true(condition), seconds=seconds)

    def wait_step(self, step: int, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits until the status says that rollout `step` is trained."""
        self.wait(f"step {step}", lambda: self.step() >= step, seconds=seconds)

    def wait_seen(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits until the operator has looked at the newest spec, and said so."""
        generation = self.object()["metadata"]["generation"]
        self.wait(
            f"generation {generation} to be seen",
            lambda: self.status().get("observedGeneration", 0) >= generation,
            seconds=seconds,
        )

    def wait_epoch_ready(self, epoch: int, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits until all roles are ready in this epoch or a later one."""
        self.wait(f"Ready in epoch {epoch}", lambda: self.epoch() >= epoch and self.is_true("Ready"), seconds=seconds)

    def events(self, reason: str | None = None) -> list[Object]:
        """The operator's events about this job, oldest first."""
        found = self.kubectl.all("events.events.k8s.io")
        ours = [
            e for e in found if e.get("regarding", {}).get("kind") == "RLJob" and e["regarding"]["name"] == self.name
        ]
        picked = [event for event in ours if reason is None or event["reason"] == reason]
        return sorted(picked, key=lambda event: event.get("eventTime") or "")

    def wait_event(self, reason: str, count: int = 1, *, seconds: float = PATIENCE_SECONDS) -> Object:
        """Waits for the count-th event with this reason; returns the newest."""

        def reported() -> bool:
            return sum(int(e.get("series", {}).get("count", 1)) for e in self.events(reason)) >= count

        self.wait(f"{count} events {reason}", reported, seconds=seconds)
        return self.events(reason)[-1]

    def pods(self, component: str = "worker", role: str | None = None) -> list[Object]:
        """Its pods."""
        selector = f"{LABEL_JOB}={self.name},{LABEL_COMPONENT}={component}"
        return self.kubectl.all("pods", selector + (f",{LABEL_ROLE}={role}" if role else ""))

    def pod_of(self, role: str, replica: int = 0) -> str:
        """Name of the pod that the status counts on as this replica."""
        roles = {row["name"]: row for row in self.status()["roles"]}
        uid = roles[role]["pods"][replica].get("life", "").partition("/")[0]
        names = [pod["metadata"]["name"] for pod in self.pods(role=role) if pod["metadata"]["uid"] == uid]
        assert names, f"{role}-{replica} has no pod: {self.summary()}"
        return str(names[0])

    def process(self, role: str, kind: Kind = Kind.RANK, replica: int = 0) -> Process:
        """A process of a replica, as this machine sees it, once it is there: its launcher may be about to begin it."""

        def found() -> Process | None:
            running = processes.of_container(self.kubectl, self.pod_of(role, replica), "worker")
            return next((one for one in running if one.kind is kind and one.number == 0), None)

        return self.kubectl.wait(f"the {kind} of {role}-{replica}", found)

    def standing(self, *, without: str = "") -> dict[str, Any]:
        """The epoch, and of every replica (but one) its pod's incarnation, its order and its rank, as this machine sees
        it."""
        status = self.status()
        replicas = {
            pod["name"]: (pod["life"], pod["generation"], self.process(role["name"], replica=number).incarnation)
            for role in status["roles"]
            for number, pod in enumerate(role["pods"])
            if pod["name"] != without
        }
        return {"epoch": status["restart"]["epoch"], **replicas}

    def infrastructure(self, component: str, number: int = 0) -> Process:
        """The first process of the coordinator, of the control Redis, or of storage unit `number`."""
        names = sorted(pod["metadata"]["name"] for pod in self.pods(component))
        container = "coordinator" if component == "coordinator" else "redis"
        return processes.the(processes.of_container(self.kubectl, names[number], container), Kind.FIRST)

    def restart_request(self, role: str | None = None) -> str:
        """Asks for a restart in the spec; returns its id."""
        identity = uuid.uuid4().hex[:12]
        self.change({"restartRequest": {"id": identity, "role": role, "reason": "a test wants it"}})
        return identity

    def audit(self) -> AuditReport:
        """What the sample log proves."""
        return audit_job(self.kubectl, self.name)

    def assert_succeeded(self, *, seconds: float = PATIENCE_SECONDS) -> AuditReport:
        """Waits for success and proves that every sample was trained exactly once."""
        self.wait_true("Succeeded", seconds=seconds)
        report = self.audit()
        assert report.problems == [], f"{report.problems[:10]}\n{self.summary()}"
        return report

    def summary(self) -> str:
        """Status, events and last log lines, for an error."""
        status = json.dumps({**self.status(), "roles": [self._short(row) for row in self.status().get("roles", [])]})
        reported = "\n".join(
            f"{event.get('eventTime')} {event['reason']}: {event.get('note', '')[:300]}"
            for event in self.events()[-20:]
        )
        logs = [
            f"== {pod['metadata']['name']}\n{self._log(pod['metadata']['name'])}"
            for component in ("worker", "coordinator")
            for pod in self.pods(component)
        ]
        return f"status: {status}\nevents:\n{reported}\nlogs:\n" + "\n".join(logs)

    def _short(self, row: Object) -> Object:
        return {
            "name": row["name"],
            "pods": [{k: p.get(k) for k in ("life", "ready", "generation")} for p in row["pods"]],
        }

    def _log(self, pod: str) -> str:
        try:
            return self.kubectl("logs", pod, "--tail=12", "--all-containers")
        except AssertionError as error:
            return str(error)
