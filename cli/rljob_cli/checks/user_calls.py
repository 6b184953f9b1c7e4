"""How the functions that a job names are called, and whether one can be, as far as the source of its module shows.

For the check of these functions. A decorator, or a value that is computed, may make anything: of these nothing is said
here, and the worker that imports the module looks again.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Awaited(Enum):
    """Whether what a call gives is waited for."""

    ALWAYS = "always"
    NEVER = "never"
    IF_ASYNC = "if it is async"


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call of a user's function."""

    arguments: tuple[str, ...]
    """Arguments that are given by position."""
    example: str
    """How it may be written."""
    awaited: Awaited = Awaited.NEVER
    or_keyword: str | None = None
    """An argument by which a function is taken that is called by names alone."""
    may_yield: bool = False
    """Whether what it yields is taken as a list."""
    keywords: frozenset[str] | None = None
    """Arguments that the manifest gives by name; None where it gives none."""

    def problem(self, name: str, called: Called) -> str | None:
        """Why the function cannot be called so, as a sentence; None where it can."""
        if called.is_class:
            return (
                f"{name} is a class, and a call of it makes an object. Name a function, or an object that has __call__."
            )
        if self.awaited is Awaited.ALWAYS and not called.is_async:
            return f"{name} is not async. Write it as `{self.example}`."
        if self.awaited is Awaited.NEVER and called.is_async:
            return f"{name} is async, and is called without being waited for. Write it as `{self.example}`."
        if called.is_generator and (called.is_async or not self.may_yield):
            return f"{name} is a generator: a call of it gives no result. Write it as `{self.example}`."
        if self.or_keyword is not None and self.or_keyword in called.signature.parameters:
            return None
        return self._unbound(name, called.signature)

    def _unbound(self, name: str, signature: inspect.Signature) -> str | None:
        given, by_name = len(self.arguments), self.keywords or frozenset()
        takes = _ByKind.of(signature)
        lacking = takes.required(after=given) - by_name
        if (len(takes.positional) < given and not takes.has_rest) or (lacking and self.keywords is None):
            count = "one argument" if given == 1 else f"{given} arguments"
            shown = f"({', '.join(self.arguments)})"
            return f"{name} cannot be called with {count} {shown}. Write it as `{self.example}`."
        if lacking:
            return f"{name} needs {', '.join(sorted(lacking))}. Give it in rollout.function.arguments."
        if unknown := () if takes.has_names else by_name - takes.by_name(after=given):
            return (
                f"{name} has no argument {', '.join(sorted(unknown))}, which rollout.function.arguments gives. Correct"
                " the name or remove it."
            )
        return None


@dataclass(frozen=True, slots=True)
class Called:
    """Value that a name of a module is bound to."""

    signature: inspect.Signature
    is_async: bool = False
    is_generator: bool = False
    is_class: bool = False


def called_by(body: Sequence[ast.stmt], name: str) -> Called | None:
    """Value that a module with this source has under `name`; None where the source does not show it."""
    bound = [statement for statement in body if name in _names_bound_by(statement)]
    if len(bound) != 1:  # bound twice, in a branch, or by an import
        return None
    match bound[0]:
        case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]) as definition:
            return _of_function(definition)
        case ast.ClassDef(bases=[], decorator_list=[], keywords=[]) as definition if not _is_a_result(definition):
            return Called(inspect.Signature(), is_class=True)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            # The statement is left out below, so that names bound to one another come to an end.
            return _of_value([other for other in body if other is not bound[0]], value, name)
    return None


def _of_value(body: Sequence[ast.stmt], value: ast.expr, name: str) -> Called | None:
    match value:
        case ast.Lambda(args=arguments):
            return Called(_signature(arguments))
        case ast.Name(id=other) if other != name:
            return called_by(body, other)
        case ast.Call(
            func=ast.Name(id="partial") | ast.Attribute(value=ast.Name(id="functools"), attr="partial"),
            args=[ast.Name(id=other), *given],
            keywords=named,
        ) if other != name:
            return _partial(called_by(body, other), given, named)
        case ast.Call(func=ast.Name(id=other)):
            made = next((each for each in body if isinstance(each, ast.ClassDef) and each.name == other), None)
            method = None if made is None else _method(made, "__call__")
            return None if method is None else _without_first(_of_function(method))
    return None


