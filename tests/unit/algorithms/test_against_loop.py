"""Losses and corrections against a loop that is written from the papers' formulas, row by row, in float64.

A policy that is a table of logits is trained in several steps on rows of an older policy, with log-probs of an engine
that computes a little differently: so ratios, clips and corrections are all at work. The share of tokens whose gradient
is another one than the parent algorithm's is printed (pytest -s), and must not be 0: the rows would prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from rljob_workers.algorithms.aggregation import Aggregation, sequence_mean, token_mean
from rljob_workers.algorithms.corrections import Correction, ice_pop, truncated_weights
from rljob_workers.algorithms.losses import ClipBounds, PolicyLoss, gspo, ppo_clip
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.policy import PolicyObjective
from rljob_workers.tensors.columns import Column

VOCABULARY, STEPS, RATE = 11, 4, 3.0
LENGTHS = [1, 9, 4, 12, 7, 2, 10, 6]
LOW, HIGH, FLOOR, CAP = 0.05, 0.08, 0.8, 1.3

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def rows() -> tuple[torch.Tensor, torch.Tensor, dict[Column, torch.Tensor]]:
    """Logits of the policy, drawn tokens, and columns; the engine's policy is four versions older, and noisy."""
    chance = torch.Generator().manual_seed(3)
    total = sum(LENGTHS)
    logits = torch.randn(total, VOCABULARY, generator=chance, dtype=torch.float64)
    old = logits + 0.05 * 4 * torch.randn(total, VOCABULARY, generator=chance, dtype=torch.float64)
    tokens = torch.multinomial(old.softmax(-1), 1, generator=chance)[:, 0]
    engine = old.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    columns = {
        Column.LOG_PROBS: logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0],
        Column.ROLLOUT_LOG_PROBS: engine + 0.02 * torch.randn(total, generator=chance, dtype=torch.float64),
        Column.ADVANTAGES: torch.randn(len(LENGTHS), generator=chance, dtype=torch.float64).repeat_interleave(
            torch.tensor(LENGTHS)
        ),
        Column.LOSS_MASKS: (torch.rand(total, generator=chance) > 0.15).to(torch.uint8),
        Column.RESPONSE_LENGTHS: torch.tensor(LENGTHS),
    }
    return logits, tokens, columns


def by_product(objective: PolicyObjective) -> list[torch.Tensor]:
    """The gradient of each step, by the product's objective."""
    logits, tokens, columns = rows()
    masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
    weights = objective.weigh(masked)
    found = []
    for _ in range(STEPS):
        logits = logits.detach().requires_grad_()
        new = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        sums = objective.loss(Outputs(log_probs=new), columns, masked, weights.weights.double())
        found.append(torch.autograd.grad(sums.loss / weights.normaliser, logits)[0])
        logits = logits - RATE * found[-1]
    return found


def by_loop(loss: Loss, *, per_row: bool) -> list[torch.Tensor]:
    """The same, row by row: `loss` as the mean over all unmasked tokens, or over rows of their tokens' means."""
    logits, tokens, columns = rows()
    found = []
    for _ in range(STEPS):
        logits = logits.detach().requires_grad_()
        means, count, start = [], 0, 0
        for length in LENGTHS:
            at = [place for place in range(start, start + length) if columns[Column.LOSS_MASKS][place]]
            start += length
            if not at:
                continue
            new = torch.stack([logits[place].log_softmax(-1)[tokens[place]] for place in at])
            old, engine = (columns[name][at] for name in (Column.LOG_PROBS, Column.ROLLOUT_LOG_PROBS))
            losses = loss(new, old, engine, float(columns[Column.ADVANTAGES][at[0]]))
            means.append(losses.mean() if per_row else losses.sum())
            count += 1 if per_row else len(at)
        found.append(torch.autograd.grad(torch.stack(means).sum() / count, logits)[0])
        logits = logits - RATE * found[-1]
    return found


def plain_clip(new: torch.Tensor, old: torch.Tensor, engine: torch.Tensor, advantage: float) -> torch.Tensor:
    del engine
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)


def sequence_clip(new: torch.Tensor, old: torch.Tensor, engine: torch.Tensor, advantage: float) -> torch.Tensor:
    """GSPO's equation 5 for each row, given to all of its tokens: their mean is the row's loss."""
    del engine
    ratio = (new - old).mean().exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage).expand(len(new))


def popped(new: torch.Tensor, old: torch.Tensor, engine: torch.Tensor, advantage: float) -> torch.Tensor:
    """IcePop: the clip's loss times k where FLOOR <= k <= CAP."""
    weights = [k if FLOOR <= (k := math.exp(x)) <= CAP else 0.0 for x in (old - engine).tolist()]
    return plain_clip(new, old, engine, advantage) * torch.tensor(weights, dtype=torch.float64)


def truncated(new: torch.Tensor, old: torch.Tensor, engine: torch.Tensor, advantage: float) -> torch.Tensor:
    weights = [min(math.exp(x), CAP) for x in (old - engine).tolist()]
    return plain_clip(new, old, engine, advantage) * torch.tensor(weights, dtype=torch.float64)


def objective(loss: PolicyLoss, aggregate: Aggregation, correct: Correction | None = None) -> PolicyObjective:
    return PolicyObjective(loss, aggregate, correct=correct)


CLIP: PolicyLoss = partial(ppo_clip, bounds=ClipBounds(LOW, HIGH))


SEQUENCES: PolicyLoss = partial(gspo, bounds=ClipBounds(LOW, HIGH))


CASES = [
    pytest.param(
        objective(SEQUENCES, sequence_mean), sequence_clip, objective(CLIP, sequence_mean), plain_clip, True, id="GSPO"
    ),
    pytest.param(
        objective(CLIP, token_mean, partial(ice_pop, floor=FLOOR, cap=CAP)),
        popped,
        objective(CLIP, token_mean, partial(truncated_weights, cap=CAP)),
        truncated,
        False,
        id="IcePop",
    ),
]


@pytest.mark.parametrize(("child", "of_child", "parent", "of_parent", "per_row"), CASES)
def test_gradients_of_all_steps_are_those_of_the_papers_formulas(
    child: PolicyObjective, of_child: Loss, parent: PolicyObjective, of_parent: Loss, per_row: bool
) -> None:
    gradients = {}
    for name, product, loop in (("child", child, of_child), ("parent", parent, of_parent)):
        gradients[name] = by_product(product)
        for step, (found, expected) in enumerate(zip(gradients[name], by_loop(loop, per_row=per_row), strict=True)):
            error = float((found - expected).norm() / expected.norm())
            assert error < 1e-6, f"{name}, step {step}: off by {error:.1e}"
    masks = rows()[2][Column.LOSS_MASKS] > 0
    for step, (one, other) in enumerate(zip(gradients["child"], gradients["parent"], strict=True)):
        differs = ((one - other).norm(dim=1) > 1e-3 * other.norm(dim=1).clamp(min=1e-12))[masks]
        share = float(differs.double().mean())
        print(f"step {step}: the gradient of {share:.0%} of the tokens is not the parent's")  # noqa: T201 - the figure
    assert bool(differs.any())
