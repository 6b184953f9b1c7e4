"""A Hugging Face causal decoder whose weights live in one flat buffer, and its log-probs of packed rows.

Used by `flat_model` and `flat_critic` only. Rotary embeddings are those of Qwen3 and Llama; any other config is refused
by name.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rljob_workers.algorithms.log_probs import wide_linear
from rljob_workers.algorithms.objective import Outputs
from rljob_workers.devices import HOST, moved
from rljob_workers.models.building import EMBEDDING, HEAD, check_fit, tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rljob_api.model_files.decoder_config import DecoderConfig
    from rljob_workers.trainers.micro_batches import AttentionBlock, PackedRows


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Frequencies of one model."""

    frequencies: torch.Tensor
    """[head_dim / 2] float32, radians per position."""
    scale: float
    """What cos and sin are multiplied by; 1 but for yarn."""

    def to(self, device: torch.device) -> Rotary:
        """The same on another device."""
        return Rotary(self.frequencies.to(device), self.scale)

    def cos_and_sin(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """[positions, head_dim] each; both halves of a head turn alike."""
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotary_of(config: DecoderConfig) -> Rotary:
    """theta^(-2i / head_dim) for pair i, scaled by the model's `rope_type`."""
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        return Rotary(1.0 / (rope["rope_theta"] ** exponents), 1.0)
    fields = ("rope_parameters", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings")
    described = PreTrainedConfig(**{field: deepcopy(getattr(config, field)) for field in fields})
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](described)
    return Rotary(frequencies, scale)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""By `hidden_act` of config.json."""


_FUSED = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj"))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norms: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class Decoder:
    """Weights and forward pass of one Qwen3 or Llama model.

    `flat` holds every weight in `storage` dtype, matrices first (`num_decayed` elements: weight decay is for those).
    The forward pass runs in `compute` dtype; where that differs the weights are rounded on the way, with a gradient.
    Logits are in `head_dtype`, where that is given.
    Until `load` the weights are not set.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        storage: torch.dtype,
        compute: torch.dtype,
        head_dtype: torch.dtype | None = None,
        device: torch.device = HOST,
    ) -> None:
        self.config = config
        self._head_dtype = head_dtype
        self.device = device
        self.compute = compute
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_dim = config.head_dim
        self._epsilon = config.rms_norm_eps
        self._activation = _activation(config)
        self._rotary = rotary_of(config).to(device)
        self.flat, self.num_decayed, self.views = _flat(self._shapes(), storage, device)
        self.leaves = dict(_leaves(self.flat, self.views))

    def load(self, state: Mapping[str, torch.Tensor], *, source: str) -> None:
        """Copies `state`, all or (where it does not fit: ValueError, which names `source`) nothing."""
        self._check_fit(state, source)
        for name, view in self.views.items():
            view.copy_(state[name])

    def views_of(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views by Hugging Face's names of another buffer that is laid out as `flat`."""
        start = self.flat.storage_offset()
        return {
            name: flat[view.storage_offset() - start :][: view.numel()].view(view.shape)
            for name, view in self.views.items()
        }

    def enable_gradients(self, flat_gradient: torch.Tensor) -> None:
        """Gradients accumulate in `flat_gradient`, laid out as `flat`."""
        start = self.flat.storage_offset()
        for leaf in self.leaves.values():
            place = leaf.storage_offset() - start
            leaf.requires_grad_()
            leaf.grad = flat_gradient[place : place + leaf.numel()].view_as(leaf)

    def log_probs(self, tokens: torch.Tensor, plan: PackedRows, temperature: float) -> torch.Tensor:
        """Log pi of every response token [T], on the decoder's device, logits divided by `temperature`.

        float32, or float64 where it computes in that.

        `tokens` are the values that `plan` was made of, both on the host. Logits are computed at predicting tokens
        only, and the last layer beyond its attention too.
        """
        cast = {name: leaf.to(self.compute) for name, leaf in self.leaves.items()}
        targets = moved(tokens[plan.target_index].long(), self.device)
        x_sh, predictor = self._predicting_states(cast, tokens, plan)
        logits_sv = self._logits(x_sh, cast.get(HEAD, cast[EMBEDDING]))
        if temperature != 1.0:
            logits_sv = logits_sv / temperature
        return torch.log_softmax(logits_sv, -1)[predictor, targets]

    def outputs_of(self, tokens: torch.Tensor, plan: PackedRows, temperature: float) -> Outputs:
        """All that it computes of every response token; arguments and results as of `log_probs`."""
        return Outputs(log_probs=self.log_probs(tokens, plan, temperature))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor that it holds."""
        return tensor_shapes(self.config)

    def _check_fit(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        check_fit(state, self.config, source=source)

    def _predicting_states(
        self, cast: Mapping[str, torch.Tensor], tokens: torch.Tensor, plan: PackedRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the heads see, [S, H], at predicting tokens, and which of them is each response token's, [T].

        `cast` are the leaves in `compute`.
        """
        ids = moved(tokens[plan.token_index].long(), self.device)
        plan = plan.moved(self.device)
        x_nh = functional.embedding(ids, cast[EMBEDDING])
        cos, sin = (part[:, None] for part in self._rotary.cos_and_sin(plan.positions, self.compute))
        slots = plan.slot_of_token
        for index in range(self.config.num_hidden_layers):
            layer = self._layer(cast, index)
            context = self._attention(x_nh, layer, cos, sin, plan.blocks)
            if index == self.config.num_hidden_layers - 1:
                slots, x_nh = slots[plan.predicting], x_nh.index_select(0, plan.predicting)
            x_nh = x_nh + functional.linear(context.index_select(0, slots), layer.out, layer.out_bias)
            x_nh = x_nh + self._mlp(x_nh, layer)
        return self._norm(x_nh, cast["model.norm.weight"]), plan.predictor

    def _logits(self, x_sh: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        if self._head_dtype is not None:
            return wide_linear(x_sh, head, self._head_dtype)
        return functional.linear(x_sh, head).to(torch.promote_types(self.compute, torch.float32))

    def _attention(
        self,
        x_nh: torch.Tensor,
        layer: _Layer,
        cos: torch.Tensor,
        sin: torch.Tensor,
        blocks: tuple[AttentionBlock, ...],
    ) -> torch.Tensor:
        """Context of every slot of all blocks, [slots, A * D]."""
        hidden = self._norm(x_nh, layer.input_norm)
        num_rotated = self._num_heads + self._num_kv_heads
        qkv = functional.linear(hidden, layer.qkv, layer.qkv_bias)
        qkv_nad = qkv.view(-1, num_rotated + self._num_kv_heads, self._head_dim)
        qk_nad, v_nad = torch.split(qkv_nad, [num_rotated, self._num_kv_heads], 1)
        if layer.head_norms is not None:
            qk_nad = functional.rms_norm(qk_nad, (self._head_dim,), None, self._epsilon) * layer.head_norms
        rotated = qk_nad * cos + _rotate_half(qk_nad) * sin
        qkv_nad = torch.cat([rotated, v_nad], 1)
        contexts = [self._attend(qkv_nad, block) for block in blocks]
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)

    def _attend(self, qkv_nad: torch.Tensor, block: AttentionBlock) -> torch.Tensor:
        num_sequences, length = block.slots.shape
        slots = qkv_nad.index_select(0, block.slots.view(-1)).view(num_sequences, length, -1, self._head_dim)
        heads = [self._num_heads, self._num_kv_heads, self._num_kv_heads]
        q, k, v = torch.split(slots.transpose(1, 2), heads, 1)
        context = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=block.mask, is_causal=block.mask is None, enable_gqa=True
        )
        return context.transpose(1, 2).reshape(num_sequences * length, self._num_heads * self._head_dim)

    def _mlp(self, x_nh: torch.Tensor, layer: _Layer) -> torch.Tensor:
        hidden = self._norm(x_nh, layer.mlp_norm)
        gate, up = functional.linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return functional.linear(self._activation(gate) * up, layer.down, layer.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._epsilon)

    def _layer(self, weights: Mapping[str, torch.Tensor], index: int) -> _Layer:
        prefix = f"model.layers.{index}."
        norms = [weights.get(f"{prefix}self_attn.{which}_norm.weight") for which in "qk"]
        return _Layer(
            input_norm=weights[f"{prefix}input_layernorm.weight"],
            qkv=weights[f"{prefix}self_attn.q_proj.weight"],
            qkv_bias=weights.get(f"{prefix}self_attn.q_proj.bias"),
            head_norms=None if norms[0] is None or norms[1] is None else self._head_norms(norms[0], norms[1]),
            out=weights[f"{prefix}self_attn.o_proj.weight"],
            out_bias=weights.get(f"{prefix}self_attn.o_proj.bias"),
            mlp_norm=weights[f"{prefix}post_attention_layernorm.weight"],
            gate_up=weights[f"{prefix}mlp.gate_proj.weight"],
            gate_up_bias=weights.get(f"{prefix}mlp.gate_proj.bias"),
            down=weights[f"{prefix}mlp.down_proj.weight"],
            down_bias=weights.get(f"{prefix}mlp.down_proj.bias"),
        )

    def _head_norms(self, q_norm: torch.Tensor, k_norm: torch.Tensor) -> torch.Tensor:
        """[A, D]: one multiplication for the heads of q and k together."""
        return torch.cat(
            [q_norm.expand(self._num_heads, self._head_dim), k_norm.expand(self._num_kv_heads, self._head_dim)]
        )


