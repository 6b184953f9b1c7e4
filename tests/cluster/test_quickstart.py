"""The way of a user from install to success, and what a running job sees of an operator that changes, dies or goes."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.cluster import LABEL_JOB
from tests.cluster.chart.helm import CHART, helm
from tests.cluster.chart.release import Release
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY
from tests.cluster.harness.rljob import ClusterJob, gated_rewards, make_small_job, slowed
from tests.cluster.harness.volumes import trained_steps
from tests.integration.children import die_with_tests

PAGE = REPOSITORY / "docs/kubernetes.md"
pytestmark = pytest.mark.timeout(1500)
COLUMNS = ["NAME", "PHASE", "READY", "STEP", "REWARD", "RESTARTS", "REASON", "AGE"]
WORKLOADS = "deployments,statefulsets"
SECONDS = 600.0
"""Of a machine that does other things besides."""


@pytest.fixture
def gate() -> Iterator[Path]:
    with gated_rewards() as folder:
        yield folder


def test_the_quickstart_succeeds_by_the_commands_of_its_page(
    kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    apply, watch, *others = _commands_of_the_page()
    release.install()
    with Watching(kubectl, tmp_path / "watch.txt", watch) as watching:
        kubectl(*apply)
        kubectl("wait", "--for=create", "deployment/quickstart-rollout", "--timeout=5m", seconds=SECONDS)
        for command in others:
            kubectl(*command, seconds=SECONDS)
        kubectl.wait("the watch to show the end", lambda: watching.shows("Succeeded"))

    header, row = kubectl("get", "rlj", "quickstart").splitlines()
    assert header.split() == COLUMNS
    # A job that has ended has no condition Ready: its column is empty, and columns begin where their heads do.
    ends = [*(header.index(column) for column in COLUMNS[1:]), len(row)]
    shown = {column: row[header.index(column) : end].strip() for column, end in zip(COLUMNS, ends, strict=True)}
    assert shown | {"AGE": "", "REWARD": ""} == {
        "NAME": "quickstart",
        "PHASE": "Succeeded",
        "READY": "",
        "STEP": "239",
        "REWARD": "",
        "RESTARTS": "0",
        "REASON": "Succeeded",
        "AGE": "",
    }
    assert re.fullmatch(r"1|0\.\d{1,4}", shown["REWARD"])
    assert float(shown["REWARD"]) > 0.9
    assert watching.phases()[-1] == "Succeeded"
    # An event comes after the status that it reports.
    kubectl.wait("the event Succeeded", lambda: "all 240 rollouts are trained" in kubectl(*others[-1]))
    reported = kubectl(*others[-1]).partition("\nEvents:\n")[2]
    reasons = re.findall(r"^  \w+ +(Accepted|Ready|Succeeded) ", reported, re.MULTILINE)
    # It is Ready more than once where a busy machine lets a probe of its infrastructure wait.
    assert list(dict.fromkeys(reasons)) == ["Accepted", "Ready", "Succeeded"]
    _shows_its_logs_after_its_end(kubectl)


def _shows_its_logs_after_its_end(kubectl: Kubectl) -> None:
    """Nothing of it runs any more; a pod that lives for seconds reads its volume, and is gone then."""
    kubectl.wait("its pods to go", lambda: not kubectl.all("pods", f"{LABEL_JOB}=quickstart"))

    def is_empty() -> bool:
        job = kubectl.get("rlj", "quickstart")
        assert job is not None
        roles = [(role["replicas"], role["ready"], role.get("pods", [])) for role in job["status"]["roles"]]
        return roles == [(0, 0, [])] * len(roles) and job["status"]["scaling"]["replicas"] == 0

    kubectl.wait("the status to list no pods", is_empty)
    command = [sys.executable, "-m", "rljob_cli", "logs", "quickstart", "--role", "actor", "-n", kubectl.namespace]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": kubectl.kubeconfig},
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("==> actor-0.0 <==\n")
    assert not kubectl.all("pods", "rljob.dev/logs-of=quickstart")


@pytest.mark.long
def test_a_running_job_does_not_notice_what_becomes_of_its_operator(
    kubectl: Kubectl, release: Release, gate: Path, tmp_path: Path
) -> None:
    pods = release.install()
    # It is to outlast all that is done to the operator, and no rank is to be called hung while others have the machine.
    manifest = make_small_job(rollout={"numRollouts": 600}, restartPolicy={"heartbeatTimeoutSeconds": 60})
    job = ClusterJob(kubectl, slowed(manifest, "gated", gate)).apply()
    job.wait_step(0, seconds=SECONDS)
    before = _made(kubectl)
    _look_at_its_queue(job)
    assert _made(kubectl) == before

    helm("package", str(CHART), "--version", "9.9.9", "--app-version", "9.9.9", "--destination", str(tmp_path))
    # The last change makes another template of every pod: it is for jobs to come.
    changes = ("concurrency=8", "workloads.terminationGraceSeconds=6")
    newer = release.upgrade(*changes, chart=tmp_path / "rljob-operator-9.9.9.tgz")
    assert not newer & pods
    leader = release.wait_for_leader(newer)
    _trains_on(job)
    assert _made(kubectl) == before

    kubectl.delete("pod", leader, force=True)
    release.wait_for_leader_after(leader)
    _trains_on(job)
    assert _made(kubectl) == before

    release.uninstall()
    assert kubectl.get("customresourcedefinition", "rljobs.rljob.dev")
    _trains_on(job)
    assert _made(kubectl) == before

    release.install()
    seen = job.step()
    job.wait_step(seen + 1)
    assert _made(kubectl) == before
    assert (job.epoch(), job.status()["restart"]["globalRestarts"]) == (1, 0)
    (gate / "go").touch()
    job.assert_succeeded(seconds=SECONDS)


class Watching:
    """`kubectl get rlj -w`, left open."""

    def __init__(self, kubectl: Kubectl, output: Path, arguments: list[str]) -> None:
        self._command = ["kubectl", "--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace, *arguments]
        self._output = output

    def __enter__(self) -> "Watching":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(120)

    def _start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, preexec_fn=die_with_tests)

    def shows(self, text: str) -> bool:
        """Whether it does by now. Another begins where the API server has ended it, as when a definition changes."""
        if self._process.poll() is not None:
            self._start()
        return text in self._output.read_text()

    def phases(self) -> list[str]:
        """The phases that it showed, each once; of the first line, before there is a status, none."""
        text = re.findall(r"^quickstart +([A-Z][a-z]+) ", self._output.read_text(), re.MULTILINE)
        return list(dict.fromkeys(text))


def _trains_on(job: ClusterJob) -> None:
    """By its sample log, since the status is the operator's."""
    done = trained_steps(job.kubectl, job.name)
    job.kubectl.wait("another step to be trained", lambda: trained_steps(job.kubectl, job.name) > done)


