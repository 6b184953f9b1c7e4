"""The sizes of a model that its memory depends on, without building it: by formula or by its files.

For `device_memory`. Reads config.json and the heads of safetensors files, and no weight. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.model_size import parameters_of_config, stored_shapes
from rljob_api.spec import ModelConfig, ModelSpec
from rljob_api.tokenizer_size import tokenizer_size

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Numbers of elements, but for the first."""

    num_layers: int
    parameters: int
    """All weights, a tied head once."""
    layer: int
    """Weights of the largest layer."""
    outside: int
    """Weights that are in no layer: embedding, head, last norm."""
    hidden: int
    inner: int
    """Width of the feed-forward layers; with experts, of those that one token goes through."""
    queries: int
    """Heads x their width."""
    keys: int
    """The same of the keys, and of the values."""
    vocabulary: int
    max_positions: int | None
    """Longest sequence in tokens; None where config.json does not say."""


def model_shape(model: ModelSpec) -> ModelShape:
    """Of the job's model. ValueError, with a sentence, where the files of `model.path` cannot be read or lack one."""
    if model.config is not None:
        return shape_of_config(model.config)
    assert model.path is not None  # a rule: one of both
    return shape_of_files(_described(Path(model.path)), stored_shapes(Path(model.path)))


def shape_of_config(config: ModelConfig) -> ModelShape:
    """Of a model with random weights."""
    vocabulary = config.vocab_size or tokenizer_size(config.tokenizer)
    outside = config.hidden_size + vocabulary * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    parameters = parameters_of_config(config)
    return ModelShape(
        num_layers=config.num_layers,
        parameters=parameters,
        layer=(parameters - outside) // config.num_layers,
        outside=outside,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        queries=config.num_attention_heads * config.head_dim,
        keys=config.num_key_value_heads * config.head_dim,
        vocabulary=vocabulary,
        max_positions=config.max_position_embeddings,
    )


def shape_of_files(described: dict[str, Any], shapes: dict[str, list[int]]) -> ModelShape:
    """By config.json and the shapes of all stored tensors: those count, so that any family comes out right."""
    fields = described.get("text_config") or described
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if fields.get("tie_word_embeddings", described.get("tie_word_embeddings")):
        sizes.pop(_HEAD, None)  # some folders carry the embedding twice
    layers: dict[int, int] = {}
    for name, size in sizes.items():
        if found := _LAYER.search(name):
            layers[int(found[1])] = layers.get(int(found[1]), 0) + size
    num_heads = _size(fields, "num_attention_heads")
    hidden = _size(fields, "hidden_size")
    width = _size(fields, "head_dim", default=hidden // num_heads)
    return ModelShape(
        num_layers=_size(fields, "num_hidden_layers"),
        parameters=sum(sizes.values()),
        layer=max(layers.values(), default=0),
        outside=sum(sizes.values()) - sum(layers.values()),
        hidden=hidden,
        inner=_inner(fields),
        queries=num_heads * width,
        keys=_size(fields, "num_key_value_heads", default=num_heads) * width,
        vocabulary=_size(fields, "vocab_size"),
        max_positions=_size(fields, "max_position_embeddings", default=0) or None,
    )


def _inner(fields: dict[str, Any]) -> int:
    experts, width = fields.get("num_experts_per_tok"), fields.get("moe_intermediate_size")
    if isinstance(experts, int) and isinstance(width, int):
        return experts * width
    return _size(fields, "intermediate_size")


def _size(fields: dict[str, Any], name: str, *, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ValueError(
            f"model.path: its config.json has {name} {value!r}, and without it nothing can be said of memory."
            " Give the config.json that belongs to the weights."
        )
    return value


def _described(folder: Path) -> dict[str, Any]:
    try:
        described = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path: the config.json of {folder} cannot be read ({error}). Copy it again.") from error
    if not isinstance(described, dict):
        raise ValueError(f"model.path: the config.json of {folder} holds no object. Copy it again.")
    return described
