"""The logs of a run with a line per sample: read, without the lines that a later epoch voided, filtered, and audited.

A global restart trains steps again that were lost with it: a later epoch's line of step s voids earlier epochs' lines
of steps >= s. In what remains of `samples.jsonl` every (partition, group, index) must stand once per pass and within
its staleness bound. Pure but for reading files; also called by the tests that kill processes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rljob_api.generations import FILES
from rljob_api.roles import LEADING_ROLE, TRAITS, audit_file
from rljob_api.spec import RLJobSpec

_Line = TypeVar("_Line")


def whole_lines(path: Path) -> list[bytes]:
    """A half last line (the writer is alive or was killed) is left out. Only line feeds end lines: text has others."""
    return path.read_bytes().split(b"\n")[:-1]


def surviving(lines: Iterable[_Line], place: Callable[[_Line], tuple[int, int]]) -> list[_Line]:
    """The lines that no later epoch has voided; `place` gives a line's epoch and step."""
    standing = [(line, *place(line)) for line in lines]
    first_step: dict[int, int] = {}
    for _, epoch, step in standing:
        first_step[epoch] = min(step, first_step.get(epoch, step))
    voided_from: dict[int, int] = {}
    lowest: int | None = None
    for epoch in sorted(first_step, reverse=True):
        if lowest is not None:
            voided_from[epoch] = lowest
        lowest = first_step[epoch] if lowest is None else min(lowest, first_step[epoch])
    return [line for line, epoch, step in standing if step < voided_from.get(epoch, step + 1)]


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
    draws: int = 0
    """Draws of its group that the filter of rollout.dynamicSampling has seen; 0 where none has."""
    last_draw_refused: bool = False
    """Whether it has refused the one that was trained, too."""
    drawn_for: int | None = None
    """The rollout that its group was begun for (rollout.order Swap)."""
    is_learnt: bool = True
    """Whether it has a token that is not too old to be learnt from (rollout.partial with order Swap)."""


@dataclass(frozen=True, slots=True)
class RedrawnGroups:
    """Draws that a filter (rollout.dynamicSampling) has refused of the groups that were trained."""

    groups: int
    draws: int
    """Refused draws of all of them, another prompt each."""
    last_refused: int
    """Groups of which it has refused the last draw as well, which is trained on: maxAttempts."""
    examples: list[str]
    """Names of prompts that were drawn most often."""


@dataclass(frozen=True, slots=True)
class ExchangedGroups:
    """Groups that were trained in another rollout than they were begun for (rollout.order Swap)."""

    earlier: int
    later: int
    furthest: int
    """Rollouts between, of the group that was put off most."""
    too_old: int
    """Samples that nothing was learnt from, since all of their tokens were too old by then (rollout.partial)."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The proof by the log."""

    lines: int
    voided: int
    """Lines of steps that a later epoch trained again."""
    steps: int
    epochs: int
    max_staleness: int
    redrawn: RedrawnGroups
    exchanged: ExchangedGroups
    problems: list[str]
    """One sentence each; empty when everything holds."""


def read_lines(path: Path) -> list[SampleLine]:
    """The lines of a log, but for a half last one."""
    return [_parse(json.loads(line)) for line in whole_lines(path)]


def standing_samples(lines: Iterable[SampleLine]) -> list[SampleLine]:
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
        draws=int(row.get("draws", 0)),
        last_draw_refused=bool(row.get("lastDrawRefused", False)),
        drawn_for=int(row["drawnFor"]) if "drawnFor" in row else None,
        is_learnt=bool(row.get("learnt", True)),
    )


def audit_run(folder: Path, spec: RLJobSpec, *, steps: int) -> AuditReport:
    """Checks the logs of every role that trains; the figures are the leading one's."""
    report = audit(read_lines(folder / audit_file(LEADING_ROLE)), spec, steps=steps)
    problems = list(report.problems)
    for role in spec.roles.present():
        if TRAITS[role].saves and role is not LEADING_ROLE:
            path = folder / audit_file(role)
            lines = read_lines(path) if path.exists() else []
            problems += [f"{role.value}: {problem}" for problem in audit(lines, spec, steps=steps).problems]
    return replace(report, problems=problems)


