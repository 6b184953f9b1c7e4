"""Keys and types of a JSON value, each leaf a line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NO_FIELD = re.compile(r"\d+|[0-9a-f]{12}|[\d.]+:\d+")
"""Keys that name no field: a version, a rank, an id, an address."""


def types_of(value: object, path: str = "") -> Iterator[str]:
    """`path: type` of each leaf, and of what is empty."""
    match value:
        case dict() if value:
            for key, each in value.items():
                name = "*" if _NO_FIELD.fullmatch(key) else key
                yield from types_of(each, f"{path}.{name}" if path else name)
        case list() if value:
            for each in value:
                yield from types_of(each, f"{path}[]")
        case _:
            yield f"{path}: {type(value).__name__}"
