"""Whether a job's reward can be found, loaded and called, and what a trial of it says.

It is found by parsing its module and not by importing it: it may need what only the workers have. It is tried in a
process of its own with the user's rights, since the user's code may import torch, hang or die.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.spec.rollout import RewardFunctionSpec
from rljob_cli.checks.findings import Finding, problem, warning

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


def reward_problem(reward: RewardFunctionSpec) -> str | None:
    """A sentence if the module or the function is not there; None if it is, or if its source does not show it."""
    field = "spec.rollout.reward.custom"
    if reward.path is not None and not Path(reward.path).is_dir():
        return f"{field}.path: {reward.path} is not a folder. Give the folder that holds the module."
    module, name = reward.function.split(":")
    searched = [*([reward.path] if reward.path is not None else []), *sys.path]
    source = _find_source(module, searched)
    if source is None:
        where = f"neither in {reward.path} nor" if reward.path else "not"
        cure = "Correct the name or give path, its folder."
        return f"{field}.function: module {module} is {where} among the installed packages. {cure}"
    if source.suffix != ".py":
        return None
    try:
        tree = ast.parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError) as error:
        return f"{field}.function: {source} is not Python ({error}). Correct it."
    names = set(_bound_names(tree.body))
    if any(_is_constant(statement, name) for statement in tree.body):
        return f"{field}.function: {name} in {source} is not a function. Define it as one or correct the name."
    if name in names or "*" in names:
        return None
    return f"{field}.function: {source} has no {name}. Define it there or correct the name."


def _find_source(module: str, folders: list[str]) -> Path | None:
    """The file of a module, looked up part by part without importing the packages above it."""
    searched: list[str] | None = folders
    origin: str | None = None
    for depth in range(len(module.split("."))):
        name = ".".join(module.split(".")[: depth + 1])
        found = importlib.machinery.PathFinder.find_spec(name, searched)
        if found is None:
            return None
        origin = found.origin
        searched = None if found.submodule_search_locations is None else list(found.submodule_search_locations)
        if searched is None and depth < module.count("."):
            return None
    return None if origin is None else Path(origin)


def _is_constant(statement: ast.stmt, name: str) -> bool:
    """Whether this binds `name` to a number, a text or the like, which cannot be called."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=bound)], value=ast.Constant() | ast.List() | ast.Dict() | ast.Tuple()):
            return bound == name
    return False


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module binds at its top level, also inside `if` and `try`."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=inner, orelse=other):
                yield from _bound_names([*inner, *other])
            case ast.Try(body=inner, orelse=other):
                handled = [line for handler in statement.handlers for line in handler.body]
                yield from _bound_names([*inner, *other, *handled])


FEW_ROWS = 2
"""That a check tries: a reward may cost money."""


IMPORT_SECONDS = 120
"""For a module to be imported, torch included, on a busy machine."""


TRIED = ("spec.rollout.reward", "spec.rollout.samplesPerPrompt", "spec.data")
"""Fields that a trial reads."""


_FIELD = "spec.rollout.reward.custom.function"


_TAIL = 400


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    problem: str | None
    """A sentence: it cannot be loaded, or would end the job at once."""
    rows: tuple[dict[str, Any], ...] = ()
    """{"row", "prompt", "answers": [{"what", "response", "reward", "error", "isMissing"}]}"""
    printed: str = ""
    """What the user's code printed."""

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Of all rows."""
        return [answer for row in self.rows for answer in row["answers"]]


def try_reward(spec: RLJobSpec, rows: int) -> Trial:
    """Of a job with absolute paths. With 0 rows it is loaded and not called."""
    custom = spec.rollout.reward.custom
    calls = 0 if custom is None else rows * custom.timeout_seconds
    limit = IMPORT_SECONDS + calls
    asked = json.dumps({"spec": spec.model_dump(mode="json"), "rows": rows})
    command = [sys.executable, "-m", "rljob_workers.rewards.trial"]
    name = custom.function if custom is not None else "the reward"
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Trial(f"{_FIELD}: {name} was not loaded and tried within {limit} s. Find out what it waits for.")
    if done.returncode or not done.stdout:
        printed = done.stderr.decode(errors="replace").strip()[-_TAIL:]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return Trial(f"{_FIELD}: {name} ended its process with {how}: {printed}. It would end the rollout's, too.")
    answer = json.loads(done.stdout)
    cause = answer["problem"]
    printed = done.stderr.decode(errors="replace").strip()
    return Trial(None if cause is None else f"spec.{cause}", tuple(answer["rows"]), printed)


def trial_findings(spec: RLJobSpec, rows: int = FEW_ROWS) -> Iterator[Finding]:
    """Tries a reward of the user's; those that come with the product need no trial."""
    if spec.rollout.reward.custom is None:
        return
    yield from findings_of(try_reward(spec, rows), spec.rollout.reward.custom.function)


def findings_of(trial: Trial, name: str) -> Iterator[Finding]:
    """A failure of every call is one of the reward; a single one may be one of an answer that no model gives.

    To give no score is allowed: for these rows, or these answers, there may be none.
    """
    if trial.problem is not None:
        yield problem(trial.problem)
        return
    answers = trial.answers
    failed = [answer["error"] for answer in answers if answer["error"] is not None]
    missing = [answer["error"] for answer in answers if answer["isMissing"]]
    count = f"all {len(answers)}" if len(failed) == len(answers) else f"{len(failed)} of {len(answers)}"
    if failed:
        is_of_the_reward = len(failed) == len(answers) and not missing
        text = f"spec.{_ended(failed[0])} So it was with {count} answers that were tried: see `rljob reward`."
        yield (problem if is_of_the_reward else warning)(text)
    elif len(answers) > 1 and len({answer["reward"] for answer in answers}) == 1:
        same = f"{answers[0]['reward']:g}"
        yield warning(
            f"{_FIELD}: {name} gives {same} to all {len(answers)} answers that were tried, right and wrong ones: where"
            " all samples of a prompt are worth the same nothing is learnt. See `rljob reward`."
        )


def _ended(text: str) -> str:
    """An exception's own text may lack the full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
