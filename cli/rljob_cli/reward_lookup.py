"""Whether a reward's import path leads to something, found in the source and not by importing it.

A reward may import what only the workers have (or torch, for seconds): so its module is parsed, not run.
"""

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path

from rljob_api.spec.rollout import RewardFunctionSpec


def reward_problem(reward: RewardFunctionSpec) -> str | None:
    """A sentence if the module or the function is not there; None if it is, or if its source cannot tell."""
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
