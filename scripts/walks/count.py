"""Counts the distinct files, and the distinct calls between two files, on four ways through the code.

    scripts/count-walks                    the figures of this checkout
    scripts/count-walks --pairs weight     and of one of the ways which file calls which, with the number of calls
    scripts/count-walks --output json

One job of one prompt and two samples a rollout runs with a tracer in each of its processes; a rank of the reference is
killed while it trains, then one of the actor. A way is what begins at one of its roots, without what it merely passes
(heartbeats, the timeline). tests/ratchets.toml holds the figures as a budget. A root that no process calls
any more is an error: correct the tables below after a rename.
"""

# ruff: noqa: T201 -- it prints what it found

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("crds", "operator", "cli", "workers")
LIMIT_SECONDS = 240.0
"""For each wait: a traced job takes minutes on a machine that runs other jobs beside it."""
STEPS_BEFORE = 20
"""Optimizer steps before the first kill: a sample and a weight are looked at in steps without a fault."""
STEPS_BETWEEN = 10
SETTLED_SECONDS = 0.5
"""From the first traced step on, first calls of lazily made parts are over."""

SAMPLE_ROOTS = (
    "GenerateStage.run", "ScoreStage.run", "HttpApi", "ModelLoop._run", "RolloutLoop._claim", "RolloutLoop._collect",
    "RolloutLoop._put", "RolloutLoop._begin", "RolloutLoop._settle", "serve_partitions", "ActorLoop._train_rollout",
)  # fmt: skip
SAMPLE_PASSES = (
    "RankSession.pulse", "RankSession.advance", "RankSession._beat", "Timeline", ".span", "LostTime", "Exports.",
    "Leader.report", "sync_samples", "update_weights", "WeightFollower", "WeightProof", "/abort", "health",
)  # fmt: skip
WEIGHT_ROOTS = (
    "Exports.publish", "stage_weights", "ChunkServer", "WeightFollower", "update_weights", "ContinuousBatching.update",
    "coordinator/weights.py",
)  # fmt: skip
WEIGHT_PASSES = (
    "RankSession.pulse", "RankSession.advance", "RankSession._beat", "Timeline", ".span", "beat", "Beat", "health",
    "HotRoutes._poll", "Launchers",
)  # fmt: skip
RESTART_PASSES = ("Timeline", ".span", "LiveView", "local/view.py", "local/live_view.py")
COORDINATOR_PASSES = (
    "beat", "Beat", "coordinator/weights.py", "report_step", "steps", "checkpoint", "Checkpoint", "QueueMetrics",
    "queue_metrics", "demand", "Demand", "HeldWork", "upkeep", "sweep", "Sweep", "StorageCare", "background_care",
    "metrics.py",
)  # fmt: skip
RANK_PASSES = ("serve_partitions", "_train_rollout")
RANK_BODY = "ranks.py:live"
"""Below it everything is a rank's; a launcher never calls it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call from one file into another, and all frames of ours above it, the callee first."""

    time: float
    pid: int
    frames: tuple[str, ...]

    @property
    def chain(self) -> str:
        """The frames as one text, to look for names in."""
        return " ".join(self.frames)


@dataclass
class Walk:
    """What was passed on one way."""

    files: set[str] = field(default_factory=set)
    calls: set[tuple[str, str]] = field(default_factory=set)

    def add(self, call: Call) -> None:
        """Counts the file that is called; a call counts if it was made by a file of ours."""
        callee, *above = call.frames
        self.files.add(callee.partition(":")[0])
        if above:
            self.files.add(above[0].partition(":")[0])
            self.calls.add((above[0], callee))


