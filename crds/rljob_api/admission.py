"""What kubectl and the API server do to a manifest before they look at its fields, so that it means the same here.

Pure. Called by `manifest.py` alone. It refuses nothing.
"""

from functools import cache
from typing import Any

from rljob_api.crd import Schema, spec_schema

_EXACT = 1 << 53
"""Whole numbers below it are exact as a double."""


def admitted(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest with whole numbers as integers, and without nulls that mean that a field is not there."""
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
    """As the API server prunes them: a null stays where the field may be null, is required, or is not known."""
    if isinstance(value, dict):
        parts, required = schema.get("properties", {}), schema.get("required", ())
        kept = {
            key: inner
            for key, inner in value.items()
            if inner is not None or key not in parts or key in required or parts[key].get("nullable", False)
        }
        return {key: _without_nulls(inner, parts.get(key, {})) for key, inner in kept.items()}
    if isinstance(value, list):
        return [_without_nulls(inner, schema.get("items", {})) for inner in value]
    return value
