"""Which part of a model's weights a rank stages: whole tensors, each in one part.

Made by trainers, carried by weight transports; the same for all versions of a trainer's life.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash


@dataclass(frozen=True, slots=True)
class WeightShare:
    """Part `index` of `count`."""

    index: int
    count: int
    layout: str
    """Digest of names, shapes and assignment of all parts."""


def layout_digest(parts: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """xxh3-128, hex, of which tensors, of which shapes, are in which part."""
    text = json.dumps([{name: list(shape) for name, shape in part.items()} for part in parts], separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


WHOLE = WeightShare(0, 1, "whole")
"""All tensors in one part, whatever they are."""
