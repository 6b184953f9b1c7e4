"""The decoder of Qwen3 and Llama for inference: its shape, its weights, its KV cache, and the forward pass over slots.

Used by the scheduler only: prompts at once, then one token a step. Knows slots, and neither samples nor requests. What
its kernels do not compute is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch.nn import functional

from rljob_api.spec.model import Architecture
from rljob_workers.devices import HOST, moved
from rljob_workers.engines.torch_engine.slots import round_width
from rljob_workers.models.building import EMBEDDING, HEAD, tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rljob_api.model_files.decoder_config import DecoderConfig
    from rljob_workers.engines.torch_engine.requests import IntArray
    from rljob_workers.engines.torch_engine.slots import Run


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and constants of one decoder-only model."""

    has_qk_norm: bool
    """Qwen3 normalises every query and key head; Llama does not."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    """Longest prompt + output, in tokens."""
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    dtype: torch.dtype
    head_dtype: torch.dtype
    """Of logits, and of the head that makes them, which is held in it."""
    device: torch.device
    """Where weights and cache are and the passes run. Prompts and parameters come from the host, tokens go to it."""
    tensors: Mapping[str, tuple[int, ...]]
    """Hugging Face name -> shape of every tensor that a weight file must hold."""

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def cell_bytes(self) -> int:
        """Bytes of KV cache that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def geometry_of(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device = HOST, head_dtype: torch.dtype | None = None
) -> Geometry:
    """Reads the geometry; a config that the kernels would compute wrongly is refused with a sentence.

    Logits are in `dtype` where there is no `head_dtype`.
    """
    _refuse_unsupported(config)
    return Geometry(
        has_qk_norm=config.architecture is Architecture.QWEN3,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        tied_embeddings=config.tie_word_embeddings,
        dtype=dtype,
        head_dtype=head_dtype or dtype,
        device=device,
        tensors=tensor_shapes(config),
    )


def _refuse_unsupported(config: DecoderConfig) -> None:
    """Raises ValueError for what would otherwise give wrong logits silently."""
    rope_type = config.rope_parameters["rope_type"]
    if rope_type != "default":
        raise ValueError(
            f"rope_parameters.rope_type: {rope_type!r} is not computed by the torch engine, only 'default'. "
            "Choose a model without rope scaling or another engine."
        )
    for field, has_bias in (("attention_bias", config.attention_bias), ("mlp_bias", config.mlp_bias)):
        if has_bias:
            raise ValueError(
                f"{field}: true is not computed by the torch engine. Choose a model without it or another engine."
            )
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act: {config.hidden_act!r} is not computed by the torch engine, only 'silu'.")


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer; matrices are [in, out], so that `x @ w` needs no transpose."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor | None
    """[num_heads + num_kv_heads, head_dim]: the query norm for every query head, then the key norm."""
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """All weights of one version."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor


def read_weights(path: Path, geometry: Geometry) -> DecoderWeights:
    """Loads a safetensors file, or every `*.safetensors` of a folder. ValueError names what does not fit."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"model_path: there is no safetensors file at {path}. Give a file or a folder that holds one.")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"model_path: {file} is not a readable safetensors file ({error}).") from error
    return fuse_weights(tensors, geometry)


def fuse_weights(tensors: Mapping[str, torch.Tensor], geometry: Geometry) -> DecoderWeights:
    """Copies Hugging Face tensors into the kernels' layout. ValueError names the first one that does not fit."""
    _check_fit(tensors, geometry)
    embedding = _own(tensors[EMBEDDING], geometry)
    head = embedding if geometry.tied_embeddings else _own(tensors[HEAD], geometry)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_fuse_layer(tensors, layer, geometry) for layer in range(geometry.num_layers)),
        final_norm=_own(tensors["model.norm.weight"], geometry),
        head=head.to(geometry.head_dtype).t().contiguous(),
    )


