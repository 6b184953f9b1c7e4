"""Fields of a manifest that are set beside it, as `--set training.optimizer.learningRate=1e-6` does.

Pure. Called by commands that read a manifest, with its document before it is checked: what is set is then checked as if
it stood there, by the same rules and in the same sentences. What a value is read as depends on the field's type in the
schema of the CRD. A document that was given is not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rljob_api.generate.crd import Schema, spec_schema
from rljob_api.manifest import ManifestError, yaml_value
from rljob_api.other_names.hints import field_hint, nearest

Step = str | int
"""A name, or the index of an item."""

_FORM = re.compile(r'((?:[^=\["]|\[\d+\]|\["[^"]*"\])+)=(.*)', re.DOTALL)
_STEP = re.compile(r'(?:^|\.)([^.\[\]"]+)|\[(\d+)\]|\["([^"]*)"\]')
_OPEN = "x-kubernetes-preserve-unknown-fields"
_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string", "nullable": True},
        "labels": _NAMES,
        "annotations": _NAMES,
    },
}
_MOST_SUGGESTED = 3


@dataclass(frozen=True, slots=True)
class Override:
    """A field and the text of its value."""

    place: tuple[Step, ...]
    """From the root of the manifest: ("spec", "rollout", "reward", "sum", 0, "weight")."""
    text: str

    @classmethod
    def parse(cls, given: str) -> Override:
        """From `FIELD=VALUE`; `spec.` may be left out. ManifestError where it is not of that form."""
        found = _FORM.fullmatch(given)
        steps = None if found is None else _steps(found[1])
        if found is None or steps is None:
            raise ManifestError(
                [
                    f"--set: {json.dumps(given, ensure_ascii=False)} is not FIELD=VALUE. Give a field and its value,"
                    " such as training.optimizer.learningRate=1e-6."
                ]
            )
        return cls(steps if steps[0] in ("spec", "metadata") else ("spec", *steps), found[2])

    @property
    def path(self) -> str:
        """As sentences name it: spec.rollout.reward.sum[0].weight."""
        return _written(self.place)


def overridden(document: dict[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """The document with these fields set, in this order. ManifestError with a sentence for each that is not one."""
    problems: list[str] = []
    for override in overrides:
        try:
            value = _value(override, _schema_at(override.place, document))
            document = _with(document, override.place, value)
        except _Misplaced as problem:
            problems.append(f"--set: {problem}")
    if problems:
        raise ManifestError(problems)
    return document


def known_paths() -> list[str]:
    """Every field of the spec that can be set, without `spec.`; items of lists as `[0]`."""
    return [path.removeprefix("spec.") for path, _ in _leaves("spec", _root()["properties"]["spec"])]


class _Misplaced(ValueError):
    """Why a field cannot be set, as a sentence that begins with the field."""


@cache
def _root() -> Schema:
    return {"type": "object", "properties": {"metadata": _METADATA, "spec": spec_schema()}}


def _steps(path: str) -> tuple[Step, ...] | None:
    """None where something of it is neither a name nor an index."""
    found = list(_STEP.finditer(path))
    is_whole = "".join(one[0] for one in found) == path and bool(found) and not path.startswith((".", "["))
    return tuple(int(one[2]) if one[2] else one[1] or one[3] for one in found) if is_whole else None


def _written(place: Sequence[Step]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{_quoted(step)}" for step in place).removeprefix(".")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[^.\[\]]+", name) else f'["{name}"]'


def _schema_at(place: tuple[Step, ...], document: dict[str, Any]) -> Schema:
    schema = _root()
    for number in range(len(place)):
        schema = _below(schema, place, number, document)
    return schema


def _below(schema: Schema, place: tuple[Step, ...], number: int, document: dict[str, Any]) -> Schema:
    """The schema of what the step of this number names, below that of the steps before it."""
    step, above = place[number], _written(place[:number])
    if not schema or schema.get(_OPEN):
        return {}  # anything may be there, as in a pod template
    if isinstance(step, int):
        if "items" not in schema:
            raise _Misplaced(f"{above}: is no list, so that it has no item {step}. Leave [{step}] out.")
        items: Schema = schema["items"]
        return items
    if "additionalProperties" in schema:
        values: Schema = schema["additionalProperties"]
        return values
    if "items" in schema:
        raise _Misplaced(
            f"{above}: is a list. Name an item by its index, as in {above.removeprefix('spec.')}[0].{step}."
        )
    fields: dict[str, Schema] = schema.get("properties", {})
    if step not in fields:
        cure = _suggestion(place, number, fields, document)
        raise _Misplaced(f"{_written(place[: number + 1])}: there is no such field. {cure}")
    return fields[step]


def _suggestion(place: tuple[Step, ...], number: int, beside: dict[str, Schema], document: dict[str, Any]) -> str:
    """The nearest name beside it and fields of this name elsewhere, another trainer's name, or all beside it.

    Of fields elsewhere those that the document has a place for, if there are any.
    """
    step = str(place[number])
    if not beside:
        return f"{_written(place[:number]).removeprefix('spec.')} has none in it: it is a value."
    wanted = step.replace("_", "").lower()
    near = nearest(step, beside)
    found = [] if near is None else [_written((*place[:number], near))]
    everywhere = {path: path.rpartition(".")[2] for path, _ in _fields("spec", _root()["properties"]["spec"])}
    found += _with_place((path for path, name in everywhere.items() if name.lower() == wanted), document)
    hint = field_hint([each for each in place[1:] if isinstance(each, str)])
    if not found and hint is not None:
        return hint
    if not found:
        near = nearest(step, set(everywhere.values()))
        found = _with_place((path for path, name in everywhere.items() if name == near), document)
    if not found:
        return f"Known here: {', '.join(beside)}."
    shown = [path.removeprefix("spec.") for path in dict.fromkeys(found)][:_MOST_SUGGESTED]
    is_same = hint is not None and any(re.search(rf"(?<![\w.]){re.escape(path)}(?![\w.[])", hint) for path in shown)
    other = "" if hint is None or is_same else f" {hint}"
    return f"Did you mean {' or '.join(shown)}?{other}"


def _with_place(paths: Iterable[str], document: dict[str, Any]) -> list[str]:
    """The paths that the document has a place for; all where it has one for none."""
    given = list(paths)
    return [path for path in given if _has_place(path, document)] or given


def _has_place(path: str, document: dict[str, Any]) -> bool:
    """Whether the first section on its way that a job may do without is there: those below have defaults of it."""
    node: Any = document
    schema = _root()
    for name in path.partition("[")[0].split("."):
        node, schema = node.get(name) if isinstance(node, dict) else None, schema["properties"][name]
        if schema.get("nullable") and (schema.get("properties") or "items" in schema):
            return node is not None
    return True


def _fields(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every field below, also those that have fields themselves."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _fields(f"{path}.{name}", field)
    if "items" in schema:
        yield from _fields(f"{path}[0]", schema["items"])


def _leaves(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    return ((path, field) for path, field in _fields(path, schema) if not field.get("properties"))


def _value(override: Override, schema: Schema) -> Any:  # noqa: ANN401 - JSON
    """A value of the field's type where the text has one; else the text's own, so that the field's check names it."""
    text = override.text
    if text == "null":
        return None
    if schema.get("type") == "string":
        return _unquoted(text)
    if not text:
        return ""
    try:
        return yaml_value(text)
    except ValueError as error:
        raise _Misplaced(
            f"{override.path}: {json.dumps(text, ensure_ascii=False)} is no value in YAML: {error}."
        ) from error


