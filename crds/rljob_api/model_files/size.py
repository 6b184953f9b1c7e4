"""The sizes of a model, of its tensors and of its checkpoints, without building it: by formula or by its files.

Reads config.json and the heads of safetensors files, and no weight. The actor and what shows a job call
`checkpoint_interval` where `checkpoint.everySteps` is null. A checkpoint holds the policy, two moments in float32 and,
where the policy is not float32, the weights in float32: 12 bytes for a parameter in float32, 14 in bfloat16. It is
written while training goes on, so its cost is the disk; it saves steps that a restart trains again. At 1 GB/s, 6 GB are
a tenth of a step that takes a minute:

    everySteps = ceil(bytes / 6 GB), at most 50

In bfloat16 a model of up to 428 million parameters is saved at every step, one of 4 billion at every 10th, and one of
21 billion or more at every 50th.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Architecture, Dtype, ModelConfig, ModelSpec, tokenizer_size

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
    """Counts by the layers of the architecture.

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


def stored_head(file: Path) -> dict[str, Any]:
    """Name -> `dtype`, `shape` and `data_offsets` of every tensor of a safetensors file. OSError, ValueError."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_LENGTH_BYTES), "little")
        head: dict[str, Any] = json.loads(content.read(min(length, file.stat().st_size)))
    head.pop("__metadata__", None)
    return head


def _shapes_in(file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        for name, tensor in stored_head(file).items():
            yield name, tensor["shape"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model.path: {file} is not a whole safetensors file ({error!r}). Copy it again.") from error


_LAYER = re.compile(r"\.layers\.(\d+)\.")


_EXPERTS = ".experts."
"""In the name of a weight of an expert, or of one of all experts."""


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
    experts: int = 0
    """Weights of the experts in the largest layer, its router left out."""
    experts_per_token: int = 0
    """Experts of each layer that one token goes through."""


def model_shape(model: ModelSpec) -> ModelShape:
    """Shape of the job's model. ValueError, with a sentence, where files of `model.path` are missing or unreadable."""
    if model.config is not None:
        return shape_of_config(model.config)
    assert model.path is not None  # a rule: one of both
    return shape_of_files(_described(Path(model.path)), stored_shapes(Path(model.path)))


def shape_of_config(config: ModelConfig) -> ModelShape:
    """Shape of a model with random weights."""
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
    """Shape by config.json and all stored tensors: these count, so that any family comes out right."""
    fields = described.get("text_config") or described
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if fields.get("tie_word_embeddings", described.get("tie_word_embeddings")):
        sizes.pop(_HEAD, None)  # some folders carry the embedding twice
    layers: Counter[int] = Counter()
    experts: Counter[int] = Counter()
    for name, size in sizes.items():
        if found := _LAYER.search(name):
            layers[int(found[1])] += size
            experts[int(found[1])] += size if _EXPERTS in name else 0
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
        experts=max(experts.values(), default=0),
        experts_per_token=_size(fields, "num_experts_per_tok", default=0) if any(experts.values()) else 0,
    )


def critic_shape(spec: RLJobSpec, policy: ModelShape) -> ModelShape:
    """Shape of the job's critic, with a head of one row: by a reward model's files, or the policy's body."""
    critic = spec.roles.critic
    if critic is not None and critic.model_path is not None:
        folder = Path(critic.model_path)
        return replace(shape_of_files(_described(folder), stored_shapes(folder)), vocabulary=1)
    embedding = policy.vocabulary * policy.hidden
    is_tied = policy.outside < 2 * embedding
    added = policy.hidden - (0 if is_tied else embedding)
    return replace(policy, parameters=policy.parameters + added, outside=policy.outside + added, vocabulary=1)


def reference_shape(spec: RLJobSpec, policy: ModelShape) -> ModelShape:
    """Shape of the reference's model: by a teacher's files, or the policy's. Errors as above."""
    reference = spec.roles.reference
    if reference is None or reference.model_path is None:
        return policy
    folder = Path(reference.model_path)
    return shape_of_files(_described(folder), stored_shapes(folder))


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


BYTES_PER_STEP = 6 * 10**9
"""Bytes that may be written for each step: a tenth of a minute at 1 GB/s."""


MOST_STEPS = 50
"""However large the model is, no more steps are trained again after a restart."""


_MOMENT_BYTES = 8


_FLOAT32_BYTES = 4


def checkpoint_bytes(parameters: int, dtype: Dtype) -> int:
    """Bytes of one checkpoint of a model with so many parameters, over all ranks."""
    exact = 0 if dtype is Dtype.FLOAT32 else _FLOAT32_BYTES
    return parameters * (dtype.num_bytes + _MOMENT_BYTES + exact)


def fitting_interval(parameters: int, dtype: Dtype) -> int:
    """Steps from one checkpoint to the next that fit the size of the model."""
    return min(MOST_STEPS, max(1, -(-checkpoint_bytes(parameters, dtype) // BYTES_PER_STEP)))


def checkpoint_interval(spec: RLJobSpec) -> int:
    """The given interval, else one that fits the model. ValueError where the model's files cannot be read."""
    if spec.checkpoint.every_steps is not None:
        return spec.checkpoint.every_steps
    return fitting_interval(num_parameters(spec.model), spec.model.dtype)
