"""CEL of the CRD: rules that bring along the defaults which the API server does not fill in, and rules against changes.

Pure. Called by `generate.crd` alone, with two schemas of the same nodes: `stored` has the defaults that the API server
fills in, `full` all that the models have.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from rljob_api.rule import VALIDATIONS

_Schema = dict[str, Any]

_PATH = r"(?:self|oldSelf)(?:\.\w+\b(?!\()|\[\w+\])+"
_READ = re.compile(rf"has\((?P<tested>{_PATH})\)|(?<![\w.])(?P<read>{_PATH})")
_STEP = re.compile(r"\.(\w+)|\[\w+\]")


def with_defaults(stored: _Schema, full: _Schema) -> _Schema:
    """The schema `stored`, in which rules read a field that is absent as its default.

    A field that a rule tests with `has`, it reads itself.
    """
    schema = dict(stored)
    if VALIDATIONS in stored:
        schema[VALIDATIONS] = [_completed(entry, stored, full) for entry in stored[VALIDATIONS]]
    if "properties" in stored:
        parts = full["properties"]
        schema["properties"] = {name: with_defaults(part, parts[name]) for name, part in stored["properties"].items()}
    if "items" in stored:
        schema["items"] = with_defaults(stored["items"], full["items"])
    return schema


def _completed(entry: dict[str, str], stored: _Schema, full: _Schema) -> dict[str, str]:
    rule = entry["rule"]

    def read(found: re.Match[str]) -> str:
        path = found["tested"] or found["read"]
        absent = [f"has({at})" for at in _may_be_absent(path, stored)]
        unseen = [test for test in absent if test not in rule]
        if found["tested"]:
            above = [test for test in unseen if test != found[0]]
            return f"({' && '.join((*above, found[0]))})" if above else found[0]
        default = _default_at(path, full) if unseen else None
        if default is None:
            return path
        value, node = default
        # To CEL an object of which no field is known and {} are of two types, which a choice would not take.
        present = f"dyn({path})" if node.get("type") == "object" else path
        return f"({' && '.join(unseen)} ? {present} : {_literal(value, node)})"

    return {key: _READ.sub(read, text) if key in ("rule", "messageExpression") else text for key, text in entry.items()}


def _nodes_on(path: str, schema: _Schema) -> Iterator[tuple[str, _Schema, _Schema]]:
    """Each step of a path, as a path of its own, with the node above and the step's; up to where no field is known."""
    for step in _STEP.finditer(path):
        name = step[1]
        node = schema.get("items") if name is None else schema.get("properties", {}).get(name)
        if node is None:
            return
        yield path[: step.end()], schema, node
        schema = node


def _may_be_absent(path: str, stored: _Schema) -> list[str]:
    """Fields on the path that are neither required nor filled in."""
    return [
        at
        for at, above, node in _nodes_on(path, stored)
        if not at.endswith("]") and "default" not in node and at.rpartition(".")[2] not in above.get("required", ())
    ]


def _default_at(path: str, full: _Schema) -> tuple[Any, _Schema] | None:
    """The default of the field at the end of the path; None where it has none, or the path leaves the known fields."""
    at, node = "", full
    for at, _, node in _nodes_on(path, full):  # noqa: B007 - the last one
        pass
    return (node["default"], node) if at == path and "default" in node else None


def _literal(value: Any, node: _Schema) -> str:  # noqa: ANN401 - JSON
    if node.get("type") == "number":
        return repr(float(value))
    return json.dumps(value, ensure_ascii=False)


_EMPTY_IS_NULL = frozenset({"labelKey"})
"""Fields whose model reads an empty text as null."""


def unchanged(path: str, node: _Schema, *, is_required: bool) -> str:
    """Rule that a field of the spec is as it was: absent ones as well, and an absent one is as a default that is given.

    An object is not compared as a whole: in CEL one with a null, or with a default, is another one than without.
    """
    new, old = f"self{path}", f"oldSelf{path}"
    if path.rpartition(".")[2] in _EMPTY_IS_NULL and "minLength" not in node:
        return " == ".join(f"(has({field}) ? {field} : '')" for field in (new, old))
    same = _same(path, node)
    if is_required or ("default" in node and not node.get("nullable")):
        return same
    return f"has({new}) == has({old}) && (!has({new}) || ({same}))"


def _same(path: str, node: _Schema) -> str:
    new, old = f"self{path}", f"oldSelf{path}"
    items = node.get("items", {})
    if node.get("properties"):
        required = node.get("required", ())
        parts = node["properties"].items()
        return " && ".join(
            f"({unchanged(f'{path}.{name}', part, is_required=name in required)})" for name, part in parts
        )
    if items.get("properties"):
        places = list(range(node["maxItems"]))
        each = _same(f"{path}[i]", items)
        return f"{new}.size() == {old}.size() && {places}.all(i, i >= {new}.size() || ({each}))"
    return f"{new} == {old}"
