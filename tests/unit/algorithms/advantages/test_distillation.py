"""On-policy distillation: by hand, by a loop, and its gradient beside that of the reverse KL."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.distillation import distillation
from rljob_workers.tensors.columns import Column

from .rows import Row, as_rows, as_tokens, make_row, some_rows


def found(rows: Sequence[Row], policy: Sequence[float], teacher: Sequence[float]) -> torch.Tensor:
    given_rows = replace(
        as_rows(rows),
        log_probs=torch.tensor(policy, dtype=torch.float32),
        ref_log_probs=torch.tensor(teacher, dtype=torch.float32),
    )
    return distillation(given_rows)[Column.ADVANTAGES]


@pytest.mark.parametrize(
    ("row", "policy", "teacher", "advantages"),
    [
        pytest.param(make_row(9.0, [1, 1]), [-1.0, -2.0], [-0.5, -5.0], [0.5, -3.0], id="likelier, then unlikelier"),
        pytest.param(make_row(0.0, [1, 0, 1]), [-1.0, -7.0, -2.0], [-2.0, 0.0, -2.0], [-1.0, 0.0, 0.0], id="a tool's"),
        pytest.param(make_row(9.0, [1, 1], valid=False), [-1.0, -2.0], [-3.0, -3.0], [0.0, 0.0], id="not scored"),
        pytest.param(make_row(9.0, [0]), [-1.0], [-3.0], [0.0], id="the model drew nothing"),
    ],
)
def test_by_hand(row: Row, policy: list[float], teacher: list[float], advantages: list[float]) -> None:
    assert found([row], policy, teacher).tolist() == advantages
    beside = [make_row(1.0, [1]), row, make_row(1.0, [1])]
    within = found(beside, [-1.0, *policy, -1.0], [-2.0, *teacher, -2.0])
    assert within.tolist() == [-1.0, *advantages, -1.0]


@given(some_rows(), st.randoms(use_true_random=False))
def test_every_drawn_token_has_the_gap_of_a_loop(rows: list[Row], chance: random.Random) -> None:
    gaps, policy, teacher = {}, [], []
    for number, row in enumerate(rows):
        for place in range(len(row.masks)):
            policy.append(-10 * chance.random())
            teacher.append(-10 * chance.random())
            if place in row.drawn:
                gaps[number, place] = teacher[-1] - policy[-1]
    torch.testing.assert_close(found(rows, policy, teacher).double(), as_tokens(rows, gaps), atol=1e-5, rtol=1e-5)


def test_its_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Over all tokens of a small vocabulary, each by its probability: sum_y pi(y) A(y) grad log pi(y) = -grad KL."""
    chance = torch.Generator().manual_seed(4)
    logits = torch.randn(7, generator=chance, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, generator=chance, dtype=torch.float64).log_softmax(0)
    log_probs = logits.log_softmax(0)
    kl = (log_probs.exp() * (log_probs - teacher)).sum()
    (of_kl,) = torch.autograd.grad(kl, logits, retain_graph=True)
    advantages = found([make_row(0.0, [1] * 7)], log_probs.tolist(), teacher.tolist()).double()
    (of_policy,) = torch.autograd.grad((log_probs.exp().detach() * advantages * log_probs).sum(), logits)
    torch.testing.assert_close(of_policy, -of_kl, atol=1e-6, rtol=1e-6)