def _of_function(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Called | None:
    if definition.decorator_list:
        return None
    return Called(
        _signature(definition.args),
        is_async=isinstance(definition, ast.AsyncFunctionDef),
        is_generator=any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(definition.body)),
    )


def _own_nodes(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of a function's body, without those of functions in it."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(list(ast.iter_child_nodes(node)))


def _partial(called: Called | None, given: Sequence[ast.expr], named: Sequence[ast.keyword]) -> Called | None:
    """As functools.partial binds it; None for arguments that are unpacked."""
    if called is None or any(isinstance(one, ast.Starred) for one in given) or any(one.arg is None for one in named):
        return None

    def function() -> None: ...

    function.__signature__ = called.signature  # type: ignore[attr-defined] # what inspect reads
    made = functools.partial(function, *given, **{str(one.arg): one.value for one in named})
    try:
        signature = inspect.signature(made)
    except ValueError:
        return None
    return Called(signature, called.is_async, called.is_generator, called.is_class)


def _without_first(called: Called | None) -> Called | None:
    """Without self."""
    if called is None or not called.signature.parameters:
        return None
    rest = list(called.signature.parameters.values())[1:]
    return Called(called.signature.replace(parameters=rest), called.is_async, called.is_generator)


def _is_a_result(definition: ast.ClassDef) -> bool:
    """Whether its objects may be what a call of a function would give: a list, or a number."""
    return any(_method(definition, name) for name in ("__new__", "__iter__", "__getitem__", "__float__"))


def _method(definition: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    methods = (each for each in definition.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((each for each in methods if each.name == name), None)


def _names_bound_by(statement: ast.stmt) -> set[str]:
    """Names that it binds at any depth but in functions and classes: those may be bound twice."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name for alias in aliases}
    stored = (node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    inner = (
        name for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt) for name in _names_bound_by(each)
    )
    return {*stored, *inner}


def _signature(given: ast.arguments) -> inspect.Signature:
    positional = [
        *((one, inspect.Parameter.POSITIONAL_ONLY) for one in given.posonlyargs),
        *((one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in given.args),
    ]
    first_default = len(positional) - len(given.defaults)
    made = [
        inspect.Parameter(one.arg, kind, default=None if place >= first_default else inspect.Parameter.empty)
        for place, (one, kind) in enumerate(positional)
    ]
    if given.vararg is not None:
        made.append(inspect.Parameter(given.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    made += [
        inspect.Parameter(
            one.arg, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if default is None else None
        )
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        made.append(inspect.Parameter(given.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(made)


@dataclass(frozen=True, slots=True)
class _ByKind:
    """The parameters of a signature."""

    positional: tuple[inspect.Parameter, ...]
    named: tuple[inspect.Parameter, ...]
    """Given by name alone."""
    has_rest: bool
    """*arguments"""
    has_names: bool
    """**arguments"""

    @classmethod
    def of(cls, signature: inspect.Signature) -> _ByKind:
        kinds = inspect.Parameter
        given = list(signature.parameters.values())
        return cls(
            tuple(one for one in given if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)),
            tuple(one for one in given if one.kind is kinds.KEYWORD_ONLY),
            any(one.kind is kinds.VAR_POSITIONAL for one in given),
            any(one.kind is kinds.VAR_KEYWORD for one in given),
        )

    def required(self, after: int) -> set[str]:
        """Names without a default, behind so many by position."""
        return {one.name for one in (*self.positional[after:], *self.named) if one.default is inspect.Parameter.empty}

    def by_name(self, after: int) -> set[str]:
        """Arguments that can be given by name behind so many by position."""
        rest = (one for one in self.positional[after:] if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return {one.name for one in (*rest, *self.named)}
