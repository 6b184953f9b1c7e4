"""Attention over rows that lie back to back in one sequence: each row sees itself alone.

    register()                                                      # once per process
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    model.base_model(input_ids=..., position_ids=..., use_cache=False, row_blocks=inputs.row_blocks)

transformers' own ways see the packing in `position_ids` only with no attention mask and no cache; with either, rows see
each other, and no error comes. And its mask, where it makes one, is as large as the whole sequence squared. This one
gets the rows by an argument of its own (transformers hands unknown arguments down to it; no mask is made for a name
that has no mask function) and does not run without them.

One kernel call per block of rows of similar length, on any device that has torch's scaled_dot_product_attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rljob_workers.trainers.fsdp.inputs import RowBlocks

NAME = "rljob_rows"


def register() -> None:
    """Makes the name known to transformers. May be called twice."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_within_rows)


def attend_within_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    row_blocks: RowBlocks,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,  # noqa: ANN401 -- transformers' own, which change nothing here
) -> tuple[torch.Tensor, None]:
    """Causal attention of each row over itself. The signature is transformers'.

    Shapes: query [1, heads, tokens, width], key and value [1, key heads, tokens, width] -> [1, tokens, heads, width].
    `sliding_window`: how many tokens a token sees, itself included. `softcap`: scores become c tanh(score / c).
    """
    del module, others
    assert attention_mask is None, "no mask is made for this attention, and none is read"
    if s_aux is not None:
        raise ValueError(
            "model.path: its attention has sinks, which cannot be packed here. Set training.packing to false."
        )
    results = []
    for block in row_blocks.blocks:
        queries, keys, values = (_rows_of(tensor, block) for tensor in (query, key, value))
        mask = _window_mask(block.shape[1], sliding_window, block.device)
        if softcap is None:
            attended = scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
            )
        else:
            attended = _softcapped(queries, keys, values, mask, scaling, softcap)
        results.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)[row_blocks.slot_of_token][None], None


def _rows_of(tensor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, width] -> [rows, heads, longest, width]."""
    return tensor[0][:, block].transpose(0, 1)


def _window_mask(length: int, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """[length, length], True where a token (dim 0) sees another. None: it sees all before it."""
    if not sliding_window or length <= sliding_window:
        return None
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance >= 0) & (distance < sliding_window)


def _softcapped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """No kernel of torch caps scores, so they are all held: [rows, heads, longest, longest]."""
    length = queries.shape[2]
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
    groups = queries.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(groups, 1) for tensor in (keys, values))
    scores = queries @ keys.transpose(2, 3) * (queries.shape[3] ** -0.5 if scaling is None else scaling)
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(values.dtype) @ values
