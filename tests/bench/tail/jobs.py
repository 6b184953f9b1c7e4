"""The two jobs of this benchmark, what varies in them, and their runs.

A job is a manifest and overrides; each run is a process of `rljob run`, as a user starts it, and prints its steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_api.spec import RLJobSpec
from tests.bench.tail.figures import Step, possible_rate
from tests.bench.tail.tail_model import LogNormal, write_tail_model

ROOT = Path(__file__).parents[3]
RUN_SECONDS = 3600
"""Longer than any run here takes; a run beyond it is killed and named."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "Bound": {"order": "Bound"},
    "Swap": {"order": "Swap"},
    "Swap, partial": {"order": "Swap", "partial": {}},
    "Swap, partial, overSampling 1.25": {"order": "Swap", "partial": {}, "overSampling": 1.25},
    "Swap, partial, overSampling 2.0": {"order": "Swap", "partial": {}, "overSampling": 2.0},
}
"""What each sets in `spec.rollout`."""

Manifest = dict[str, Any]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One half of the benchmark."""

    manifest: Manifest
    possible: float | None
    """Samples per second, at most; None: not known."""

    def varied(self, variant: str, max_staleness: int, num_rollouts: int) -> Manifest:
        """The job of one run."""
        spec = self.manifest["spec"]
        rollout = {**spec["rollout"], "numRollouts": num_rollouts, "maxStaleness": max_staleness, **VARIANTS[variant]}
        return {**self.manifest, "spec": {**spec, "rollout": rollout}}


def simulated_job(seconds_per_step: float) -> Job:
    """A step of the engines without idle slots takes so many seconds here; it stands for a minute."""
    manifest = _read(Path(__file__).with_name("simulated.yaml"))
    simulation = {**manifest["spec"]["simulation"], "speed": 60 / seconds_per_step}
    manifest["spec"]["simulation"] = simulation
    spec = RLJobSpec.model_validate(manifest["spec"])
    assert spec.simulation is not None
    assert spec.simulation.slots is not None
    assert spec.simulation.lengths is not None
    lengths, speed = LogNormal(spec.simulation.lengths.mean, spec.simulation.lengths.sigma), spec.simulation.speed
    possible = possible_rate(
        slots=spec.simulation.slots * spec.roles.rollout.replicas,
        tokens_per_second=speed / spec.simulation.generation.seconds_per_token,
        # Simulated lengths are rounded, those of LogNormal rounded up.
        mean_length=lengths.mean_cut_at(spec.rollout.sampling.max_new_tokens) - 0.5,
        trained_per_second=speed / spec.simulation.training.seconds_per_row,
    )
    return Job(manifest, possible)


@contextmanager
def engines_job() -> Iterator[Job]:
    """Engines and trainer as they are, on a tiny model that answers the quickstart's prompts with a long tail."""
    manifest = _read(ROOT / "tests" / "bench" / "long_tail.yaml")
    spec = manifest["spec"]
    spec["model"]["config"] |= {"maxPositionEmbeddings": 2048, "tieWordEmbeddings": False}
    spec["rollout"] |= {"samplesPerPrompt": 8}
    spec["rollout"]["sampling"]["maxNewTokens"] = longest = 1024
    spec["training"] |= {"globalBatchSize": 256, "microBatchSize": 64}
    del spec["algorithm"]["kl"], spec["roles"]["reference"]  # two cores have enough to do
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        model = RLJobSpec.model_validate(spec).model
        write_tail_model(Path(folder), model, LogNormal(64, 1.0), longest)
        spec["model"] = {"path": folder}
        yield Job(manifest, None)


def _read(file: Path) -> Manifest:
    manifest: Manifest = yaml.safe_load(file.read_text())
    data = manifest["spec"]["data"]
    data["prompts"] = str((file.parent / data["prompts"]).resolve())
    return manifest


def run_job(manifest: Manifest, report: Report) -> list[Step]:
    """Its steps, each reported as it is trained. Exits with what the job has printed, where it fails."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(manifest))
        command = [sys.executable, "-m", "rljob_cli", "run", str(file), "--out", f"{folder}/out", "--output", "json"]
        steps: dict[int, Step] = {}
        for line in _lines_of(command):
            found = json.loads(line) if line.startswith("{") else {}
            if found.get("kind") == "step":
                steps[found["step"]] = found
                report(f"step {len(steps)} of {manifest['spec']['rollout']['numRollouts']}")
        return [steps[number] for number in sorted(steps)]


def run_trl(manifest: Manifest, steps: int, report: Report) -> list[Step]:
    """The same model, prompts, batch and loss, trained by TRL's GRPOTrainer."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(manifest))
        threads = str(os.cpu_count() or 1)
        command = [sys.executable, "-m", "tests.bench.trl_grpo", str(file), "--steps", str(steps), "--threads", threads]
        found: list[Step] = []
        for line in _lines_of(command):
            if line.startswith('{"step"'):  # TRL prints lines of its own
                found.append(json.loads(line))
                report(f"step {len(found)} of {steps}")
        return found


def _lines_of(command: list[str]) -> Iterator[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                yield line
            code = process.wait(RUN_SECONDS)
        finally:
            process.terminate()
            process.wait(60)
        if code != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(command)} ended with {code}:\n{''.join(lines)[-2000:]}\n{errors.read()[-4000:]}")
