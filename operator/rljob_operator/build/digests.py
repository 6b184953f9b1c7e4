"""Digests by which a pod template, or an object as it was applied, is known again."""

import hashlib
import json
from typing import Any


def digest(value: Any) -> str:  # noqa: ANN401 - JSON
    """Of anything that JSON can say; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
