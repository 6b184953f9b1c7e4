"""The size of a job's spec, and the most that a cluster's operator takes: pure.

An operator keeps the specs of all jobs of a cluster, and makes objects of each, several of which repeat its templates.
"""

import json
from collections.abc import Mapping
from typing import Any

MAX_SPEC_BYTES = 128 * 1024
"""Bound of a spec as JSON without spaces. A job with templates of its own for every role has a tenth of it."""


_DEEPEST_NAMED = 3
"""`roles.rollout.template` is named, not what lies in it."""


def size_problem(spec: Mapping[str, Any]) -> str | None:
    """A sentence where a spec is too large, which names the field that most of it is."""
    total = _num_bytes(spec)
    if total <= MAX_SPEC_BYTES:
        return None
    path, num_bytes = heaviest(spec)
    return (
        f"spec: is {_kib(total)} of JSON, of which {path} is {_kib(num_bytes)}, and a cluster takes"
        f" {_kib(MAX_SPEC_BYTES)}. Put what is long into a ConfigMap, a volume or the image, and name it in the spec."
    )


def heaviest(spec: Mapping[str, Any]) -> tuple[str, int]:
    """The innermost field, by its path, that is named and still more than half of the one around it; its bytes."""
    path, inner = list[str](), spec
    num_bytes = 0
    while inner and len(path) < _DEEPEST_NAMED:
        sizes = {key: _num_bytes(value) for key, value in inner.items()}
        key = max(sizes, key=lambda each: sizes[each])
        if path and 2 * sizes[key] < num_bytes:
            break
        path.append(key)
        num_bytes, found = sizes[key], inner[key]
        inner = found if isinstance(found, Mapping) else {}
    return ".".join(path), num_bytes


def _num_bytes(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str).encode(errors="replace"))


def _kib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 1024)} KiB"
