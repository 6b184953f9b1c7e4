"""A decoder model: its config, its tensors' names and shapes, its initial weights, and its Hugging Face folder.

Used by engines, trainers and the roles' assembly. Knows no job beyond `ModelSpec`, and trains and serves nothing.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from rljob_api.model_files.decoder_config import DecoderConfig, read_config
from rljob_api.spec.model import Architecture, Dtype, ModelConfig, ModelSpec
from rljob_workers.models.blob import INDEX_FILE, WEIGHTS_FILE, read_blob, write_blob

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from transformers import PretrainedConfig, PreTrainedTokenizerBase


EMBEDDING = "model.embed_tokens.weight"


HEAD = "lm_head.weight"


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor."""
    vocabulary = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: vocabulary}
    for layer in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config)}
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes if config.tie_word_embeddings else {**shapes, HEAD: vocabulary}


def initial_weights(config: DecoderConfig, deviation: float, seed: int) -> dict[str, torch.Tensor]:
    """Weights from a normal distribution, norms 1, biases 0; float32, and a function of the arguments alone.

    They are bit for bit those that transformers draws for this seed. Its layers are drawn once when they are made, by
    torch's own rule, and again for the values that stay; only the head is made after the others have theirs.
    """
    chance = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(config)
    head = {HEAD: shapes.pop(HEAD)} if HEAD in shapes else {}
    return {name: tensor for part in (shapes, head) for name, tensor in _drawn_twice(part, deviation, chance).items()}


def _layer_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    attention = {"q": (query, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, query)}
    for name, shape in attention.items():
        yield from _linear(f"self_attn.{name}_proj", shape, has_bias=config.attention_bias)
    if config.architecture is Architecture.QWEN3:
        yield from (("self_attn.q_norm.weight", (config.head_dim,)), ("self_attn.k_norm.weight", (config.head_dim,)))
    for name, shape in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
        yield from _linear(f"mlp.{name}_proj", shape, has_bias=config.mlp_bias)
    yield from (("input_layernorm.weight", (hidden,)), ("post_attention_layernorm.weight", (hidden,)))


