"""Log-probs and entropy of given tokens from hidden states, without logits of all tokens at once.

Products with the head are made in a wider type than its elements have, so that logits are not rounded before a softmax.
Pure torch; called by the trainers' models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
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


CHUNK_ELEMENTS = {"cpu": 1 << 25, "cuda": 1 << 27}
"""Logits of a chunk by device: 128 or 512 MiB in float32, of which two or three exist at a time.

Larger ones gain little time on a CPU. On an H100, 8192 tokens of 152k words took 105 ms at 2^25, 70 at 2^27 and 66 at
2^28, forward and backward, with a peak of 0.9, 1.6 and 3.0 GiB.
"""


@dataclass(frozen=True, slots=True)
class VocabularyPart:
    """Which rows of a head one rank has, where the ranks of a group hold it together."""

    first_row: int
    group: distributed.ProcessGroup


def chunked_log_probs(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    head_dtype: torch.dtype | None = None,
    chunk_elements: int | None = None,
    part: VocabularyPart | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log pi(target) and the entropy of pi, the distribution that the target was drawn from.

    Formula: z = hidden head^T; z = softcap tanh(z / softcap) where there is one; log pi = log_softmax(z / temperature);
    entropy = -sum pi log pi. (logsumexp(z) - sum pi z is the same, but a small difference of large numbers.)
    Shapes: hidden [tokens, width], head [vocabulary, width], targets [tokens] int64 -> two of [tokens], float32, or
    float64 where `hidden` is. Everything after the products is computed in the result's type.
    `head_dtype`: in which products with the head are summed and given, in the backward pass, too.
    None, or what is no wider: they are rounded to the type of `hidden`.
    Gradients: to hidden and head, of both results. The head's is added up in float32 at least, in one buffer.
    `part`: `head` has this rank's rows of it (one at least), and all ranks of the group have the same `hidden` and
    `targets`. They get the same results, by one exchange of three numbers a token, and none in the backward pass. The
    gradient to the head is that of these rows, and to `hidden` this rank's share, which the caller adds up.
    """
    chunk = max(1, (chunk_elements or CHUNK_ELEMENTS[head.device.type]) // head.shape[0])
    products = _products_dtype(hidden.dtype, head_dtype)
    scored: tuple[torch.Tensor, torch.Tensor] = _ChunkedLogProbs.apply(
        hidden, head, targets, float(temperature), softcap, chunk, products, part
    )
    return scored


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's
        hidden: torch.Tensor,
        head: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        softcap: float | None,
        chunk: int,
        products: torch.dtype,
        whole: VocabularyPart | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = _statistics_dtype(hidden.dtype)
        is_own = None
        if whole is not None:
            targets = targets - whole.first_row
            is_own = (targets >= 0) & (targets < len(head))
            targets = targets.clamp(0, len(head) - 1)
        log_probs, entropy, log_sum = (torch.empty(len(hidden), dtype=dtype, device=hidden.device) for _ in range(3))
        for part in _chunks(len(hidden), chunk):
            logits = _scaled(_capped(_products(hidden[part], head, products, dtype), softcap), temperature)
            log_sum[part] = logits.logsumexp(-1)
            all_log_probs = logits.sub_(log_sum[part, None])
            log_probs[part] = all_log_probs.gather(1, targets[part, None]).squeeze(1)
            entropy[part] = all_log_probs.exp().mul_(all_log_probs).sum(-1).neg_()
        if whole is not None and is_own is not None:
            of_parts = torch.stack([log_probs.masked_fill(~is_own, -torch.inf), entropy, log_sum])
            log_probs, entropy, log_sum = _joined(of_parts, whole.group)
        ctx.save_for_backward(hidden, head, targets, log_sum, entropy, is_own)
        ctx.settings = (temperature, softcap, chunk, products)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 -- torch's
        log_probs_gradient: torch.Tensor,
        entropy_gradient: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, head, targets, log_sum, entropy, is_own = ctx.saved_tensors
        temperature, softcap, chunk, products = ctx.settings
        dtype = _statistics_dtype(hidden.dtype)
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_head = torch.zeros_like(head, dtype=dtype) if ctx.needs_input_grad[1] else None
        target_gradient = log_probs_gradient if is_own is None else log_probs_gradient.masked_fill(~is_own, 0.0)
        entropy_matters = bool(entropy_gradient.any())  # mostly it is a metric: then a pass over the logits is saved
        for part in _chunks(len(hidden), chunk):
            capped = _capped(_products(hidden[part], head, products, dtype), softcap)
            slope = None if softcap is None else (capped / softcap).square_().neg_().add_(1.0)  # 1 - tanh^2
            all_log_probs = _scaled(capped, temperature).sub_(log_sum[part, None])
            # d log pi(t) / dz = [t] - pi, and d entropy / dz = -pi (log pi + entropy)
            upstream = log_probs_gradient[part, None]
            if entropy_matters:
                probs = all_log_probs.exp()
                upstream = all_log_probs.add_(entropy[part, None]).mul_(entropy_gradient[part, None]).add_(upstream)
                gradient = probs.mul_(upstream).neg_()
            else:
                gradient = all_log_probs.exp_().mul_(upstream).neg_()
            gradient.scatter_add_(1, targets[part, None], target_gradient[part, None])
            if slope is not None:
                gradient.mul_(slope)
            products_gradient = _scaled(gradient, temperature).to(products)
            if to_hidden is not None:
                to_hidden[part] = gradient_of_hidden(products_gradient, head)
            if to_head is not None:
                _add_product(to_head, products_gradient, hidden[part])
        return to_hidden, None if to_head is None else to_head.to(head.dtype), *(None,) * 6


def _joined(own: torch.Tensor, group: distributed.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, entropy and log-sum [tokens] over the whole vocabulary, from those over each rank's part [3, tokens].

    A part has the share exp(w) of all, with w = its log-sum - the log-sum of all. Then log pi = its own + w, -inf where
    the target is in another part, and entropy = sum exp(w) (its own - w).
    """
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    distributed.all_gather(gathered, own, group=group)
    log_probs, entropy, log_sums = torch.stack(gathered, 1)
    log_sum = log_sums.logsumexp(0)
    log_shares = log_sums - log_sum
    return (log_probs + log_shares).amax(0), (log_shares.exp() * (entropy - log_shares)).sum(0), log_sum


def _chunks(num_tokens: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, num_tokens)) for start in range(0, num_tokens, chunk)]


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _products_dtype(dtype: torch.dtype, head_dtype: torch.dtype | None) -> torch.dtype:
    return dtype if head_dtype is None else torch.promote_types(dtype, head_dtype)


def _products(hidden: torch.Tensor, head: torch.Tensor, products: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    """[chunk, vocabulary], a tensor of its own: what follows works in place."""
    return wide_logits(hidden, head, products).to(dtype)


def _capped(products: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return products if softcap is None else products.div_(softcap).tanh_().mul_(softcap)


def _scaled(values: torch.Tensor, temperature: float) -> torch.Tensor:
    return values if temperature == 1.0 else values.div_(temperature)


def _add_product(total: torch.Tensor, gradient: torch.Tensor, hidden: torch.Tensor) -> None:
    """Adds gradient^T hidden to [vocabulary, width], without rounding the total to the type of the factors."""
    if total.dtype == gradient.dtype:
        add_gradient_of_head(total, gradient, hidden)
    else:
        total.add_(gradient.t() @ hidden)
