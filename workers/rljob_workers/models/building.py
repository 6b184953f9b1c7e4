"""Building a causal language model, its initial weights, and the Hugging Face folder it is saved to.

    tokenizer = build_tokenizer(spec.model)
    model = build_model(spec.model, tokenizer)            # structure; the weights are not set
    load_state(model, initial_state(spec.model, tokenizer))

For trainers and engines. Names are Hugging Face's; a tied `lm_head.weight` is in no state. Never asks a hub.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
)
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rljob_api.spec import Architecture, Dtype, ModelConfig, ModelSpec
from rljob_workers.models.blob import read_blob, write_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_CONFIGS: dict[Architecture, Callable[..., PretrainedConfig]] = {
    Architecture.QWEN3: Qwen3Config,
    Architecture.LLAMA: LlamaConfig,
}
_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a spec's `dtype`."""
    return _DTYPES[dtype]


def build_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Hugging Face's config of `model`; ValueError where the model has no room for the tokenizer."""
    config = _made_config(model.config, tokenizer) if model.config else _hub_config(_path_of(model))
    if config.vocab_size < len(tokenizer):
        raise ValueError(
            f"model: the tokenizer has {len(tokenizer)} tokens, but the model only {config.vocab_size}"
            " (vocabSize). Raise vocabSize or use the model's own tokenizer."
        )
    return config


def architecture_of(config: PretrainedConfig) -> str:
    """Name of transformers' class of causal language models for `config`."""
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])


def build_model(model: ModelSpec, tokenizer: PreTrainedTokenizerBase, *, attention: str = "sdpa") -> PreTrainedModel:
    """The structure of `model` on the CPU in its dtype, in eval mode; its weights are not set (see `load_state`)."""
    with _chance_untouched(), no_init_weights():
        built = _from_config(model, tokenizer, attention)
    built.tie_weights()
    built.train(mode=False)
    return built


def initial_state(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Version 0: the weights in `path`, or random ones that are a function of `config` (its seed) alone."""
    if model.config is None:
        read = _read_folder(_path_of(model), model.dtype)
        check_fit(shapes_of(read), build_model(model, tokenizer), source=f"the weights in {model.path}")
        return read
    # Drawn in float32 and rounded, so that jobs of either dtype start from the same weights.
    in_float32 = model.model_copy(update={"dtype": Dtype.FLOAT32})
    with _chance_untouched():
        torch.manual_seed(model.config.seed)
        state = state_of(_from_config(in_float32, tokenizer, "sdpa"))
    return {name: tensor.detach().to(torch_dtype(model.dtype)) for name, tensor in state.items()}


def state_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's own tensors (not copies) by Hugging Face's names, without those tied to another."""
    tied = _tied_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def shapes_of(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a state, as `check_fit` wants them."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_fit(shapes: Mapping[str, tuple[int, ...]], model: PreTrainedModel, *, source: str = "the weights") -> None:
    """ValueError that names the first tensor of `model` or of `shapes` that differs, with both shapes.

    A tied tensor may be in `shapes` (some checkpoints carry it); it has the shape of what it is tied to.
    """
    wanted = shapes_of(state_of(model))
    tied = {name: tuple(model.state_dict()[name].shape) for name in _tied_names(model) if name in shapes}
    for name in (*wanted, *tied, *shapes):
        has, needs = shapes.get(name), wanted.get(name, tied.get(name))
        if has != needs:
            raise ValueError(
                f"model: {source} do not fit: tensor {name} is {_shape_words(has)} there,"
                f" but {_shape_words(needs)} in the model. Use weights of the same architecture and sizes."
            )


def load_state(model: PreTrainedModel, state: Mapping[str, torch.Tensor], *, source: str = "the weights") -> None:
    """Copies `state` into `model`, all or (when it does not fit: ValueError) nothing."""
    check_fit(shapes_of(state), model, source=source)
    with torch.no_grad():
        for name, tensor in state_of(model).items():
            tensor.copy_(state[name])


def save_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into `folder`: transformers loads it.

    `state` (as `Trainer.stage_weights` gives it) instead of the model's own weights, where training goes on meanwhile.
    """
    weights = state_of(model) if state is None else state
    folder.mkdir(parents=True, exist_ok=True)
    write_blob(folder / WEIGHTS_FILE, weights)
    for name, content in describing_files(model.config, type(model).__name__, tokenizer).items():
        (folder / name).write_bytes(content)


def describing_files(
    config: PretrainedConfig, architecture: str, tokenizer: PreTrainedTokenizerBase
) -> dict[str, bytes]:
    """What makes a folder with `model.safetensors` one that transformers loads: config.json, the tokenizer's files."""
    described = {**json.loads(config.to_json_string()), "architectures": [architecture]}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    return {"config.json": (json.dumps(described, indent=2) + "\n").encode(), **files}


def _from_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase, attention: str) -> PreTrainedModel:
    built: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call] # transformers has no types here
        build_config(model, tokenizer), dtype=torch_dtype(model.dtype), attn_implementation=attention
    )
    return built


def _path_of(model: ModelSpec) -> Path:
    if model.path is None:
        raise ValueError("model: neither path nor config is given, so that there is no model. Give one of them.")
    return Path(model.path)


def _hub_config(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise ValueError(f"model.path: {folder} has no config.json. Give a Hugging Face checkpoint folder.")
    config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    return config


def _made_config(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    return _CONFIGS[config.architecture](
        vocab_size=config.vocab_size or len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        initializer_range=config.initializer_range,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )


def _read_folder(folder: Path, dtype: Dtype) -> dict[str, torch.Tensor]:
    files = _weight_files(folder)
    state = {name: tensor for file in files for name, tensor in _read_weights(file).items()}
    config = _hub_config(folder)
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return {name: tensor.to(torch_dtype(dtype)) for name, tensor in state.items()}


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


def _tied_names(model: PreTrainedModel) -> frozenset[str]:
    return frozenset(model.all_tied_weights_keys) if model.config.tie_word_embeddings else frozenset()


def _shape_words(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"


@contextmanager
def _chance_untouched() -> Iterator[None]:
    """Building a model draws random numbers; the caller's stream of them must not depend on it."""
    with torch.random.fork_rng(devices=[]):
        yield
