"""JSON of the API server, however deeply it is nested: the API server takes objects that no reader here takes whole.

One such object would keep the operator from the list and the watch that it is in, and so from all other jobs. What lies
too deep in it is cut off; it stays deeper than `accept` takes, which refuses that job alone.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

DEEPEST = 500
"""Less than orjson reads (1024), and more than it writes (254), by which `accept` knows what was cut."""

_MARK = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Texts, which may hold brackets, and brackets."""


def decoded(text: bytes) -> dict[str, Any]:
    """An object. orjson.JSONDecodeError where it is none."""
    try:
        found: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = orjson.loads(b"".join(_shallow(text)))
    return found


def _shallow(text: bytes) -> Iterator[bytes]:
    """The same with null for each object and list that lies too deep."""
    depth, start = 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in (b"{", b"["):
            depth += 1
            if depth == DEEPEST + 1:
                yield text[start : mark.start()] + b"null"
        elif mark[0] in (b"}", b"]"):
            depth -= 1
            if depth == DEEPEST:
                start = mark.end()
    yield text[start:] if depth <= DEEPEST else b""