def _unquoted(text: str) -> str:
    """A text as it is, but for one in double quotes."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def _with(document: dict[str, Any], place: tuple[Step, ...], value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    made = _replaced(document, place, 0, value)
    assert isinstance(made, dict), "a document is an object"
    return made


def _replaced(node: Any, place: tuple[Step, ...], at: int, value: Any) -> Any:  # noqa: ANN401 - JSON
    """The node with `value` below it; copied on the way, since YAML's anchors share nodes."""
    if at == len(place):
        return value
    step, above = place[at], _written(place[:at])
    if isinstance(step, int):
        items = [] if node is None else node
        if not isinstance(items, list):
            raise _Misplaced(f"{above}: is no list in the manifest, so that its item {step} cannot be set.")
        if step > len(items):
            raise _Misplaced(
                f"{above}[{step}]: the list has {len(items)} items, and {step} is beyond the next. Give an index of at"
                f" most {len(items)}, which adds one."
            )
        inner = items[step] if step < len(items) else None
        return [*items[:step], _replaced(inner, place, at + 1, value), *items[step + 1 :]]
    fields = {} if node is None else node
    if not isinstance(fields, dict):
        raise _Misplaced(f"{above}: is no object in the manifest, so that {step} in it cannot be set.")
    return {**fields, step: _replaced(fields.get(step), place, at + 1, value)}
