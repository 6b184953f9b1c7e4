"""Tiny random decoders of every family that Megatron computes, whose layers and experts go into two and four."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.trainers.fsdp import tiny

_LAYERS = {"num_hidden_layers": 4}

DECODERS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {**tiny.described("qwen2"), **_LAYERS},
    "qwen3": {**tiny.described("qwen3"), **_LAYERS},
    "qwen3-untied": {**tiny.described("qwen3"), **_LAYERS, "tie_word_embeddings": False},
    "llama": {**tiny.described("llama"), **_LAYERS},
    "qwen3_moe": {**tiny.described("qwen3_moe"), **_LAYERS, "num_experts": 4},
}
"""By name: config.json. The vocabulary is odd, so that it is padded wherever it is cut."""
