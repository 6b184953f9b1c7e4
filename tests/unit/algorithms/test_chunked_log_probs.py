"""Log-probs and entropy in chunks are those of all logits at once: values, gradients, memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from rljob_workers.algorithms import log_probs
from rljob_workers.algorithms.log_probs import chunked_log_probs, wide_linear
from tests.memory_meter import MemoryMeter
from tests.near import assert_near

TOKENS, WIDTH, VOCABULARY = 37, 24, 101
CHUNK_ELEMENTS = 8 * VOCABULARY
"""Several chunks, the last one not full."""


def naive(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ head.t()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_probs = torch.log_softmax(logits / temperature, -1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1)


def inputs(dtype: torch.dtype, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=chance, dtype=torch.float64) * scale
    head = torch.randn(VOCABULARY, WIDTH, generator=chance, dtype=torch.float64) / WIDTH**0.5
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=chance)
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), targets


def weighted(log_probs: torch.Tensor, entropy: torch.Tensor, *, with_entropy: bool) -> torch.Tensor:
    weights = torch.linspace(-1.0, 1.0, TOKENS, dtype=log_probs.dtype)
    return log_probs @ weights + (entropy @ weights.flip(0) if with_entropy else 0.0)


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize(("temperature", "softcap"), [(1.0, None), (0.7, None), (1.3, 5.0)])
@pytest.mark.parametrize(
    ("dtype", "head_dtype", "bound", "gradient_bound"),
    [
        (torch.float64, torch.float32, 1e-12, 1e-12),
        (torch.float32, None, 5e-6, 5e-6),
        (torch.bfloat16, None, 3e-2, 3e-2),
        (torch.bfloat16, torch.float32, 5e-6, 2.0**-8),
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_all_logits(
    dtype: torch.dtype,
    head_dtype: torch.dtype | None,
    bound: float,
    gradient_bound: float,
    temperature: float,
    softcap: float | None,
    with_entropy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bfloat16 products have 8 bits: an error of up to 0.8 % of the largest logit, in the gradients' factors, too.

    With float32 products only the gradients themselves are rounded.
    """
    monkeypatch.setattr(log_probs, "BLOCK_ELEMENTS", 30 * WIDTH)  # several blocks, the last one not full
    hidden, head, targets = inputs(dtype)
    found = chunked_log_probs(
        hidden,
        head,
        targets,
        temperature=temperature,
        softcap=softcap,
        head_dtype=head_dtype,
        chunk_elements=CHUNK_ELEMENTS,
    )
    weighted(*found, with_entropy=with_entropy).backward()  # type: ignore[no-untyped-call]
    exact_hidden, exact_head = (tensor.detach().double().requires_grad_() for tensor in (hidden, head))
    expected = naive(exact_hidden, exact_head, targets, temperature, softcap)
    weighted(*expected, with_entropy=with_entropy).backward()  # type: ignore[no-untyped-call]
    for name, one, other in zip(("log-probs", "entropy"), found, expected, strict=True):
        assert_near(one, other, bound, name)
    assert hidden.grad is not None
    assert exact_hidden.grad is not None
    assert head.grad is not None
    assert exact_head.grad is not None
    assert hidden.grad.dtype == head.grad.dtype == dtype
    assert_near(hidden.grad, exact_hidden.grad, gradient_bound, "gradient of the hidden states")
    assert_near(head.grad, exact_head.grad, gradient_bound, "gradient of the head")


def test_a_head_that_makes_all_logits_does_not_round_them_either() -> None:
    hidden, head, _ = inputs(torch.bfloat16)
    logits = wide_linear(hidden[None], head, torch.float32)
    exact_hidden, exact_head = (tensor.detach().double().requires_grad_() for tensor in (hidden, head))
    exact = exact_hidden[None] @ exact_head.t()
    assert logits.dtype == torch.float32
    assert_near(logits, exact, 1e-6, "logits")
    weights = torch.linspace(-1.0, 1.0, logits.numel()).view_as(logits)
    torch.autograd.backward([(logits * weights).sum(), (exact * weights).sum()])
    for name, one, other in (("hidden states", hidden, exact_hidden), ("head", head, exact_head)):
        assert one.grad is not None
        assert other.grad is not None
        assert_near(one.grad, other.grad, 2.0**-8, f"gradient of the {name}")


def test_the_entropy_of_a_peaked_distribution_keeps_its_digits() -> None:
    """Its logits are in the hundreds and its entropy is far below 1."""
    hidden, head, targets = inputs(torch.float32, scale=300.0)
    _, found = chunked_log_probs(hidden, head, targets, chunk_elements=CHUNK_ELEMENTS)
    _, expected = naive(hidden.double(), head.double(), targets, 1.0, None)
    assert_near(found, expected, 1e-4, "entropy")


def test_no_tokens_give_no_values_and_a_gradient_of_zero() -> None:
    hidden, head, targets = inputs(torch.float32)
    log_probs, entropy = chunked_log_probs(hidden[:0], head, targets[:0])
    (log_probs.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert log_probs.shape == entropy.shape == (0,)
    assert head.grad is not None
    assert not head.grad.any()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    tokens, width, vocabulary = 384, 16, 4096
    hidden = torch.randn(tokens, width, requires_grad=True)
    head = torch.randn(vocabulary, width, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    logits_bytes = tokens * vocabulary * 4

    def peak_bytes(log_probs_and_entropy: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> int:
        hidden.grad = head.grad = None
        with MemoryMeter() as meter:
            log_probs, entropy = log_probs_and_entropy()
            (log_probs.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call] # torch's
        peak: int = meter.peak_bytes  # the class is of torch, which has no types here
        return peak

    in_chunks = partial(chunked_log_probs, hidden, head, targets, chunk_elements=1 << 17)
    assert peak_bytes(in_chunks) < logits_bytes / 2
    assert peak_bytes(partial(naive, hidden, head, targets, 1.0, None)) > logits_bytes, "what growth would be seen as"
