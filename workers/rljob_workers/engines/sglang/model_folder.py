"""The folder that a server is started with: what describes the model and its tokenizer, and no weights.

Written by the engine's own process before SGLang reads it.
"""

from __future__ import annotations

import json
from pathlib import Path

from rljob_api.spec import ModelSpec
from rljob_workers.engines.sglang.shapes import SHAPES_FILE, checkpoint_shapes
from rljob_workers.models.building import build_config, policy_files
from rljob_workers.models.layout import tensor_shapes
from rljob_workers.models.tokenizers import build_tokenizer


def write_model_folder(folder: Path, model: ModelSpec) -> None:
    """Writes config.json, the tokenizer's files and the list of tensors; ValueError where there is no such model."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(model)
    for name, content in policy_files(model, tokenizer).items():
        (folder / name).write_bytes(content)
    if model.path is None:
        shapes = tensor_shapes(build_config(model, tokenizer))
    else:
        shapes = dict(checkpoint_shapes(Path(model.path)))
    (folder / SHAPES_FILE).write_text(json.dumps(shapes))