def main() -> None:
    """Runs the job, counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", metavar="WAY", choices=["sample", "weight", "reference", "actor"])
    parser.add_argument("--output", choices=["text", "json"], default="text")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rljob-walks-") as folder:
        walks = count(Path(folder), report=lambda text: print(text, file=sys.stderr, flush=True))
    figures = {name: {"files": len(walk.files), "calls": len(walk.calls)} for name, walk in walks.items()}
    if asked.output == "json":
        print(json.dumps(figures))
        return
    for name, found in figures.items():
        print(f"{name:10} {found['files']:4} files {found['calls']:4} calls between files")
    if asked.pairs:
        pairs = Counter(
            (above.partition(":")[0], callee.partition(":")[0]) for above, callee in walks[asked.pairs].calls
        )
        for (above, callee), calls in pairs.most_common():
            print(f"{calls:4} {above} -> {callee}")


def count(folder: Path, report: Callable[[str], None]) -> dict[str, Walk]:
    """The four ways of one job that runs in `folder`. RuntimeError if the job or a root of a way is not as expected."""
    traces, run = folder / "traces", folder / "run"
    traces.mkdir()
    report("count-walks: a traced job trains, and two of its ranks are killed (half a minute)")
    kills = _run_job(_manifest(folder), run, traces)
    calls = [call for file in sorted(traces.glob("*.log")) for call in _read(file)]
    begun = min(call.time for call in calls if "_train_rollout" in call.chain) + SETTLED_SECONDS
    quiet = [call for call in calls if begun <= call.time <= kills[0][1]]
    return {
        "sample": _way(quiet, SAMPLE_ROOTS, SAMPLE_PASSES),
        "weight": _way(quiet, WEIGHT_ROOTS, WEIGHT_PASSES),
        **{role: _restart(traces, calls, role, killed, ready) for role, killed, ready in kills},
    }


def _manifest(folder: Path) -> Path:
    job = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    spec = job["spec"]
    spec["data"]["prompts"] = str(ROOT / "examples" / spec["data"]["prompts"])
    spec["rollout"] |= {"numRollouts": 100_000, "batchSize": 1, "samplesPerPrompt": 2}
    spec["training"] |= {"globalBatchSize": 2, "microBatchSize": 2}
    spec["roles"].pop("actorFwd", None)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def _run_job(manifest: Path, run: Path, traces: Path) -> list[tuple[str, float, float]]:
    """Role, time of the kill, time at which every role was ready again."""
    path = [str(ROOT / "scripts/walks/tracer"), *(str(ROOT / name) for name in PACKAGES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "WALKS": str(traces)}
    command = [sys.executable, "-m", "rljob_cli", "run", str(manifest), "--out", str(run)]
    with (run.parent / "output").open("w") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            return [_kill(run, "reference", STEPS_BEFORE, job), _kill(run, "actor", STEPS_BETWEEN, job)]
        finally:
            job.send_signal(signal.SIGINT)
            try:
                job.wait(30)
            except subprocess.TimeoutExpired:
                job.kill()


def _kill(run: Path, role: str, steps: int, job: subprocess.Popen[bytes]) -> tuple[str, float, float]:
    until = _num_steps(run) + steps
    _wait(f"step {until}", lambda: _num_steps(run) >= until, run, job)
    killed = time.time()
    os.kill(_pid_of(run, role), signal.SIGKILL)
    _wait(f"the restart of {role}", lambda: _ready_after(run, killed) is not None, run, job)
    ready = _ready_after(run, killed)
    assert ready is not None
    return role, killed, ready


def _wait(what: str, found: Callable[[], bool], run: Path, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not found():
        if job.poll() is not None or time.monotonic() > deadline:
            output = (run.parent / "output").read_text()[-2000:]
            raise RuntimeError(
                f"count-walks: {what} did not come within {LIMIT_SECONDS:.0f} s; the job's output ends with:\n{output}"
            )
        time.sleep(0.1)


def _num_steps(run: Path) -> int:
    trained = run / "metrics.jsonl"
    return len(trained.read_text().splitlines()) if trained.exists() else 0


def _pid_of(run: Path, role: str) -> int:
    status = json.loads((run / "status.json").read_text())
    (pods,) = [each["pods"] for each in status["roles"] if each["name"] == role]
    return int(pods[0]["ranks"][0]["pid"])


def _ready_after(run: Path, killed: float) -> float | None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    times = [datetime.fromisoformat(each["time"]).timestamp() for each in events if each["reason"] == "Ready"]
    return next((ready for ready in times if ready > killed), None)


def _read(file: Path) -> Iterator[Call]:
    for line in file.read_text(errors="replace").splitlines():
        parts = line.split("\t")
        if len(parts) >= 3:  # a killed process may have left half a line
            yield Call(float(parts[0]), int(file.stem), tuple(parts[2:]))


def _way(calls: Sequence[Call], roots: Sequence[str], passes: Sequence[str]) -> Walk:
    walk = Walk()
    missing = set(roots)
    for call in calls:
        chain = call.chain
        begun = [root for root in roots if root in chain]
        missing.difference_update(begun)
        if begun and not any(each in chain for each in passes):
            walk.add(call)
    if missing:
        raise RuntimeError(
            f"count-walks: no process calls {', '.join(sorted(missing))}: correct scripts/walks/count.py"
        )
    return walk


def _restart(traces: Path, calls: Sequence[Call], role: str, killed: float, ready: float) -> Walk:
    """From the kill until every role is ready: supervisor, coordinator, launchers, and the new ranks of the role."""
    arguments = {int(file.stem): file.read_text(errors="replace").partition("\n")[0] for file in traces.glob("*.log")}
    ranks = {call.pid for call in calls if RANK_BODY in call.chain}
    new = {call.pid for call in calls if f"run_{role}" in call.chain} - {
        call.pid for call in calls if call.time < killed
    }
    if not new:
        raise RuntimeError(f"count-walks: no new rank calls run_{role}: correct scripts/walks/count.py")
    walk = Walk()
    for call in calls:
        chain = call.chain
        if not killed <= call.time <= ready or any(each in chain for each in RESTART_PASSES):
            continue
        if "dcs/coordinator" in arguments[call.pid]:
            passed = any(each in chain for each in COORDINATOR_PASSES)
        elif call.pid in ranks:
            passed = call.pid not in new or any(each in chain for each in RANK_PASSES)
        else:
            passed = "torch_engine" in chain
        if not passed:
            walk.add(call)
    return walk


if __name__ == "__main__":
    main()
