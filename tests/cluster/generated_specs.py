"""Manifests that are right, almost right and wrong, made from the schema of the CRD.

A good manifest with a few fields changed; most values are right by themselves, some lie just beyond a bound or are of
another type. Characters of an alphabet are distinct: that they must be is the one rule that only Python knows.
"""

import string
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from rljob_api.generate.crd import INT_OR_STRING, Schema, enum_values, spec_schema
from tests.unit.api.manifests import changed

_SCHEMA = spec_schema()
_ODD: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1, 1.0, 1.5, True, "", "1", "ü", [], {}, {"x": 1}])
"""Of one type or another."""
_TEXT = [
    "x",
    "a:b",
    "pkg.mod:name",
    "ä:b",
    "a:b:c",
    "m.:f",
    "500m",
    "1.5Gi",
    ".5",
    "-1",
    "8GB",
    "2026-01-01",
    "Global",
    "0",
]
_NAMES = st.sampled_from(["demo", "a", "a" * 40, "a" * 41, "", "-a", "a-", "A", "a.b", "0", "a_b"])


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """An RLJob as a user might send it."""
    manifest = changed({})
    for _ in range(draw(st.integers(1, 4))):
        _change(draw, manifest["spec"], _SCHEMA)
    if draw(st.integers(0, 9)) == 0:
        manifest["metadata"]["name"] = draw(_NAMES)
    return manifest


def edges() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field of the spec at each of its edges and beyond: its path and value as a title, and the manifest."""
    for path, field in _leaves(_SCHEMA, "spec"):
        if path.endswith(".alphabet"):
            continue  # a long one has characters twice
        for value in _edges_of(field):
            yield f"{path}: {value!r:.40}", changed({path: value})


def _leaves(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, part in schema["properties"].items():
        yield f"{path}.{name}", part
        if part.get("properties"):
            yield from _leaves(part, f"{path}.{name}")


def _edges_of(field: Schema) -> Iterator[Any]:
    yield None
    if INT_OR_STRING in field:
        yield from (-1, 0, 1, 1.5, True, "1", "1Gi", "", "x")
        return
    yield 1 if field["type"] in ("string", "object", "array", "boolean") else "1"
    match field:
        case _ if enum_values(field):
            yield from enum_values(field)
        case {"type": "integer" | "number"}:
            yield from (field[side] + step for side in ("minimum", "maximum") if side in field for step in (-1, 0, 1))
        case {"type": "string"}:
            yield from ("", "x" * field.get("maxLength", 1), "x" * (field.get("maxLength", 0) + 1))
        case {"type": "object"}:
            yield from ({}, {"unknown": {"x": [1]}})


def _change(draw: st.DrawFn, node: dict[str, Any], schema: Schema) -> None:
    """One field of the node, or of a node below it."""
    name = draw(st.sampled_from(sorted(schema["properties"])))
    field = schema["properties"][name]
    what = draw(st.integers(0, 19))
    if what == 0:
        node[name] = draw(_ODD)
    elif what == 1:
        node.pop(name, None)
    elif what == 2 and not isinstance(node.get(name), dict):
        node[f"{name}s"] = 1
    elif field.get("properties"):
        below = node.get(name)
        if not isinstance(below, dict):
            below = node[name] = {}
        _change(draw, below, field)
    else:
        node[name] = draw(_values(name, field))


def _values(name: str, field: Schema) -> st.SearchStrategy[Any]:
    if name == "alphabet":
        return st.sampled_from(["", "a", "ab", "äöü", string.printable, None])
    kinds: dict[str, Callable[[Schema], st.SearchStrategy[Any]]] = {
        "integer": _numbers,
        "number": _numbers,
        "string": _texts,
        "array": _lists,
        "object": _objects,
        "boolean": lambda _: st.sampled_from([True, False, True, False, "true", 0]),
    }
    if INT_OR_STRING in field:
        return st.one_of(_texts(field), _numbers(field))
    return kinds[field["type"]](field)


def _numbers(field: Schema) -> st.SearchStrategy[Any]:
    """Around both bounds, and a small one, which most often agrees with the others."""
    low, high = field.get("minimum", -3), field.get("maximum", 1 << 40)
    near = [low, low + 1, low, high, low - 1, high + 1, low + 0.5, float(low), 2, 4, 16]
    return st.sampled_from(near)


def _texts(field: Schema) -> st.SearchStrategy[Any]:
    known = enum_values(field)
    if known:
        return st.sampled_from([*known, *known, known[0].swapcase(), f"{known[0]} ", f"{known[0]}|{known[-1]}"])
    longest = field.get("maxLength", 10)
    return st.sampled_from([*_TEXT, "", "ü" * longest, "x" * (longest + 1)])


def _lists(field: Schema) -> st.SearchStrategy[Any]:
    item = field["items"]
    items = _items(item) if item.get("properties") else _values("", item)
    return st.one_of(st.lists(items, max_size=3), st.just(["x"] * (field.get("maxItems", 0) + 1)))


@st.composite
def _items(draw: st.DrawFn, schema: Schema) -> dict[str, Any]:
    item: dict[str, Any] = {"name": "a", "exitCodes": [1], "action": "Count"}
    for _ in range(draw(st.integers(0, 2))):
        _change(draw, item, schema)
    return item


def _objects(field: Schema) -> st.SearchStrategy[Any]:
    """Maps, typed or open, and objects without fields."""
    if "additionalProperties" in field:
        return st.dictionaries(
            st.sampled_from(["cpu", "memory", "a/b", ""]), _values("", field["additionalProperties"])
        )
    if field.get("x-kubernetes-preserve-unknown-fields"):
        return st.sampled_from([{}, {"spec": {"nodeSelector": {"a": "b"}, "x": [1, None]}}, {"max_n": 3}, "x"])
    return st.sampled_from([{}, {"x": 1}])
