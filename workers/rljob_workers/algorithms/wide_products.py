"""Products with a model's head in a wider type than its elements have: logits that are not rounded before a softmax.

A logit of 20 in bfloat16 is rounded to a sixteenth, so that log-probs of the same hidden states are off by hundredths,
on two sides differently. Here factors keep their type, and sums and results have the wider one. On a GPU its kernels do
that (the same as SGLang calls with --enable-fp32-lm-head); elsewhere the head is widened a block of rows at a time.

Shapes: hidden [tokens, width], head [vocabulary, width], gradient of logits [tokens, vocabulary].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = 1 << 25
"""Of the head, or of its gradient, that are widened at a time: 128 MiB in float32, as a chunk of logits."""


def wide_logits(hidden: torch.Tensor, head: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits hidden head^T [tokens, vocabulary] in `dtype`, a tensor of its own. Without a graph."""
    if hidden.dtype == dtype:
        return hidden @ head.t()
    if hidden.is_cuda:
        return torch.mm(hidden, head.t(), out_dtype=dtype)
    wide, logits = hidden.to(dtype), torch.empty(len(hidden), len(head), dtype=dtype, device=hidden.device)
    for block in _blocks(head):
        logits[:, block] = wide @ head[block].to(dtype).t()
    return logits


def gradient_of_hidden(gradient: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """The product gradient head [tokens, width], summed up in the type of the gradient of the logits."""
    if gradient.dtype == head.dtype:
        return gradient @ head
    if head.is_cuda:
        return torch.mm(gradient.to(head.dtype), head, out_dtype=gradient.dtype)
    total = gradient.new_zeros(len(gradient), head.shape[1])
    for block in _blocks(head):
        total.addmm_(gradient[:, block], head[block].to(gradient.dtype))
    return total


def add_gradient_of_head(total: torch.Tensor, gradient: torch.Tensor, hidden: torch.Tensor) -> None:
    """Adds gradient^T hidden to [vocabulary, width], which is in the type of the gradient of the logits."""
    if gradient.dtype == hidden.dtype:
        total.addmm_(gradient.t(), hidden)
    elif hidden.is_cuda:
        for block in _blocks(total):
            factor = gradient[:, block].to(hidden.dtype)
            total[block].add_(torch.mm(factor.t(), hidden, out_dtype=total.dtype))
    else:
        total.addmm_(gradient.t(), hidden.to(gradient.dtype))


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 -- torch's
        ctx.save_for_backward(hidden, head)
        return wide_logits(hidden, head, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 -- torch's
        hidden, head = ctx.saved_tensors
        to_hidden = gradient_of_hidden(gradient, head).to(hidden.dtype) if ctx.needs_input_grad[0] else None
        to_head = None
        if ctx.needs_input_grad[1]:
            to_head = torch.zeros_like(head, dtype=gradient.dtype)
            add_gradient_of_head(to_head, gradient, hidden)
            to_head = to_head.to(head.dtype)
        return to_hidden, to_head, None


def wide_linear(hidden: torch.Tensor, head: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits hidden head^T [..., vocabulary] in `dtype`, with gradients: for who makes all logits at once."""
    flat: torch.Tensor = _WideLinear.apply(hidden.flatten(0, -2), head, dtype)
    return flat.view(*hidden.shape[:-1], len(head))


def _blocks(rows: torch.Tensor) -> Iterator[slice]:
    height = max(1, BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), height):
        yield slice(start, min(start + height, len(rows)))
