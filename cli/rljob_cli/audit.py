"""Proves from `samples.jsonl` that every sample was trained exactly once and within its staleness bound.

Pure but for reading the file. Called by `rljob audit` and by the tests that kill things.

In what remains of the log without the lines that a later epoch has voided (`step_log`) every (partition, group, index)
must stand once per pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_cli.step_log import surviving, whole_lines

MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One line of `samples.jsonl`."""

    partition: str
    group: int
    index: int
    weight_version: int
    step: int
    epoch: int
    pass_index: int
    reward: float


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the log proves."""

    lines: int
    voided: int
    """Lines of steps that a later epoch trained again."""
    steps: int
    epochs: int
    max_staleness: int
    problems: list[str]
    """One sentence each; empty when everything holds."""


def read_lines(path: Path) -> list[SampleLine]:
    """The lines of a log, but for a half last one."""
    return [_parse(json.loads(line)) for line in whole_lines(path)]


def standing(lines: Iterable[SampleLine]) -> list[SampleLine]:
    """The lines that no later epoch has voided."""
    return surviving(lines, lambda line: (line.epoch, line.step))


def _parse(row: dict[str, int | float | str]) -> SampleLine:
    return SampleLine(
        partition=str(row["partition"]),
        group=int(row["group"]),
        index=int(row["index"]),
        weight_version=int(row["weightVersion"]),
        step=int(row["step"]),
        epoch=int(row["epoch"]),
        pass_index=int(row["pass"]),
        reward=float(row["reward"]),
    )


def audit(lines: list[SampleLine], spec: RLJobSpec, *, steps: int) -> AuditReport:
    """Checks the first `steps` rollouts of a job (all of them for one that succeeded)."""
    kept = standing(lines)
    staleness = max((line.step - line.weight_version for line in kept), default=0)
    problems = [*_count_problems(kept, spec, steps), *_staleness_problems(kept, spec), *_place_problems(kept)]
    return AuditReport(
        lines=len(lines),
        voided=len(lines) - len(kept),
        steps=len({line.step for line in kept}),
        epochs=len({line.epoch for line in lines}),
        max_staleness=staleness,
        problems=problems,
    )


def _count_problems(kept: list[SampleLine], spec: RLJobSpec, steps: int) -> list[str]:
    rollout = spec.rollout
    counts = Counter((line.step, line.group, line.index, line.pass_index) for line in kept)
    wanted = {
        (step, group, index, pass_index)
        for step in range(steps)
        for group in range(rollout.batch_size)
        for index in range(rollout.samples_per_prompt)
        for pass_index in range(spec.training.epochs_per_rollout)
    }
    missing = sorted(wanted - counts.keys())
    doubled = sorted(key for key, count in counts.items() if count > 1)
    problems = []
    if missing:
        problems.append(f"{len(missing)} samples were never trained, e.g. {_examples(missing)}.")
    if doubled:
        problems.append(f"{len(doubled)} samples were trained more than once, e.g. {_examples(doubled)}.")
    return problems


def _examples(keys: list[tuple[int, int, int, int]]) -> str:
    shown = [f"train_{step} group {group} index {index} pass {pass_index}" for step, group, index, pass_index in keys]
    return "; ".join(shown[:MAX_EXAMPLES])


def _staleness_problems(kept: list[SampleLine], spec: RLJobSpec) -> list[str]:
    bound = spec.rollout.max_staleness
    stale = [line for line in kept if line.step - line.weight_version > bound]
    ahead = [line for line in kept if line.weight_version > line.step]
    problems = []
    if stale:
        worst = max(stale, key=lambda line: line.step - line.weight_version)
        problems.append(
            f"{len(stale)} samples are staler than rollout.maxStaleness {bound}; the worst is {worst.partition} "
            f"group {worst.group}, made by version {worst.weight_version}."
        )
    if ahead:
        problems.append(f"{len(ahead)} samples were made by a version that did not exist before their training.")
    return problems


def _place_problems(kept: list[SampleLine]) -> list[str]:
    wrong = [line for line in kept if line.partition != f"train_{line.step}"]
    return [f"{len(wrong)} samples were trained in a step other than their partition's."] if wrong else []
