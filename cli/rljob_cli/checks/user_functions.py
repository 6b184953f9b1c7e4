"""Whether a function that a job names by import path is there, and can be called as it will be.

It is found by parsing its module and not by importing it: it may need what only the workers have.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rljob_api.spec import RLJobSpec
from rljob_cli.checks.user_calls import Awaited, UserCall, called_by

_OF_GROUP = UserCall(
    ("the answers of one group",), "def reward(answers): return [...]", Awaited.IF_ASYNC, "completions", may_yield=True
)


_OF_SAMPLE = UserCall(("one answer",), "def reward(answer): return 1.0", Awaited.IF_ASYNC, "completions")


_ROLLOUT = UserCall(("prompt", "engine", "params"), "async def rollout(prompt, engine, params): ...", Awaited.ALWAYS)


_FILTER = UserCall(("answers", "rewards"), "def keeps(answers, rewards): return True")


_CURRICULUM = UserCall(
    ("rates", "draws"), "def choose(rates, draws): return [draw % len(rates) for draw in draws]", may_yield=True
)


_OF_ALGORITHM = {
    "advantage": UserCall(("rewards", "valid"), "def advantages(rewards, valid): return ..."),
    "loss": UserCall(
        ("new_log_probs", "log_probs", "advantages", "rows"),
        "def loss(new, old, advantages, rows): return TokenLosses(...)",
    ),
    "lossAggregation": UserCall(("rows",), "def aggregate(rows): return TokenWeights(...)"),
    "correction.kind": UserCall(
        ("log_probs", "rollout_log_probs", "rows"), "def correct(log_probs, rollout_log_probs, rows): return weights"
    ),
    "sampleFilter": UserCall(("sample",), "def trains_on(sample): return True"),
}


class UserFunction(NamedTuple):
    """One that a job names."""

    field: str
    name: str
    """`package.module:function`."""
    path_field: str
    path: str | None
    """A folder that is searched first."""
    call: UserCall


def functions_of(spec: RLJobSpec) -> Iterator[UserFunction]:
    """All of a job."""
    algorithm = spec.algorithm
    for field, custom in spec.rollout.reward.functions.items():
        call = _OF_SAMPLE if custom.per_sample else _OF_GROUP
        yield UserFunction(f"spec.{field}.function", custom.function, f"spec.{field}.path", custom.path, call)
    if (own := spec.rollout.function) is not None:
        field, call = "spec.rollout.function", replace(_ROLLOUT, keywords=frozenset(own.arguments))
        yield UserFunction(f"{field}.function", own.function, f"{field}.path", own.path, call)
    sampling = spec.rollout.dynamic_sampling
    if sampling is not None and ":" in sampling.filter:
        field = "spec.rollout.dynamicSampling"
        yield UserFunction(f"{field}.filter", sampling.filter, f"{field}.path", sampling.path, _FILTER)
    if (curriculum := spec.rollout.curriculum) is not None:
        field = "spec.rollout.curriculum"
        yield UserFunction(f"{field}.function", curriculum.function, f"{field}.path", curriculum.path, _CURRICULUM)
    named = {
        "advantage": algorithm.advantage,
        "loss": algorithm.loss,
        "lossAggregation": algorithm.loss_aggregation,
        "correction.kind": algorithm.correction.kind,
        "sampleFilter": algorithm.sample_filter,
    }
    for field, name in named.items():
        if name is not None and ":" in name:
            path_field, call = "spec.algorithm.path", _OF_ALGORITHM[field]
            yield UserFunction(f"spec.algorithm.{field}", name, path_field, algorithm.path, call)


def function_problem(function: UserFunction) -> str | None:
    """A sentence if the module or the function is not there; None if it is, or if its source does not show it."""
    field, path = function.field, function.path
    if path is not None and not Path(path).is_dir():
        return f"{function.path_field}: {path} is not a folder. Give the folder that holds the module."
    module, name = function.name.split(":")
    searched = [*([path] if path is not None else []), *sys.path]
    source = _find_source(module, searched)
    if source is None:
        if (wrong := _broken_link(module, searched)) is not None:
            return f"{field}: {wrong}"
        where = f"neither in {path} nor" if path else "not"
        cure = "Correct the name or give path, its folder."
        return f"{field}: module {module} is {where} among the installed packages. {cure}"
    if source.suffix != ".py":
        return None
    try:
        tree = ast.parse(source.read_bytes(), str(source))
    except OSError as error:
        return f"{field}: {source} cannot be read ({error.strerror}). Give a module that can."
    except (SyntaxError, ValueError) as error:
        return f"{field}: {source} is not Python ({error}). Correct it."
    names = set(_bound_names(tree.body))
    if any(_is_constant(statement, name) for statement in tree.body):
        return f"{field}: {name} in {source} is not a function. Define it as one or correct the name."
    if name in names or "*" in names:
        called = called_by(tree.body, name)
        wrong = None if called is None else function.call.problem(name, called)
        return None if wrong is None else f"{field}: {wrong}"
    return f"{field}: {source} has no {name}. Define it there or correct the name."


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


def _broken_link(module: str, folders: list[str]) -> str | None:
    """A sentence where a link has the module's name, or that of a package above it, and leads to no file."""
    parts = module.split(".")
    below = [Path(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    names = [name for each in below for name in (each, each.with_name(f"{each.name}.py"), each / "__init__.py")]
    for file in (Path(folder) / name for folder in folders for name in names):
        if not file.is_symlink():
            continue
        try:
            file.stat()
        except OSError as error:
            return f"{file} is a link that leads to no file ({error.strerror}). Link it to one, or copy the file."
    return None


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
