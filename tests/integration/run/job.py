"""Drives a real `rljob run` from outside, as a user with a terminal and a grudge: start, watch, kill, prove.

Every wait has a deadline and says what it waited for and what the run folder said last.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import redis
import yaml

from rljob_api.spec import RLJob
from rljob_cli.jobs.sample_log import AuditReport, audit_run
from rljob_operator.local.memory_folders import memory_paths
from tests.integration.children import die_with_tests
from tests.integration.preloaded.client import Forked, fork_program
from tests.integration.preloaded.image import MARK

POLL_SECONDS = 0.05

HURRY = "hurry"
"""Name of the file that ends a job's leisure."""

LEISURE = f"""
import time
from pathlib import Path

def character_match(answers, /):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not Path(__file__).with_name("{HURRY}").exists():
        time.sleep(0.02)
    return [sum(a == b for a, b in zip(answer.response, answer.label)) / len(answer.label) for answer in answers]
"""


def make_manifest(folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A job that trains in seconds: a tiny model echoes two digits. `changes` are merged into the spec's sections."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{n:02d}=", "label": "{n:02d}"}}\n' for n in range(100)))
    spec: dict[str, Any] = {
        "model": {
            "config": {
                "hiddenSize": 32,
                "intermediateSize": 64,
                "headDim": 8,
                "tokenizer": {"kind": "Character", "alphabet": "0123456789="},
            }
        },
        "data": {"prompts": str(prompts)},
        "algorithm": {"kl": {"coefficient": 0.001}},
        "rollout": {
            "numRollouts": 30,
            "batchSize": 8,
            "samplesPerPrompt": 4,
            "maxStaleness": 1,
            "sampling": {"maxNewTokens": 3},
        },
        "training": {
            "globalBatchSize": 32,
            "microBatchSize": 16,
            "itersPerTrainUpdate": 1,
            "optimizer": {"learningRate": 1e-3},
        },
        "roles": {"reference": {}, "actorFwd": {}, "advantages": {}},
        "checkpoint": {"everySteps": 2},
        "restartPolicy": {"stallTimeoutSeconds": 60},
        "telemetry": {"sampleLog": True},
    }
    for section, values in changes.items():
        spec[section] = {**spec.get(section, {}), **values}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "test"}, "spec": spec}