def _look_at_its_queue(job: ClusterJob) -> None:
    """By its name, through the API server: proven, drained, and given tickets again."""

    def queue(command: str, *options: str) -> Object:
        arguments = ["queue", command, job.name, "-n", job.kubectl.namespace, "--output", "json", *options]
        env = {**os.environ, "KUBECONFIG": job.kubectl.kubeconfig}
        done = subprocess.run(
            [sys.executable, "-m", "rljob_cli", *arguments], capture_output=True, text=True, env=env, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr
        found: Object = json.loads(done.stdout.splitlines()[-1])
        return found

    assert queue("check")["holds"]
    assert queue("drain", "--timeout", "500") == {"kind": "result", "drained": True}
    stats = queue("stats")
    assert (stats["job"], stats["ticketsInWork"], stats["withheld"]) == (job.name, 0, "Draining")
    # Each is asked again and again, and one that is late is reported until then.
    job.wait("all units to answer", lambda: all(unit["answers"] for unit in queue("stats")["units"]))
    assert queue("drain", "--off") == {"kind": "result", "tickets": "Give"}


def _commands_of_the_page() -> list[list[str]]:
    """What it advises to do with the quickstart: the very file that `rljob run` takes."""
    section = PAGE.read_text().partition("\n## A job\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^\$ kubectl (.+)$", section, re.MULTILINE)
    return [shlex.split(line.replace("examples/", f"{REPOSITORY}/examples/")) for line in shown]


def _made(kubectl: Kubectl) -> Object:
    """What changes when a pod or a template of the job is touched: the pods that live, the generations of the rest."""
    incarnations = {}
    for pod in kubectl.all("pods", LABEL_JOB):
        counts = [status["restartCount"] for status in pod["status"].get("containerStatuses", [])]
        incarnations[pod["metadata"]["name"]] = (pod["metadata"]["uid"], counts)
    generations = {
        (each["kind"], each["metadata"]["name"]): each["metadata"]["generation"]
        for each in kubectl.all(WORKLOADS, LABEL_JOB)
    }
    return {"pods": incarnations, "generations": generations}
