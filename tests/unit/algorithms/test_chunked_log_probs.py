"""Log-probs and entropy in chunks are those of all logits at once: values, gradients, memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rljob_workers.algorithms.chunked_log_probs import chunked_log_probs
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
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-6), (torch.bfloat16, 3e-2)], ids=str
)
def test_values_and_gradients_are_those_of_all_logits(
    dtype: torch.dtype, bound: float, temperature: float, softcap: float | None, with_entropy: bool
) -> None:
    """bfloat16 products have 8 bits: an error of up to 0.8 % of the largest logit, in the gradients' factors, too."""
    hidden, head, targets = inputs(dtype)
    found = chunked_log_probs(
        hidden, head, targets, temperature=temperature, softcap=softcap, chunk_elements=CHUNK_ELEMENTS
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
    assert_near(hidden.grad, exact_hidden.grad, bound, "gradient of the hidden states")
    assert_near(head.grad, exact_head.grad, bound, "gradient of the head")


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


_MEASURE = """
import resource, sys, torch
from rljob_workers.algorithms.chunked_log_probs import chunked_log_probs
torch.set_num_threads(1)
tokens, width, vocabulary = 1536, 16, 32768
hidden = torch.randn(tokens, width, requires_grad=True)
head = torch.randn(vocabulary, width, requires_grad=True)
targets = torch.randint(0, vocabulary, (tokens,))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = slice(0, 8)
def run(part):
    if sys.argv[1] == "chunked":
        log_probs, entropy = chunked_log_probs(hidden[part], head, targets[part], chunk_elements=1 << 21)
    else:
        all_log_probs = torch.log_softmax(hidden[part] @ head.t(), -1)
        log_probs = all_log_probs.gather(1, targets[part, None])
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
    (log_probs.sum() + entropy.sum()).backward()
run(few)
before = peak()
run(slice(None))
print(peak() - before)
"""


def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    """In a process of its own each, since a peak is one of a process's whole life."""
    logits_mib = 1536 * 32768 * 4 / 2**20
    assert _peak_mib("chunked") < logits_mib / 2
    assert _peak_mib("naive") > logits_mib, "what would be measured if it grew"


def _peak_mib(way: str) -> float:
    done = subprocess.run([sys.executable, "-c", _MEASURE, way], capture_output=True, text=True, check=True)
    return float(done.stdout)
