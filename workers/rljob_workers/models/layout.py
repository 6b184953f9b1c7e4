"""The tensors of a decoder: their names and shapes, and their initial weights.

For `building`, trainers and engines. Names and order are Hugging Face's; a tied `lm_head.weight` is no tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_api.spec import Architecture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_api.decoder_config import DecoderConfig

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
