"""What kubectl and the API server do to a manifest before they look at its fields, so that it means the same here.

Pure. Called by `manifest.py` alone. It refuses nothing.
"""

from functools import cache
from typing import Any

from rljob_api.crd import Schema, spec_schema

_EXACT = 1 << 53
"""Whole numbers below it are exact as a double."""


def admitted(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest with whole numbers as integers, and without nulls where a default stands for what is not there."""
    document = {key: _with_integers(value) for key, value in document.items()}
    if isinstance(document.get("spec"), dict):
        document["spec"] = _without_nulls(document["spec"], _schema())
    return document


@cache
def _schema() -> Schema:
    return spec_schema()


def _with_integers(value: Any) -> Any:  # noqa: ANN401 - JSON
    """`10.0` is an integer to kubectl, which writes it as 10."""
    if isinstance(value, dict):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_integers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def _without_nulls(value: Any, schema: Schema) -> Any:  # noqa: ANN401 - JSON
    """As the API server fills in defaults: a null is kept where the field may be null."""
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        kept = {key: inner for key, inner in value.items() if inner is not None or not _gives_way(parts.get(key, {}))}
        return {key: _without_nulls(inner, parts.get(key, {})) for key, inner in kept.items()}
    if isinstance(value, list):
        return [_without_nulls(inner, schema.get("items", {})) for inner in value]
    return value


def _gives_way(field: Schema) -> bool:
    return "default" in field and not field.get("nullable", False)