def _linear(name: str, shape: tuple[int, int], *, has_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    if has_bias:
        yield f"{name}.bias", shape[:1]


def _drawn_twice(
    shapes: Mapping[str, tuple[int, ...]], deviation: float, chance: torch.Generator
) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        weights[name] = torch.ones(shape)
        if name == EMBEDDING:
            weights[name].normal_(generator=chance)
        elif len(shape) == 2 or name.endswith(".bias"):
            weights[name].uniform_(generator=chance)
    for name, tensor in weights.items():
        if tensor.dim() == 2:
            tensor.normal_(0.0, deviation, generator=chance)
        elif name.endswith(".bias"):
            tensor.zero_()
    return weights


CONFIG_FILE = "config.json"


_CLASSES = {Architecture.LLAMA: "LlamaForCausalLM", Architecture.QWEN3: "Qwen3ForCausalLM"}
"""transformers' class of each, as config.json names it."""


_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a spec's `dtype`."""
    return _DTYPES[dtype]


def build_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> DecoderConfig:
    """What `model` is made of; ValueError where nothing here computes it, or it has no room for the tokenizer."""
    described = _made_config(model.config, tokenizer) if model.config else _config_file(_path_of(model))
    config = read_config(described)
    _check_vocabulary(config.vocab_size, tokenizer)
    return config


def described_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The config.json of `model`, of whatever family; ValueError where it has no room for the tokenizer."""
    described = _made_config(model.config, tokenizer) if model.config else _config_file(_path_of(model))
    size = described.get("vocab_size")
    if isinstance(size, int):
        _check_vocabulary(size, tokenizer)
    return described


def model_config(described: Mapping[str, Any]) -> PretrainedConfig:
    """The config that config.json describes; ValueError for a model_type that transformers does not know."""
    from transformers import CONFIG_MAPPING

    kind = described.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(
            f"model.path: its config.json has model_type {kind!r}, which this version of transformers does not know."
            " Give a causal language model of a family that it knows, or install a newer transformers."
        )
    return CONFIG_MAPPING[kind].from_dict(dict(described))


def initial_state(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Version 0: the weights in `path`, or random ones that are a function of `config` (its seed) alone."""
    config, dtype = build_config(model, tokenizer), torch_dtype(model.dtype)
    if model.config is None:
        state = _read_folder(_path_of(model), config)
        check_fit(state, config, source=f"the weights in {model.path}")
    else:  # drawn in float32 and rounded, so that jobs of either dtype start from the same weights
        state = initial_weights(config, model.config.initializer_range, model.config.seed)
    return {name: tensor.to(dtype) for name, tensor in state.items()}


def initial_tensors(
    model: ModelSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> dict[str, torch.Tensor]:
    """Some tensors of version 0, of a model of whatever family: of a folder only these are read."""
    state = stored_weights(_path_of(model)) if model.config is None else initial_state(model, tokenizer)
    missing = sorted(set(names) - state.keys())
    if missing:
        raise ValueError(f"model.path: {model.path} has no tensor {missing[0]}. Copy it again.")
    return {name: state[name].to(torch_dtype(model.dtype)) for name in names}


def stored_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a Hugging Face folder, mapped and not copied; ValueError where it lacks a file, or part of one."""
    return {name: tensor for file in weight_files(folder) for name, tensor in _read_weights(file).items()}


def check_fit(state: Mapping[str, torch.Tensor], config: DecoderConfig, *, source: str = "the weights") -> None:
    """ValueError that names the first tensor of the model or of `state` that differs, with both shapes.

    A tied head may be in `state` (some checkpoints carry it); it has the shape of the embedding.
    """
    wanted = tensor_shapes(config)
    check_shapes(state, wanted, {HEAD: wanted[EMBEDDING]} if config.tie_word_embeddings else {}, source=source)


def check_shapes(
    state: Mapping[str, torch.Tensor],
    wanted: Mapping[str, tuple[int, ...]],
    passed_over: Mapping[str, tuple[int, ...]],
    *,
    source: str,
) -> None:
    """As `check_fit`, of a model of whatever family with the tensors `wanted`; `passed_over` may be there.

    `source` stands before "do not fit" in the error.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    spare = {name: shape for name, shape in passed_over.items() if name in shapes}
    for name in (*wanted, *spare, *shapes):
        has, needs = shapes.get(name), wanted.get(name, spare.get(name))
        if has != needs:
            raise ValueError(
                f"model: {source} do not fit: tensor {name} is {_described_shape(has)} there,"
                f" but {_described_shape(needs)} in the model. Use weights of the same architecture and sizes."
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
    return saved_files({**config.described, "architectures": [_CLASSES[config.architecture]]}, dtype, tokenizer)


def model_files(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """The same of `model`, of whatever family; config.json has the dtype that the job trains in."""
    described = described_config(model, tokenizer)
    if model.config is not None:
        return describing_files(read_config(described), torch_dtype(model.dtype), tokenizer)
    return saved_files(described, torch_dtype(model.dtype), tokenizer)


def saved_files(
    described: Mapping[str, Any], dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase
) -> dict[str, bytes]:
    """A config.json that says `described` and the type of the weights, and the tokenizer's files."""
    others = {name: value for name, value in described.items() if name != "torch_dtype"}
    described = {**others, "dtype": str(dtype).removeprefix("torch.")}
    has_one_template = not isinstance(tokenizer.chat_template, dict)  # several would get a folder of their own
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder, save_jinja_files=has_one_template)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return {CONFIG_FILE: (json.dumps(described, indent=2) + "\n").encode(), **files}


def _check_vocabulary(size: int, tokenizer: PreTrainedTokenizerBase) -> None:
    if size < len(tokenizer):
        raise ValueError(
            f"model: the tokenizer has {len(tokenizer)} tokens, but the model only {size}"
            " (vocabSize). Raise vocabSize or use the model's own tokenizer."
        )


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
    state = stored_weights(folder)
    if config.tie_word_embeddings:
        state.pop(HEAD, None)
    return state


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    try:
        return read_blob(file)
    except SafetensorError as error:
        raise ValueError(f"model.path: {file} is not a whole safetensors file ({error}). Copy it again.") from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that a Hugging Face folder is made of; ValueError where one is missing."""
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


def _described_shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"
