"""The folder that a SGLang server is started with, and the shapes that an update of its weights must have.

The folder describes the model and its tokenizer and has no weights. SGLang dies of a wrong shape and answers `success`
to missing and unknown names, so that an update that does not fit is refused here. Written in the server's child.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError, safe_open

from rljob_api.model_files.ends import GENERATION_FILE
from rljob_api.spec.model import ModelSpec
from rljob_workers.models.building import build_config, model_files, tensor_shapes
from rljob_workers.models.ends import engine_generation_config
from rljob_workers.models.tokenizers import build_tokenizer

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Name of each tensor -> its shape."""


SHAPES_FILE = "rljob-tensors.json"
"""In the folder that a server is started with, which has no weights of its own."""


_HEAD = "lm_head.weight"


def model_shapes(folder: Path) -> Shapes:
    """The tensors that each update must have: those of the folder's own list, else those of its weights."""
    listed = folder / SHAPES_FILE
    if listed.is_file():
        return {name: tuple(shape) for name, shape in json.loads(listed.read_bytes()).items()}
    return checkpoint_shapes(folder)


def checkpoint_shapes(folder: Path) -> Shapes:
    """What is published of a Hugging Face folder: a head that is tied to the embedding is not, though some carry it."""
    tied = json.loads((folder / "config.json").read_bytes()).get("tie_word_embeddings", False)
    return {name: shape for name, shape in stored_shapes(folder).items() if not (tied and name == _HEAD)}


def stored_shapes(folder: Path) -> Shapes:
    """Of all safetensors files of a folder; reads their heads only. ValueError where one is none, or there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no safetensors file.")
    return {name: shape for file in files for name, shape in _file_shapes(file)}


def misfit(found: Shapes, wanted: Shapes) -> str | None:
    """Describes the first difference; None where there is none. Pure."""
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            there, here = _described(found.get(name)), _described(wanted.get(name))
            return f"tensor {name} is {there} there, but {here} in the model"
    return None


def _file_shapes(file: Path) -> Iterable[tuple[str, tuple[int, ...]]]:
    try:
        with safe_open(file, framework="numpy") as opened:
            return [(name, tuple(opened.get_slice(name).get_shape())) for name in opened.keys()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}).") from error


def _described(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"


def write_model_folder(folder: Path, model: ModelSpec) -> None:
    """Writes config.json, the tokenizer's files, which tokens end an answer, and the list of tensors.

    ValueError where there is no such model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(model)
    files = {**model_files(model, tokenizer), GENERATION_FILE: engine_generation_config(model, tokenizer)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if model.path is None:
        shapes = tensor_shapes(build_config(model, tokenizer))
    else:
        shapes = dict(checkpoint_shapes(Path(model.path)))
    (folder / SHAPES_FILE).write_text(json.dumps(shapes))