def _fuse_layer(tensors: Mapping[str, torch.Tensor], layer: int, geometry: Geometry) -> LayerWeights:
    def take(name: str) -> torch.Tensor:
        return _own(tensors[f"model.layers.{layer}.{name}.weight"], geometry)

    query, key = (_pair_rows(take(f"self_attn.{name}_proj"), geometry) for name in ("q", "k"))
    return LayerWeights(
        input_norm=take("input_layernorm"),
        qkv=torch.cat([query, key, take("self_attn.v_proj")]).t().contiguous(),
        qk_norm=_qk_norm(take("self_attn.q_norm"), take("self_attn.k_norm"), geometry)
        if geometry.has_qk_norm
        else None,
        out=take("self_attn.o_proj").t().contiguous(),
        post_norm=take("post_attention_layernorm"),
        gate_up=torch.cat([take("mlp.gate_proj"), take("mlp.up_proj")]).t().contiguous(),
        down=take("mlp.down_proj").t().contiguous(),
    )


def _pair_order(head_dim: int) -> torch.Tensor:
    """Hugging Face rotates element i with i + head_dim/2; put next to each other they are one complex number.

    Queries and keys are permuted alike, so that their products do not change.
    """
    first = torch.arange(head_dim // 2)
    return torch.stack([first, first + head_dim // 2], dim=1).flatten()


def _pair_rows(weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    heads = weight.view(-1, geometry.head_dim, geometry.hidden_size)
    return heads[:, _pair_order(geometry.head_dim)].reshape(weight.shape)


def _qk_norm(query: torch.Tensor, key: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    order = _pair_order(geometry.head_dim)
    return torch.cat([query[order].expand(geometry.num_heads, -1), key[order].expand(geometry.num_kv_heads, -1)])


def _own(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    return tensor.to(geometry.device, geometry.dtype, copy=True).contiguous()


def _check_fit(tensors: Mapping[str, torch.Tensor], geometry: Geometry) -> None:
    for name, shape in geometry.tensors.items():
        if name not in tensors:
            raise ValueError(f"weights: {name} is missing. The file is not of this model.")
        if tuple(tensors[name].shape) != shape:
            raise ValueError(
                f"weights: {name} has shape {tuple(tensors[name].shape)}, but the model needs {shape}. "
                "The file is not of this model."
            )
    known = geometry.tensors.keys() | ({HEAD} if geometry.tied_embeddings else set())
    unknown = sorted(tensors.keys() - known)
    if unknown:
        raise ValueError(f"weights: {unknown[0]} (and {len(unknown) - 1} more) is no tensor of this model.")


class KvCache:
    """Preallocated slots. `keys[layer]` and `values[layer]` may be replaced by `reserve`: never keep them."""

    def __init__(self, geometry: Geometry, max_cells: int) -> None:
        """Starts empty. `max_cells`: slots x width that are allocated at most, where what is asked for allows it."""
        self._geometry = geometry
        self._max_cells = max_cells
        self.num_slots = 0
        self.width = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.drop()

    def drop(self) -> None:
        """Frees everything."""
        self.num_slots = self.width = 0
        self.keys = [self._allocate() for _ in range(self._geometry.num_layers)]
        self.values = [self._allocate() for _ in range(self._geometry.num_layers)]

    def reserve(self, num_slots: int, width: int) -> None:
        """Makes room for `num_slots` slots of `width` tokens; what they hold stays. Grows in large steps."""
        if num_slots <= self.num_slots and width <= self.width:
            return
        slots = max(num_slots, self.num_slots * 2) if num_slots > self.num_slots else self.num_slots
        tokens = max(width, self.width + self.width // 2) if width > self.width else self.width
        if slots * round_width(tokens) > self._max_cells:
            slots, tokens = num_slots, width
        self.num_slots, self.width = slots, round_width(tokens)
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                store[layer] = self._allocate()
                present = old[:slots, :, : self.width]
                store[layer][: present.shape[0], :, : present.shape[2]] = present

    def move(self, sources: torch.Tensor, targets: torch.Tensor, width: int) -> None:
        """Copies the first `width` tokens of slots `sources` into slots `targets`, all at once."""
        sources, targets = (moved(slots, self._geometry.device) for slots in (sources, targets))
        for store in (self.keys, self.values):
            for layer in store:
                layer[targets, :, :width] = layer[sources, :, :width]

    def write_prompts(self, layer: int, first_slot: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores [slots, kv_heads, tokens, head_dim] from slot `first_slot` on, at tokens 0."""
        slots = slice(first_slot, first_slot + keys.shape[0])
        self.keys[layer][slots, :, : keys.shape[2]] = keys
        self.values[layer][slots, :, : values.shape[2]] = values

    def _allocate(self) -> torch.Tensor:
        g = self._geometry
        return torch.zeros(self.num_slots, g.num_kv_heads, self.width, g.head_dim, dtype=g.dtype, device=g.device)


class Decoder:
    """One model's forward pass; stateless but for the table of rotations."""

    def __init__(self, geometry: Geometry) -> None:
        """The table of rotations starts empty and grows with the longest sample."""
        self._geometry = geometry
        self._rotations = torch.empty(0, 1, geometry.head_dim // 2, dtype=torch.complex64, device=geometry.device)

    def prefill(
        self,
        weights: DecoderWeights,
        ids: torch.Tensor,
        lengths: torch.Tensor,
        cache: KvCache,
        first_slot: int,
        copies: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes padded prompts [B, T] (`ids`, `lengths` and `copies` are the host's); logits [slots, V] float32.

        Their KV goes to as many slots from `first_slot` on as each has `copies` [B] (None: one), for which the cache
        has room. Padding stands on the right, where causal attention never reads it.
        """
        num_prompts, num_tokens = ids.shape
        each = torch.arange(num_prompts)
        x, keys, values = self._attend_causally(weights, ids)
        last = moved(each * num_tokens + lengths - 1, self._geometry.device)
        logits = self._logits(weights, x[last])
        source = moved(each if copies is None else each.repeat_interleave(copies), self._geometry.device)
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            cache.write_prompts(layer, first_slot, key[source], value[source])
        return logits[source]

    def score(self, weights: DecoderWeights, tokens: Sequence[int]) -> torch.Tensor:
        """Log-probs [T - 1] of tokens[1:], each given those before it; float32, on the host."""
        ids = torch.tensor(tokens)
        x, _, _ = self._attend_causally(weights, ids[None])
        log_probs = self._logits(weights, x[:-1]).log_softmax(-1)
        return log_probs.gather(1, moved(ids[1:, None], log_probs.device))[:, 0].cpu()

    def _attend_causally(
        self, weights: DecoderWeights, ids: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Hidden states [B * T, H] of sequences [B, T] (of the host) from their first token on, and keys and values.

        Those are, per layer, [B, kv_heads, T, head_dim]; beyond a sequence's length they mean nothing.
        """
        num_prompts, num_tokens = ids.shape
        g = self._geometry
        rotations = self._rotation_table(num_tokens)[:num_tokens]
        x = functional.embedding(moved(ids, g.device), weights.embedding).view(num_prompts * num_tokens, -1)
        keys, values = [], []
        for layer in weights.layers:
            qk, v = self._project(layer, x)
            qk = self._rotate(qk.view(num_prompts, num_tokens, -1, g.head_dim), rotations).transpose(1, 2)
            q, k = qk[:, : g.num_heads], qk[:, g.num_heads :]
            v = v.view(num_prompts, num_tokens, -1, g.head_dim).transpose(1, 2)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=g.group_size > 1)
            x = self._finish_layer(layer, x, attended.transpose(1, 2).reshape(num_prompts * num_tokens, -1))
            keys.append(k)
            values.append(v)
        return x, keys, values

    def decode(
        self, weights: DecoderWeights, last_tokens: IntArray, cached: IntArray, runs: Sequence[Run], cache: KvCache
    ) -> torch.Tensor:
        """Feeds one token to slots 0..B-1, whose caches hold `cached` tokens; returns logits [B, V] float32."""
        g = self._geometry
        num_slots = len(last_tokens)
        longest = [int(cached[run.start : run.stop].max()) + 1 for run in runs]
        cache.reserve(num_slots, max(longest))
        ids, lengths = (moved(torch.from_numpy(column), g.device) for column in (last_tokens, cached))
        rotations = self._rotation_table(max(longest))[lengths]
        masks = [_mask(lengths, run, width) for run, width in zip(runs, longest, strict=True)]
        x = functional.embedding(ids, weights.embedding)
        for index, layer in enumerate(weights.layers):
            qk, v = self._project(layer, x)
            qk = self._rotate(qk, rotations)
            k = qk[:, g.num_heads :]
            # Query heads of one key head become its query length: no key or value is repeated.
            q = qk[:, : g.num_heads].reshape(num_slots, g.num_kv_heads, g.group_size, g.head_dim)
            keys, values = cache.keys[index], cache.values[index]
            parts = []
            for run, width, mask in zip(runs, longest, masks, strict=True):
                part = slice(run.start, run.stop)
                _append_token(keys, k, lengths, run, width)
                _append_token(values, v, lengths, run, width)
                parts.append(
                    functional.scaled_dot_product_attention(
                        q[part], keys[part, :, :width], values[part, :, :width], attn_mask=mask
                    )
                )
            attended = parts[0] if len(parts) == 1 else torch.cat(parts)
            x = self._finish_layer(layer, x, attended.reshape(num_slots, -1))
        return self._logits(weights, x)

    def _project(self, layer: LayerWeights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised queries and keys in one tensor [B, heads + kv_heads, head_dim], and values."""
        g = self._geometry
        hidden = functional.rms_norm(x, (g.hidden_size,), layer.input_norm, g.norm_eps)
        qkv = (hidden @ layer.qkv).view(-1, g.num_heads + 2 * g.num_kv_heads, g.head_dim)
        qk, v = qkv[:, : -g.num_kv_heads], qkv[:, -g.num_kv_heads :]
        if layer.qk_norm is not None:
            qk = functional.rms_norm(qk, (g.head_dim,), None, g.norm_eps) * layer.qk_norm
        return qk, v

    def _finish_layer(self, layer: LayerWeights, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        g = self._geometry
        x = torch.addmm(x, attended, layer.out)
        hidden = functional.rms_norm(x, (g.hidden_size,), layer.post_norm, g.norm_eps)
        gate, up = (hidden @ layer.gate_up).chunk(2, dim=-1)
        return torch.addmm(x, functional.silu(gate).mul_(up), layer.down)

    def _logits(self, weights: DecoderWeights, x: torch.Tensor) -> torch.Tensor:
        g = self._geometry
        hidden = functional.rms_norm(x, (g.hidden_size,), weights.final_norm, g.norm_eps)
        return (hidden.to(g.head_dtype) @ weights.head).float()

    def _rotate(self, heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of [..., heads, head_dim] whose pairs are adjacent, in float32."""
        pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)

    def _rotation_table(self, num_positions: int) -> torch.Tensor:
        """[positions, 1, head_dim / 2] complex: exp(i * position / theta^(2j / head_dim))."""
        if num_positions > self._rotations.shape[0]:
            g = self._geometry
            exponents = torch.arange(0, g.head_dim, 2, dtype=torch.int64, device=g.device).float() / g.head_dim
            frequencies = 1.0 / (g.rope_theta**exponents)
            angles = torch.arange(2 * num_positions, device=g.device).float()[:, None] * frequencies
            self._rotations = torch.complex(angles.cos(), angles.sin())[:, None]
        return self._rotations


def _mask(lengths: torch.Tensor, run: Run, width: int) -> torch.Tensor | None:
    """[slots, 1, 1, width]: which tokens a slot attends to, its new one included; None where it is all."""
    if run.is_uniform:
        return None
    return (torch.arange(width, device=lengths.device) <= lengths[run.start : run.stop, None])[:, None, None]


def _append_token(store: torch.Tensor, new: torch.Tensor, lengths: torch.Tensor, run: Run, width: int) -> None:
    """Writes one token of every slot of the run behind what the slot holds."""
    if run.is_uniform:
        store[run.start : run.stop, :, width - 1] = new[run.start : run.stop]
    else:
        slots = torch.arange(run.start, run.stop, device=lengths.device)
        store[slots, :, lengths[run.start : run.stop]] = new[run.start : run.stop]
