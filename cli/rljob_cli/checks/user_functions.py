"""Whether a function that a job names by import path is there.

It is found by parsing its module and not by importing it: it may need what only the workers have.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rljob_api.spec import RLJobSpec


class RolloutCall(NamedTuple):
    """A call of a rollout function: prompt, engine and params by position, and its arguments by name."""

    keywords: frozenset[str]

    def problem(self, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
        """Why the function cannot be called so; None where it can, or where a decorator may make another one of it."""
        if definition.decorator_list:
            return None
        if isinstance(definition, ast.FunctionDef):
            return f"{definition.name} is not async. Write it as `async def {definition.name}(prompt, engine, params)`."
        given = definition.args
        names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        required = names[: len(names) - len(given.defaults)]
        by_name = {*names[_GIVEN:], *(argument.arg for argument in given.kwonlyargs)}
        lacking = {
            *required[_GIVEN:],
            *(one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None),
        } - self.keywords
        if len(names) < _GIVEN and given.vararg is None:
            return f"{definition.name} does not take prompt, engine and params. Give it these three arguments first."
        if lacking:
            return f"{definition.name} needs {', '.join(sorted(lacking))}. Give it in rollout.function.arguments."
        if given.kwarg is None and (unknown := self.keywords - by_name):
            return (
                f"{definition.name} has no argument {', '.join(sorted(unknown))}, which rollout.function.arguments"
                " gives. Correct the name or remove it."
            )
        return None


_GIVEN = 3
"""Arguments by position."""


class UserFunction(NamedTuple):
    """One that a job names."""

    field: str
    name: str
    """`package.module:function`."""
    path_field: str
    path: str | None
    """A folder that is searched first."""
    call: RolloutCall | None = None
    """How it is called, where that is looked at."""


def functions_of(spec: RLJobSpec) -> Iterator[UserFunction]:
    """All of a job."""
    algorithm = spec.algorithm
    for field, custom in spec.rollout.reward.functions.items():
        yield UserFunction(f"spec.{field}.function", custom.function, f"spec.{field}.path", custom.path)
    if (own := spec.rollout.function) is not None:
        field = "spec.rollout.function"
        yield UserFunction(
            f"{field}.function", own.function, f"{field}.path", own.path, RolloutCall(frozenset(own.arguments))
        )
    sampling = spec.rollout.dynamic_sampling
    if sampling is not None and ":" in sampling.filter:
        field = "spec.rollout.dynamicSampling"
        yield UserFunction(f"{field}.filter", sampling.filter, f"{field}.path", sampling.path)
    if (curriculum := spec.rollout.curriculum) is not None:
        field = "spec.rollout.curriculum"
        yield UserFunction(f"{field}.function", curriculum.function, f"{field}.path", curriculum.path)
    named = {
        "advantage": algorithm.advantage,
        "loss": algorithm.loss,
        "lossAggregation": algorithm.loss_aggregation,
        "correction.kind": algorithm.correction.kind,
        "sampleFilter": algorithm.sample_filter,
    }
    for field, name in named.items():
        if name is not None and ":" in name:
            yield UserFunction(f"spec.algorithm.{field}", name, "spec.algorithm.path", algorithm.path)


def function_problem(function: UserFunction) -> str | None:
    """A sentence if the module or the function is not there; None if it is, or if its source does not show it."""
    field, path = function.field, function.path
    if path is not None and not Path(path).is_dir():
        return f"{function.path_field}: {path} is not a folder. Give the folder that holds the module."
    module, name = function.name.split(":")
    searched = [*([path] if path is not None else []), *sys.path]
    source = _find_source(module, searched)
    if source is None:
        where = f"neither in {path} nor" if path else "not"
        cure = "Correct the name or give path, its folder."
        return f"{field}: module {module} is {where} among the installed packages. {cure}"
    if source.suffix != ".py":
        return None
    try:
        tree = ast.parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError) as error:
        return f"{field}: {source} is not Python ({error}). Correct it."
    names = set(_bound_names(tree.body))
    if any(_is_constant(statement, name) for statement in tree.body):
        return f"{field}: {name} in {source} is not a function. Define it as one or correct the name."
    if name in names or "*" in names:
        wrong = None if function.call is None else _call_problem(function.call, tree.body, name)
        return None if wrong is None else f"{field}: {wrong}"
    return f"{field}: {source} has no {name}. Define it there or correct the name."


def _call_problem(call: RolloutCall, body: list[ast.stmt], name: str) -> str | None:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
                return call.problem(statement)
    return None


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
