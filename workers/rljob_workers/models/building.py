"""A model's config, its initial weights, and the Hugging Face folder that it is saved to.

    tokenizer = build_tokenizer(spec.model)
    config = build_config(spec.model, tokenizer)
    state = initial_state(spec.model, tokenizer)

For trainers and engines. Names are Hugging Face's; a tied `lm_head.weight` is in no state. Never asks a hub.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from rljob_api.spec import Architecture, Dtype, ModelConfig, ModelSpec
from rljob_workers.models.blob import INDEX_FILE, WEIGHTS_FILE, read_blob, write_blob
from rljob_workers.models.decoder_config import DecoderConfig, read_config
from rljob_workers.models.layout import EMBEDDING, HEAD, initial_weights, tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedTokenizerBase

CONFIG_FILE = "config.json"

_CLASSES = {Architecture.LLAMA: "LlamaForCausalLM", Architecture.QWEN3: "Qwen3ForCausalLM"}
"""transformers' class of each, as config.json names it."""

_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a spec's `dtype`."""
    return _DTYPES[dtype]


def build_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> DecoderConfig:
    """What `model` is made of; ValueError where nothing here computes it, or it has no room for the tokenizer."""
    config = read_config(_made_config(model.config, tokenizer) if model.config else _config_file(_path_of(model)))
    if config.vocab_size < len(tokenizer):
        raise ValueError(
            f"model: the tokenizer has {len(tokenizer)} tokens, but the model only {config.vocab_size}"
            " (vocabSize). Raise vocabSize or use the model's own tokenizer."
        )
    return config


def initial_state(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Version 0: the weights in `path`, or random ones that are a function of `config` (its seed) alone."""
    config, dtype = build_config(model, tokenizer), torch_dtype(model.dtype)
    if model.config is None:
        state = _read_folder(_path_of(model), config)
        check_fit(shapes_of(state), config, source=f"the weights in {model.path}")
    else:  # drawn in float32 and rounded, so that jobs of either dtype start from the same weights
        state = initial_weights(config, model.config.initializer_range, model.config.seed)
    return {name: tensor.to(dtype) for name, tensor in state.items()}


def shapes_of(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a state, as `check_fit` wants them."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_fit(shapes: Mapping[str, tuple[int, ...]], config: DecoderConfig, *, source: str = "the weights") -> None:
    """ValueError that names the first tensor of the model or of `shapes` that differs, with both shapes.

    A tied head may be in `shapes` (some checkpoints carry it); it has the shape of the embedding.
    """
    wanted = tensor_shapes(config)
    tied = {HEAD: wanted[EMBEDDING]} if config.tie_word_embeddings and HEAD in shapes else {}
    for name in (*wanted, *tied, *shapes):
        has, needs = shapes.get(name), wanted.get(name, tied.get(name))
        if has != needs:
            raise ValueError(
                f"model: {source} do not fit: tensor {name} is {_shape_words(has)} there,"
                f" but {_shape_words(needs)} in the model. Use weights of the same architecture and sizes."
            )


def save_folder(
    folder: Path, config: DecoderConfig, tokenizer: PreTrainedTokenizerBase, state: Mapping[str, torch.Tensor]
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into `folder`: transformers loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_blob(folder / WEIGHTS_FILE, state)
    for name, content in describing_files(config, state[EMBEDDING].dtype, tokenizer).items():
        (folder / name).write_bytes(content)


def describing_files(config: DecoderConfig, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """What makes a folder with `model.safetensors` one that transformers loads: config.json, the tokenizer's files.

    `dtype` is that of the weights, whatever the model was read from.
    """
    own = {"architectures": [_CLASSES[config.architecture]], "dtype": str(dtype).removeprefix("torch.")}
    described = {name: value for name, value in config.described.items() if name != "torch_dtype"} | own
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return {CONFIG_FILE: (json.dumps(described, indent=2) + "\n").encode(), **files}


def _path_of(model: ModelSpec) -> Path:
    if model.path is None:
        raise ValueError("model: neither path nor config is given, so that there is no model. Give one of them.")
    return Path(model.path)


def _config_file(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ValueError(f"model.path: {folder} has no {CONFIG_FILE}. Give a Hugging Face checkpoint folder.")
    try:
        described = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"model.path: {file} is not whole JSON ({error}). Copy it again.") from error
    if not isinstance(described, dict):
        raise ValueError(f"model.path: {file} is no JSON object. Give a Hugging Face checkpoint folder.")
    return described


def _made_config(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """config.json of a model with random weights. What transformers has another default for is written out."""
    return {
        "model_type": config.architecture.value.lower(),
        "vocab_size": config.vocab_size or len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "use_cache": True,
    }


def _read_folder(folder: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    state = {name: tensor for file in _weight_files(folder) for name, tensor in _read_weights(file).items()}
    if config.tie_word_embeddings:
        state.pop(HEAD, None)
    return state


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        return read_blob(file)
    except SafetensorError as error:
        raise ValueError(f"model.path: {file} is not a whole safetensors file ({error}). Copy it again.") from error


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if not (folder / INDEX_FILE).is_file():
        raise ValueError(
            f"model.path: {folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}. Give a folder with safetensors weights."
        )
    names = sorted(set(json.loads((folder / INDEX_FILE).read_text())["weight_map"].values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"model.path: {folder} lacks {missing[0]}, which its {INDEX_FILE} names. Copy it whole.")
    return [folder / name for name in names]


def _shape_words(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"