def audit(lines: list[SampleLine], spec: RLJobSpec, *, steps: int) -> AuditReport:
    """Checks the first `steps` rollouts of a job (all of them for one that succeeded)."""
    standing = standing_samples(lines)
    staleness = max((line.step - line.weight_version for line in standing if line.is_learnt), default=0)
    problems = [
        *_count_problems(standing, spec, steps),
        *_staleness_problems(standing, spec),
        *_place_problems(standing),
    ]
    return AuditReport(
        lines=len(lines),
        voided=len(lines) - len(standing),
        steps=len({line.step for line in standing}),
        epochs=len({line.epoch for line in lines}),
        max_staleness=staleness,
        redrawn=_redrawn(standing),
        exchanged=_exchanged(standing),
        problems=problems,
    )


def _redrawn(standing: list[SampleLine]) -> RedrawnGroups:
    """All samples of a group say the same of it."""
    drawn = {(line.step, line.group): (line.draws, line.last_draw_refused) for line in standing if line.draws}
    again = sorted((-draws, *place) for place, (draws, _) in drawn.items() if draws > 1)
    shown = [f"train_{step} group {group}, drawn {-draws} times" for draws, step, group in again[:MAX_EXAMPLES]]
    return RedrawnGroups(
        groups=len(again),
        draws=sum(-draws - 1 for draws, *_ in again),
        last_refused=sum(refused for _, refused in drawn.values()),
        examples=shown,
    )


def _exchanged(standing: list[SampleLine]) -> ExchangedGroups:
    begun = {(line.step, line.group): line.drawn_for for line in standing}
    later = [step - rollout for (step, _), rollout in begun.items() if rollout is not None]
    return ExchangedGroups(
        earlier=sum(rollouts < 0 for rollouts in later),
        later=sum(rollouts > 0 for rollouts in later),
        furthest=max([0, *later]),
        too_old=sum(not line.is_learnt for line in standing),
    )


def _count_problems(standing: list[SampleLine], spec: RLJobSpec, steps: int) -> list[str]:
    rollout = spec.rollout
    counts = Counter((line.step, line.group, line.index, line.pass_index) for line in standing)
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


def _staleness_problems(standing: list[SampleLine], spec: RLJobSpec) -> list[str]:
    bound = spec.rollout.max_staleness
    stale = [line for line in standing if line.is_learnt and line.step - line.weight_version > bound]
    ahead = [line for line in standing if line.weight_version > line.step]
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


def _place_problems(standing: list[SampleLine]) -> list[str]:
    wrong = [line for line in standing if line.partition != f"train_{line.step}"]
    return [f"{len(wrong)} samples were trained in a step other than their partition's."] if wrong else []


RetainedSample = dict[str, Any]
"""One sample as the file has it."""


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Which samples are wanted; None where anything is."""

    rollouts: range | None = None
    lowest_reward: float | None = None
    highest_reward: float | None = None
    finish_reason: str | None = None
    valid: bool | None = None

    def takes(self, line: RetainedSample) -> bool:
        """Whether this one is. A reward is asked for of valid samples only: others have none."""
        asks_for_reward = (self.lowest_reward, self.highest_reward) != (None, None)
        return (
            (self.rollouts is None or line["rollout"] in self.rollouts)
            and (not asks_for_reward or bool(line["valid"]))
            and (self.lowest_reward is None or line["reward"] >= self.lowest_reward)
            and (self.highest_reward is None or line["reward"] <= self.highest_reward)
            and (self.finish_reason is None or line["finishReason"] == self.finish_reason)
            and (self.valid is None or line["valid"] == self.valid)
        )


def read_generations(folder: Path) -> list[RetainedSample]:
    """All samples of a run, in the order of rollouts, groups and samples; none where it has retained none.

    A half last line (the writer is alive or was killed) is left out.
    """
    lines: list[RetainedSample] = []
    for name in FILES:
        path = folder / name
        if path.exists():
            lines += [json.loads(line) for line in whole_lines(path)]
    return sorted(standing_generations(lines), key=lambda line: (line["rollout"], line["group"], line["index"]))


def standing_generations(lines: Iterable[RetainedSample]) -> list[RetainedSample]:
    """Without those of rollouts that a later epoch has trained again."""
    return surviving(lines, lambda line: (line["epoch"], line["rollout"]))


def rollouts_of(lines: Sequence[RetainedSample]) -> list[int]:
    """The rollouts that there are samples of, ascending."""
    return sorted({line["rollout"] for line in lines})