def _activation(config: DecoderConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    if config.hidden_act not in ACTIVATIONS:
        raise ValueError(
            f"model.path: its config.json has hidden_act {config.hidden_act!r}, but the torch trainer knows"
            f" {', '.join(ACTIVATIONS)}. Use a model with one of these."
        )
    return ACTIVATIONS[config.hidden_act]


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _flat(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
    """One buffer: matrices, then vectors, what is fused side by side; how much of it is matrices; its views by name."""
    names = sorted(shapes, key=lambda name: len(shapes[name]) < 2)  # stable: layers stay in order
    ordered = [part for name in names for part in _with_fused(name)]
    sizes = {name: math.prod(shapes[name]) for name in ordered}
    flat = torch.empty(sum(sizes.values()), dtype=dtype, device=device)
    views = {
        name: part.view(shapes[name])
        for name, part in zip(ordered, torch.split(flat, list(sizes.values())), strict=True)
    }
    return flat, sum(size for name, size in sizes.items() if len(shapes[name]) >= 2), views


def _with_fused(name: str) -> list[str]:
    """`name` and those that are fused with it, for the first of them; nothing for the others."""
    for parts in _FUSED:
        if any(part in name for part in parts[1:]):
            return []
        if parts[0] in name:
            return [name.replace(parts[0], part) for part in parts]
    return [name]


def _leaves(flat: torch.Tensor, views: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that the forward pass uses, by the name of their first part: fused where they are fused."""
    for name in views:
        parts = _with_fused(name)
        if not parts:
            continue
        first = views[name]
        size = sum(views[part].numel() for part in parts)
        place = first.storage_offset() - flat.storage_offset()
        rows = sum(views[part].shape[0] for part in parts)
        yield name, flat[place : place + size].view(rows, *first.shape[1:]).detach()
