"""The forward pass of Qwen3 and Llama over slots: prompts at once, then one token a step.

Used by the model loop only. Formulas as in Hugging Face's `modeling_qwen3` and `modeling_llama`; the order of heads'
elements differs (see `weights`). Shapes: B prompts or slots, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from rljob_workers.devices import moved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_workers.engines.torch_engine.geometry import Geometry
    from rljob_workers.engines.torch_engine.kv_cache import KvCache
    from rljob_workers.engines.torch_engine.length_runs import IntArray, Run
    from rljob_workers.engines.torch_engine.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Prompts that were computed: logits of their last tokens and what goes into the cache."""

    logits: torch.Tensor
    """[B, V] float32."""
    keys: list[torch.Tensor]
    """Per layer [B, kv_heads, T, head_dim]; beyond a prompt's length they mean nothing."""
    values: list[torch.Tensor]


class Decoder:
    """One model's forward pass; stateless but for the table of rotations."""

    def __init__(self, geometry: Geometry) -> None:
        """The table of rotations starts empty and grows with the longest sample."""
        self._geometry = geometry
        self._rotations = torch.empty(0, 1, geometry.head_dim // 2, dtype=torch.complex64, device=geometry.device)

    def prefill(self, weights: DecoderWeights, ids: torch.Tensor, lengths: torch.Tensor) -> Prefilled:
        """Computes padded prompts (`ids` and `lengths` are the host's).

        Padding stands on the right, where causal attention never looks back at it.
        """
        num_prompts, num_tokens = ids.shape
        ids, lengths = moved(ids, self._geometry.device), moved(lengths, self._geometry.device)
        x, keys, values = self._attend_causally(weights, ids)
        last = torch.arange(num_prompts, device=self._geometry.device) * num_tokens + lengths - 1
        return Prefilled(self._logits(weights, x[last]), keys, values)

    def score(self, weights: DecoderWeights, tokens: Sequence[int]) -> torch.Tensor:
        """Log-probs [T - 1] of tokens[1:], each given those before it; float32, on the host."""
        ids = moved(torch.tensor([tokens]), self._geometry.device)
        x, _, _ = self._attend_causally(weights, ids)
        log_probs = self._logits(weights, x[:-1]).log_softmax(-1)
        return log_probs.gather(1, ids[0, 1:, None])[:, 0].cpu()

    def _attend_causally(
        self, weights: DecoderWeights, ids: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Hidden states [B * T, H] of sequences [B, T] from their first token on; keys and values as in `Prefilled`."""
        num_prompts, num_tokens = ids.shape
        g = self._geometry
        rotations = self._rotation_table(num_tokens)[:num_tokens]
        x = functional.embedding(ids, weights.embedding).view(num_prompts * num_tokens, -1)
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
    """[slots, 1, 1, width]: which tokens a slot may look at, its new one included; None where it is all."""
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
