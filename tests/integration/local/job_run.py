"""A real `rljob run` of a tiny job in a process of its own, and what a test may do to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

DEADLINE_SECONDS = 90.0
"""For one thing to happen on a machine that runs other tests as well; no test asserts on how long it took."""


def make_manifest(folder: Path, **spec: Any) -> Path:
    """A job that a laptop trains in seconds; `spec` overrides fields of its spec by dotted name with `__`."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{n}=", "label": "{str(n)[::-1]}"}}\n' for n in range(100, 200)))
    config = {
        "numLayers": 1,
        "hiddenSize": 32,
        "intermediateSize": 64,
        "numAttentionHeads": 2,
        "numKeyValueHeads": 1,
        "headDim": 16,
        "maxPositionEmbeddings": 64,
        "tokenizer": {"kind": "Character", "alphabet": "0123456789="},
    }
    job: dict[str, Any] = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"config": config},
            "data": {"prompts": str(prompts)},
            "rollout": {"numRollouts": 5, "batchSize": 4, "samplesPerPrompt": 4, "sampling": {"maxNewTokens": 4}},
            "training": {"globalBatchSize": 16, "microBatchSize": 16},
            "roles": {"reference": {}},
        },
    }
    for name, value in spec.items():
        *path, last = name.split("__")
        place = job["spec"]
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    manifest = folder / "job.yaml"
    manifest.write_text(json.dumps(job))
    return manifest


class JobRun:
    """One `rljob run`. Kills only what it started."""

    def __init__(
        self, manifest: Path, out: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts it."""
        self.out = out
        self._log = (out.parent / f"{out.name}.output").open("ab")
        argv = [
            sys.executable,
            "-c",
            "from rljob_cli.main import main; main()",
            "run",
            str(manifest),
            "--out",
            str(out),
        ]
        self.process = subprocess.Popen(
            [*argv, *options],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def status(self) -> dict[str, Any]:
        """The status, as last written."""
        file = self.out / "status.json"
        return orjson.loads(file.read_bytes()) if file.exists() else {}

    def events(self, reason: str | None = None) -> list[dict[str, Any]]:
        """Decisions so far."""
        return [line for line in self._lines("events.jsonl") if reason in (None, line["reason"])]

    def restarts(self) -> list[tuple[str, str, str]]:
        """Reason, role and scope of every restart so far."""
        return [(line["reason"], line["role"], line["scope"]) for line in self.events() if line["scope"]]

    def steps(self) -> list[int]:
        """Steps of metrics.jsonl in their order."""
        return [line["step"] for line in self._lines("metrics.jsonl")]

    def output(self) -> str:
        """What the user saw."""
        return (self.out.parent / f"{self.out.name}.output").read_text()

    def wait_until(self, what: str, happened: Callable[[], bool]) -> None:
        """Waits; fails with the name of what did not happen."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not happened():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.output()[-3000:]}"
            assert time.monotonic() < deadline, f"not in {DEADLINE_SECONDS:.0f} s: {what}\n{self.output()[-3000:]}"
            time.sleep(0.02)

    def wait_for_step(self, more: int = 1) -> None:
        """Waits for so many further trained steps."""
        now = len(self.steps())
        self.wait_until(f"{more} more steps", lambda: len(self.steps()) >= now + more)

    def wait(self) -> int:
        """Waits for its end."""
        return self.process.wait(DEADLINE_SECONDS)

    def pod(self, name: str) -> dict[str, Any]:
        """A pod of the status."""
        return next(pod for role in self.status()["roles"] for pod in role["pods"] if pod["name"] == name)

    def pids(self) -> set[int]:
        """Every process that the status names, and the run itself."""
        status = self.status()
        found = {process["pid"] for process in status.get("infrastructure", [])}
        for role in status.get("roles", []):
            for pod in role["pods"]:
                found |= {pod["launcherPid"], pod["enginePid"], *(rank["pid"] for rank in pod["ranks"])}
        return {pid for pid in found if pid is not None}

    def infrastructure_pid(self, name: str) -> int:
        """Of one infrastructure process."""
        return next(process["pid"] for process in self.status()["infrastructure"] if process["name"] == name)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Kills it if it still runs; its children die with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _lines(self, name: str) -> list[dict[str, Any]]:
        file = self.out / name
        text = file.read_bytes() if file.exists() else b""
        return [orjson.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n") and line.strip()]


def is_running(pid: int) -> bool:
    """Whether the process is there and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: set[int]) -> bool:
    """Whether none of these runs; waits a moment for the kernel."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """A signal to a process of the run."""
    os.kill(pid, number)
