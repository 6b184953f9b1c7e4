"""How float32 results are compared: by the largest error beside the largest element, never element by element.

A sum of float32 products has a rounding error of the size of its largest terms, however small the sum itself turns out,
and the CPU chooses the order of the terms, by its vector width and its fused multiply-add. So an element that is
nearly 0 has no digits of its own to compare, while the tensor as a whole has them all.
"""

from __future__ import annotations

import numpy as np
import torch

FORWARD = 1e-5
"""Of log-probs of a tiny model. Measured with no vector extensions, AVX2 and AVX-512: up to 1.3e-6 from float64."""

BACKWARD = 5e-5
"""Of its gradients. Measured: up to 7.6e-6. What is wrong with a formula, or a term that is left out, is above 1e-3."""

LOGITS = 10.0
"""The largest logits of tests. A log-prob is a difference of logits: near 0 it still has the error of their size."""

Numbers = torch.Tensor | np.ndarray


def assert_near(found: Numbers, expected: Numbers, bound: float, what: str = "the tensor") -> None:
    """Equal within `bound` of the largest element that is expected."""
    expected = torch.as_tensor(expected).detach().double()
    _assert_within(found, expected, bound * float(expected.abs().max()), what)


def assert_log_probs_near(found: Numbers, expected: Numbers) -> None:
    """For few tokens, which may all be likely ones: within the bound of the logits' scale."""
    _assert_within(found, expected, FORWARD * LOGITS, "log-probs")


def assert_moved_alike(found: Numbers, expected: Numbers, start: Numbers, bound: float, what: str) -> None:
    """Weights after optimizer steps: the length of their difference is within `bound` of the way from `start`.

    Adam moves an element by its gradient's sign even where the gradient is tiny: rounding may turn single ones round,
    so that the largest error is as large as a step, and only all elements together can be compared.
    """
    one, other, begun = (torch.as_tensor(numbers).detach().double() for numbers in (found, expected, start))
    way, error = float((other - begun).norm()), float((one - other).norm())
    assert way > 0, f"{what} did not move"
    assert error <= bound * way, f"{what}: off by {error / way:.1e} of the way it moved, more than {bound:.0e}"


def _assert_within(found: Numbers, expected: Numbers, limit: float, what: str) -> None:
    one, other = (torch.as_tensor(numbers).detach().double() for numbers in (found, expected))
    assert one.shape == other.shape, f"{what}: of shape {tuple(one.shape)}, not {tuple(other.shape)}"
    error = float((one - other).abs().max())
    assert error <= limit, f"{what}: off by {error:.1e}, more than {limit:.1e}"  # false for a NaN, too
