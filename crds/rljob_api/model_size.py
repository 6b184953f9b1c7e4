"""How many parameters a model has, without building it: by formula for `model.config`, by its files for `model.path`.

For what is said, or decided, of a job by its model's size. `num_parameters` reads the heads of safetensors files and no
weight. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_api.spec import Architecture, Dtype, ModelConfig, ModelSpec
from rljob_api.tokenizer_size import tokenizer_size

WEIGHT_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}
"""Of one parameter."""
_INDEX, _ONE_FILE = "model.safetensors.index.json", "model.safetensors"
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its head, which is JSON, in so many bytes, the lowest first."""


def num_parameters(model: ModelSpec) -> int:
    """All weights, a tied head once. ValueError where the files of `model.path` cannot be read."""
    if model.config is not None:
        return parameters_of_config(model.config)
    assert model.path is not None  # a rule: one of both
    return sum(math.prod(shape) for shape in stored_shapes(Path(model.path)).values())


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of every tensor in the safetensors files of a folder. ValueError where they cannot be read.

    By its index, where it has one: some folders hold the same weights a second time, for other programs.
    """
    files = _files_by_index(folder) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"model.path: {folder} has no safetensors weights. Give the folder of a checkpoint.")
    return {name: shape for file in files for name, shape in _shapes_in(file)}


def _files_by_index(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        return [folder / _ONE_FILE] if (folder / _ONE_FILE).exists() else []
    try:
        return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model.path: {index} is no index of safetensors files ({error!r}). Copy it again.") from error


def parameters_of_config(config: ModelConfig) -> int:
    """By the layers of its architecture.

    Where the tokenizer comes from elsewhere (model.tokenizerPath) and vocabSize is null, the vocabulary that is counted
    is that of the config's own tokenizer.
    """
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    attention = 2 * hidden * queries + 2 * hidden * keys  # q and out, k and v
    norms = 2 * hidden + (2 * head if config.architecture is Architecture.QWEN3 else 0)
    layers = config.num_layers * (attention + 3 * hidden * inner + norms)
    vocabulary = config.vocab_size or tokenizer_size(config.tokenizer)
    return layers + hidden + vocabulary * hidden * (1 if config.tie_word_embeddings else 2)


def _shapes_in(file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
            head: dict[str, Any] = json.loads(content.read(min(length, file.stat().st_size)))
            for name, tensor in head.items():
                if name != "__metadata__":
                    yield name, tensor["shape"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model.path: {file} is not a whole safetensors file ({error!r}). Copy it again.") from error
