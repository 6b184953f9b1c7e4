"""JSON as Python's own module takes it, and so transformers and the workers: with NaN, Infinity and long integers.

For checks of files that these read: what is refused here must be refused there. Big files are read fast.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def parsed(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """What a text says; ValueError where it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # stricter than what reads the file later
        return json.loads(text)