def make_simulated(folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A job that computes nothing, of 40 rollouts: for tests of what becomes of processes, rows and files.

    All that `audit` proves holds for it, and every row that is trained on changes its weights.
    """
    manifest = make_manifest(folder, **{**changes, "rollout": {"numRollouts": 40, **changes.get("rollout", {})}})
    rollout = manifest["spec"]["roles"].setdefault("rollout", {})
    manifest["spec"]["roles"]["rollout"] = {**rollout, "engine": {"kind": "Sim"}}
    return manifest


def at_leisure(manifest: dict[str, Any], folder: Path, seconds: float = 0.5) -> dict[str, Any]:
    """The same job at one rollout in `seconds`, until the test waits for its end.

    It lasts for what is done to it, on a fast machine too, and costs a slow one no more steps than that takes.
    """
    (folder / "leisure.py").write_text(LEISURE.replace("SECONDS", f"{seconds}"))
    reward = {"custom": {"function": "leisure:character_match", "path": str(folder)}}
    spec = manifest["spec"]
    return {**manifest, "spec": {**spec, "rollout": {**spec["rollout"], "reward": reward}}}


Process = subprocess.Popen[bytes] | Forked


def new_interpreter(arguments: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> Process:
    """`rljob` as a user starts it."""
    command = [sys.executable, "-m", "rljob_cli", *arguments]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output, preexec_fn=die_with_tests)


def preloaded(arguments: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> Process:
    """`rljob`, forked after its imports, and so its coordinator and its parent: those cost most of a start."""
    program = "tests.integration.preloaded.supervised"
    return fork_program(program, arguments, environment=environment, output=output)


class RunningJob:
    """One `rljob run` and its run folder. Use as a context manager: leaving it kills whatever is left."""

    begin = staticmethod(new_interpreter)
    """How a job's supervisor is started; tests of its folder have `preloaded` (`conftest`)."""

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.out = folder / "out"
        self._options = options
        self._file = folder / "job.yaml"
        self.rewrite(manifest)
        self._mark = uuid.uuid4().hex
        self._env = {**os.environ, **(env or {}), MARK: self._mark}
        self._output = (folder / "output.txt").open("ab")
        self.process: Process = self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            _kill(pid, signal.SIGKILL)
        self.process.wait(240)
        self._output.close()
        for path in memory_paths(self.out):
            shutil.rmtree(path, ignore_errors=True)

    def start(self) -> Process:
        """Starts `rljob run` (again), with its leisure where it has one."""
        (self._file.parent / HURRY).unlink(missing_ok=True)
        arguments = ["run", str(self._file), "--out", str(self.out), *self._options]
        self.process = self.begin(arguments, self._env, self._output)
        return self.process

    def rewrite(self, manifest: dict[str, Any]) -> None:
        """Changes the manifest for the next start."""
        self.manifest = RLJob.model_validate(manifest)
        self._file.write_text(yaml.safe_dump(manifest))

    def processes(self) -> list[int]:
        """Every living process of this job, found by the mark in its environment."""
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in _all_pids() if mark in _environment(pid)]

    def output(self) -> str:
        """What the user saw."""
        return (self._file.parent / "output.txt").read_text()

    def status(self) -> dict[str, Any]:
        """`status.json`, or {} before there is one."""
        path = self.out / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def events(self) -> list[dict[str, Any]]:
        """`events.jsonl`."""
        return _json_lines(self.out / "events.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """`metrics.jsonl`."""
        return _json_lines(self.out / "metrics.jsonl")

    def epoch(self) -> int:
        """The epoch in the status."""
        return int(self.status().get("restart", {}).get("epoch", 0))

    def step(self) -> int:
        """Last trained rollout id, -1 before the first."""
        step = self.status().get("training", {}).get("step")
        return -1 if step is None else int(step)

    def pod(self, role: str, replica: int = 0) -> dict[str, Any]:
        """One pod of the status."""
        roles = {row["name"]: row for row in self.status()["roles"]}
        return dict(roles[role]["pods"][replica])

    def rank_pid(self, role: str, replica: int = 0, rank: int = 0) -> int:
        """Pid of a rank of a pod, once it lives: meanwhile the status may name one that a restart has ended."""

        found: list[int] = []

        def incarnations() -> bool:
            found[:] = [row["pid"] for row in self.pod(role, replica)["ranks"] if row["rank"] == rank]
            found[:] = [pid for pid in found if pid and _incarnations(pid)]
            return bool(found)

        self.wait_for(f"a living rank {rank} of {role}-{replica}", incarnations)
        return found[0]

    def infrastructure_pid(self, name: str) -> int:
        """Pid of `coordinator`, `control`, `storage-0`, `parent` ..."""
        return next(int(row["pid"]) for row in self.status()["infrastructure"] if row["name"] == name)

    def infrastructure_restarts(self, name: str) -> int:
        """How often one of them was started again."""
        return next(int(row["restarts"]) for row in self.status()["infrastructure"] if row["name"] == name)

    def control(self) -> redis.Redis:
        """A connection to the control Redis; close it."""
        return redis.Redis.from_url(json.loads((self.out / "endpoints.json").read_bytes())["controlRedis"])

    def write_at_once(self) -> None:
        """What the control Redis answers from now on is in its file: a kill loses nothing of it.

        As it is started it writes nothing while its disk is being synced: killed then, it loses a tail.
        """
        with self.control() as control:
            control.config_set("appendfsync", "no")

    def ready(self) -> bool:
        """Whether every pod of every role is ready."""
        roles = self.status().get("roles", [])
        return bool(roles) and all(pod["ready"] for role in roles for pod in role["pods"])

    def wait_for(self, what: str, true: Callable[[], bool], seconds: float = 240) -> None:
        """Waits until `true`; a job that ends meanwhile is an error unless that makes it true."""
        deadline = time.monotonic() + seconds
        while not true():
            ended = self.process.poll()
            assert ended is None or true(), (
                f"the job ended with {ended} while the test waited for {what}\n{self.stated()}"
            )
            assert time.monotonic() < deadline, f"no {what} within {seconds} s\n{self.stated()}"
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, step: int, seconds: float = 240) -> None:
        """Waits until rollout `step` is trained."""
        self.wait_for(f"step {step}", lambda: self.step() >= step, seconds)

    def wait_for_event(self, reason: str, seconds: float = 240, **fields: str) -> dict[str, Any]:
        """Waits for an event with this reason and these fields; returns it."""

        def found() -> Iterator[dict[str, Any]]:
            for event in self.events():
                if event["reason"] == reason and all(event.get(key) == value for key, value in fields.items()):
                    yield event

        self.wait_for(f"event {reason} {fields}", lambda: any(True for _ in found()), seconds)
        return next(found())

    def wait_gone(self, seconds: float = 240) -> None:
        """Waits until no process of the job is left."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, f"processes {left} outlive their supervisor"
            time.sleep(POLL_SECONDS)

    def finish(self, seconds: float = 480) -> int:
        """Waits for the end, to which the job may hurry from now on; returns the exit code."""
        (self._file.parent / HURRY).touch()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {seconds} s\n{self.stated()}") from None

    def interrupt(self) -> None:
        """Ctrl-C: the command saves and ends with all that it has started, the job still at its leisure."""
        self.process.send_signal(signal.SIGINT)
        self.wait_interrupted()

    def wait_interrupted(self) -> None:
        """Waits for the end of a command that has had its Ctrl-C."""
        try:
            code = self.process.wait(240)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within 240 s of its interrupt\n{self.stated()}") from None
        assert code == 130, f"exit code {code}\n{self.stated()}"
        self.wait_gone()

    def audit(self) -> AuditReport:
        """What the sample log proves of a job that succeeded."""
        spec = self.manifest.spec
        return audit_run(self.out, spec, steps=spec.rollout.num_rollouts)

    def assert_succeeded(self, seconds: float = 480, epochs: int | None = None) -> AuditReport:
        """Ends well, and soon: exit code 0, everything trained exactly once, in so many epochs, nothing left over."""
        code = self.finish(seconds)
        assert code == 0, f"exit code {code}\n{self.stated()}"
        report = self.audit()
        assert report.problems == [], self.stated()
        assert epochs in (None, report.epochs), f"{report.epochs} epochs, not {epochs}\n{self.stated()}"
        self.wait_gone()
        return report

    def refused(self) -> list[str]:
        """Ends soon in its first epoch with exit code 64, nothing left over; gives what it says it cannot work with."""
        code = self.finish()
        assert code == 64, f"exit code {code}\n{self.stated()}"
        self.assert_epoch(1)
        self.wait_gone()
        return [event["message"] for event in self.events() if event["reason"] == "ConfigurationError"]

    def assert_epoch(self, epoch: int) -> None:
        """The job is in this epoch: it was restarted so often and no oftener."""
        assert self.epoch() == epoch, f"epoch {self.epoch()}, not {epoch}\n{self.stated()}"

    def stated(self) -> str:
        events = "\n".join(json.dumps(event) for event in self.events()[-15:])
        logs = "\n".join(f"== {path.name}\n{path.read_text()[-800:]}" for path in sorted(self.out.glob("logs/*.log")))
        return f"{events}\n--- output\n{self.output()[-3000:]}\n--- logs\n{logs[-12000:]}"


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _state(pid: int) -> str:
    """The letter of the process; Z also where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _incarnations(pid: int) -> bool:
    """Whether there is such a process that is more than an exit code."""
    return _state(pid) != "Z"


def _environment(pid: int) -> list[bytes]:
    if not _incarnations(pid):
        return []
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """SIGSTOP: alive, and deaf from when this returns."""
    os.kill(pid, signal.SIGSTOP)
    while _state(pid) not in ("T", "Z"):
        time.sleep(0.001)
