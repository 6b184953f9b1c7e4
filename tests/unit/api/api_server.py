"""What an API server does with a manifest of ours: fills in the CRD's defaults and asks the CRD's CEL rules."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import cel

from rljob_api.generate.crd import Schema
from rljob_api.quantity import value
from rljob_api.rule import VALIDATIONS


class BrokenRule(NamedTuple):
    field: str
    rule: str
    sentence: str


compiled = cache(cel.compile)
"""A rule is parsed once, however many manifests it is asked about."""


def _compare(one: float, other: float) -> int:
    return (one > other) - (one < other)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": lambda text: float(value(text)),
    "string": str,
    "compareTo": _compare,
    "lastIndexOf": str.rfind,
    "substring": lambda text, start: text[start:],
}
"""Kubernetes' own, as far as our rules ask."""


def defaulted(schema: Schema, value: Any) -> Any:
    """The value with the schema's defaults, and without nulls, which CEL sees as absent."""
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], inner) for inner in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = dict(value)
    for name, part in schema["properties"].items():
        if filled.get(name) is None and not (name in filled and part.get("nullable")):
            filled.pop(name, None)
            if "default" in part:
                filled[name] = copy.deepcopy(part["default"])
        if filled.get(name) is not None:
            filled[name] = defaulted(part, filled[name])
    return {name: inner for name, inner in filled.items() if inner is not None}


def refused_by_cel(schema: Schema, old: Any, new: Any, path: str) -> Iterator[BrokenRule]:
    """Each transition rule of the node that an update breaks."""
    known = cel.Context({"self": _as_typed(schema, new), "oldSelf": _as_typed(schema, old)}, _FUNCTIONS)
    for entry in schema[VALIDATIONS]:
        if "oldSelf" in entry["rule"] and not compiled(entry["rule"]).execute(known):
            yield BrokenRule(f"{path}{entry['fieldPath']}", entry["rule"], entry["message"])


def broken_rules(schema: Schema, value: Any, path: str) -> Iterator[BrokenRule]:
    """Each rule that does not hold, in the node and below it; rules of updates apart."""
    value = _as_typed(schema, value)
    own = [entry for entry in schema.get(VALIDATIONS, ()) if "oldSelf" not in entry["rule"]]
    known = cel.Context({"self": value}, _FUNCTIONS) if own else None
    for entry in own:
        if not compiled(entry["rule"]).execute(known):
            yield BrokenRule(f"{path}{entry['fieldPath']}", entry["rule"], _message(entry, value))
    for name, part in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield from broken_rules(part, value[name], f"{path}.{name}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from broken_rules(schema["items"], inner, f"{path}[{index}]")


def _message(entry: dict[str, str], value: Any) -> str:
    if "message" in entry:
        return entry["message"]
    # The CEL library of these tests has no format(): the values are its work, putting them in is done here.
    template, values = entry["messageExpression"].rsplit(".format(", 1)
    text = cel.evaluate(template, {"self": value})
    return str(text % tuple(cel.evaluate(values.removesuffix(")"), {"self": value})))


def _as_typed(schema: Schema, value: Any) -> Any:
    """A number of the schema is a double in CEL, also where it is written without a point."""
    if schema.get("type") == "number":
        return float(value)
    if isinstance(value, dict) and "properties" in schema:
        return {name: _as_typed(schema["properties"].get(name, {}), inner) for name, inner in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_as_typed(schema["items"], inner) for inner in value]
    return value
