"""Every part of a policy loss against a loop that is written from the papers' formulas, row by row, in float64.

A policy that is a table of logits is trained in several steps on rows of a policy that is four versions older, with
log-probs of an engine that computes a little differently: so ratios, clips and corrections are all at work. The share
of tokens whose gradient is another one than the parent's is printed (pytest -s), and must not be 0: the rows would
prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch

from rljob_workers.algorithms.advantages.estimator import BaselineEstimator, broadcast_to_tokens
from rljob_workers.algorithms.advantages.remax import remax
from rljob_workers.algorithms.aggregation import Aggregation, constant, sequence_mean, sequence_sum, token_mean
from rljob_workers.algorithms.corrections import (
    Correction,
    RatioMask,
    ice_pop,
    importance_weights,
    masked_weights,
    of_geometric_mean,
    of_sequence,
    truncated_weights,
)
from rljob_workers.algorithms.kl import k1, k2, k3
from rljob_workers.algorithms.losses import ClipBounds, PolicyLoss, Temperatures, cispo, gspo, ppo_clip, reinforce, sapo
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.policy import KlTerm, PolicyObjective
from rljob_workers.tensors.columns import Column

VOCABULARY, STEPS, RATE = 11, 4, 3.0
LENGTHS = [1, 9, 4, 12, 7, 2, 10, 6]
LOW, HIGH, DUAL, WIDE = 0.05, 0.08, 1.15, 0.3
POSITIVE, NEGATIVE = 1.0, 3.1
FLOOR, CAP = 0.8, 1.2
NARROW_FLOOR, NARROW_CAP = 0.97, 1.03
KL, BONUS, LENGTH = 0.3, 0.1, 16


@dataclass(frozen=True)
class Row:
    """The tokens of one row that count, [n] each."""

    new: torch.Tensor
    entropy: torch.Tensor
    old: torch.Tensor
    engine: torch.Tensor
    reference: torch.Tensor
    advantage: float


OfRow = Callable[[Row], torch.Tensor]
"""Losses, weights or further terms of the tokens of a row, [n]."""


@dataclass(frozen=True)
class Algorithm:
    """What is built of parts, and the same as formulas."""

    loss: tuple[PolicyLoss, OfRow]
    correction: tuple[Correction, OfRow] | None = None
    aggregation: tuple[Aggregation, str] = (token_mean, "tokens")
    kl: tuple[KlTerm, OfRow] | None = None
    entropy_bonus: float = 0.0
    advantage: tuple[BaselineEstimator, Callable[[float, float], float]] | None = None
    """Of rewards and baselines. None: advantages are given."""
    parent: str | None = None

    def objective(self) -> PolicyObjective:
        return PolicyObjective(
            self.loss[0],
            self.aggregation[0],
            kl=self.kl and self.kl[0],
            correct=self.correction and self.correction[0],
            entropy_bonus=self.entropy_bonus,
        )

    def losses(self, row: Row) -> torch.Tensor:
        found = self.loss[1](row)
        if self.correction is not None:
            found = found * self.correction[1](row)
        if self.kl is not None:
            found = found + KL * self.kl[1](row)
        return found - self.entropy_bonus * row.entropy


def ratios(row: Row) -> torch.Tensor:
    return (row.new - row.old).exp()


def plain_clip(row: Row) -> torch.Tensor:
    ratio, advantage = ratios(row), row.advantage
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)


def dual_clip(row: Row) -> torch.Tensor:
    if row.advantage >= 0:
        return plain_clip(row)
    return -torch.maximum(-plain_clip(row), torch.full_like(row.new, DUAL * row.advantage))


def sequence_clip(row: Row) -> torch.Tensor:
    """GSPO's equation 5 for each row, given to all of its tokens: their mean is the row's loss."""
    ratio, advantage = (row.new - row.old).mean().exp(), row.advantage
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage).expand(len(row.new))


def bounded_weights(row: Row) -> torch.Tensor:
    weights = torch.tensor([min(ratio, 1 + WIDE) for ratio in ratios(row).tolist()], dtype=torch.float64)
    return -weights * row.advantage * row.new


def gated(row: Row) -> torch.Tensor:
    tau = POSITIVE if row.advantage > 0 else NEGATIVE
    return -row.advantage * (4 / tau) / (1 + (-tau * (ratios(row) - 1)).exp())


def plain_gradient(row: Row) -> torch.Tensor:
    return -row.advantage * row.new


def by_token(row: Row) -> list[float]:
    return [math.exp(gap) for gap in (row.old - row.engine).tolist()]


def by_product(row: Row) -> list[float]:
    return [math.prod(by_token(row))] * len(row.old)


def by_root(row: Row) -> list[float]:
    return [product ** (1 / len(row.old)) for product in by_product(row)]


Ratios = Callable[[Row], list[float]]


def weights_of(ratio: Ratios, judged: Callable[[float], float]) -> OfRow:
    return lambda row: torch.tensor([judged(value) for value in ratio(row)], dtype=torch.float64)


def as_it_is(ratio: float) -> float:
    return ratio


def capped(ratio: float) -> float:
    return min(ratio, CAP)


def popped(ratio: float) -> float:
    return ratio if FLOOR <= ratio <= CAP else 0.0


def inside(ratio: float, floor: float = FLOOR, cap: float = CAP) -> float:
    return 1.0 if floor <= ratio <= cap else 0.0


def truncated_where_the_response_is_near(row: Row) -> torch.Tensor:
    near = weights_of(by_root, partial(inside, floor=NARROW_FLOOR, cap=NARROW_CAP))
    return weights_of(by_token, capped)(row) * near(row)


def third_estimate(row: Row) -> torch.Tensor:
    gap = row.reference - row.new
    return gap.exp() - gap - 1


def second_estimate(row: Row) -> torch.Tensor:
    return (row.new - row.reference).square() / 2


def weighted_estimate(row: Row) -> torch.Tensor:
    """By the ratio to the behaviour policy, since nothing of it is truncated."""
    return (row.new - row.engine).exp() * third_estimate(row)


def weighted_first_estimate(row: Row) -> torch.Tensor:
    return (row.new - row.engine).exp() * (row.new - row.reference)


BOUNDS = ClipBounds(LOW, HIGH)
PPO: tuple[PolicyLoss, OfRow] = (partial(ppo_clip, bounds=BOUNDS), plain_clip)
UNTRUNCATED: tuple[Correction, OfRow] = (importance_weights, weights_of(by_token, as_it_is))
MASK = RatioMask(NARROW_FLOOR, NARROW_CAP, of_geometric_mean)

ALGORITHMS: dict[str, Algorithm] = {
    "Reinforce": Algorithm((reinforce, plain_gradient)),
    "PpoClip": Algorithm(PPO, parent="Reinforce"),
    "dual clip": Algorithm((partial(ppo_clip, bounds=ClipBounds(LOW, HIGH, DUAL)), dual_clip), parent="PpoClip"),
    "Cispo": Algorithm((partial(cispo, high=WIDE), bounded_weights), parent="PpoClip"),
    "Sapo": Algorithm((partial(sapo, temperatures=Temperatures(POSITIVE, NEGATIVE)), gated), parent="PpoClip"),
    "SequenceMean": Algorithm(PPO, aggregation=(sequence_mean, "means"), parent="PpoClip"),
    "Gspo": Algorithm(
        (partial(gspo, bounds=BOUNDS), sequence_clip), aggregation=(sequence_mean, "means"), parent="SequenceMean"
    ),
    "SequenceSum": Algorithm(PPO, aggregation=(sequence_sum, "sums"), parent="SequenceMean"),
    "Constant": Algorithm(PPO, aggregation=(partial(constant, length=LENGTH), "constant"), parent="PpoClip"),
    "Untruncated": Algorithm(PPO, UNTRUNCATED, parent="PpoClip"),
    "Untruncated by sequence": Algorithm(
        PPO, (partial(importance_weights, ratio=of_sequence), weights_of(by_product, as_it_is)), parent="Untruncated"
    ),
    "Tis": Algorithm(PPO, (partial(truncated_weights, cap=CAP), weights_of(by_token, capped)), parent="Untruncated"),
    "Tis by sequence": Algorithm(
        PPO, (partial(truncated_weights, cap=CAP, ratio=of_sequence), weights_of(by_product, capped)), parent="Tis"
    ),
    "Tis by geometric mean": Algorithm(
        PPO, (partial(truncated_weights, cap=CAP, ratio=of_geometric_mean), weights_of(by_root, capped)), parent="Tis"
    ),
    "IcePop": Algorithm(PPO, (partial(ice_pop, floor=FLOOR, cap=CAP), weights_of(by_token, popped)), parent="Tis"),
    "IcePop by sequence": Algorithm(
        PPO,
        (partial(ice_pop, floor=FLOOR, cap=CAP, ratio=of_sequence), weights_of(by_product, popped)),
        parent="IcePop",
    ),
    "mask by token": Algorithm(
        PPO,
        (partial(masked_weights, mask=RatioMask(FLOOR, CAP), weigh=None), weights_of(by_token, inside)),
        parent="PpoClip",
    ),
    "mask by sequence": Algorithm(
        PPO,
        (partial(masked_weights, mask=RatioMask(FLOOR, CAP, of_sequence), weigh=None), weights_of(by_product, inside)),
        parent="mask by token",
    ),
    "Tis and a mask by geometric mean": Algorithm(
        PPO,
        (
            partial(masked_weights, mask=MASK, weigh=partial(truncated_weights, cap=CAP)),
            truncated_where_the_response_is_near,
        ),
        parent="Tis",
    ),
    "K3": Algorithm(PPO, UNTRUNCATED, kl=(KlTerm(KL, k3), third_estimate), parent="Untruncated"),
    "K2": Algorithm(PPO, UNTRUNCATED, kl=(KlTerm(KL, k2), second_estimate), parent="K3"),
    "K3 weighted": Algorithm(PPO, UNTRUNCATED, kl=(KlTerm(KL, k3, is_weighted=True), weighted_estimate), parent="K3"),
    "K1 weighted": Algorithm(
        PPO, UNTRUNCATED, kl=(KlTerm(KL, k1, is_weighted=True), weighted_first_estimate), parent="K3 weighted"
    ),
    "entropy bonus": Algorithm(PPO, entropy_bonus=BONUS, parent="PpoClip"),
    "rewards themselves": Algorithm(
        PPO, advantage=(lambda rewards, _valid, _baselines: rewards, lambda reward, _: reward), parent="PpoClip"
    ),
    "ReMax": Algorithm(PPO, advantage=(remax, lambda reward, baseline: reward - baseline), parent="rewards themselves"),
}


def rows() -> tuple[torch.Tensor, torch.Tensor, dict[Column, torch.Tensor]]:
    """Logits of the policy, drawn tokens, and columns.

    The policy has left the proximal one by steps on other rows; the engine's is four versions older, and noisy.
    """
    chance = torch.Generator().manual_seed(3)
    total = sum(LENGTHS)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    proximal = noise(total, VOCABULARY)
    old = proximal + 0.05 * 4 * noise(total, VOCABULARY)
    tokens = torch.multinomial(old.softmax(-1), 1, generator=chance)[:, 0]

    def drawn(of: torch.Tensor) -> torch.Tensor:
        return of.log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    columns = {
        Column.LOG_PROBS: drawn(proximal),
        Column.ROLLOUT_LOG_PROBS: drawn(old) + 0.02 * noise(total),
        Column.REF_LOG_PROBS: drawn(proximal + 0.3 * noise(total, VOCABULARY)),
        Column.ADVANTAGES: noise(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)),
        Column.LOSS_MASKS: (torch.rand(total, generator=chance) > 0.15).to(torch.uint8),
        Column.RESPONSE_LENGTHS: torch.tensor(LENGTHS),
    }
    policy = proximal + 0.2 * noise(total, VOCABULARY)
    columns |= {column: noise(len(LENGTHS)) for column in (Column.REWARDS, Column.BASELINES)}
    return policy, tokens, columns


@cache
def by_product_of_ours(name: str) -> list[torch.Tensor]:
    """The gradient of each step, by the product's objective."""
    objective, advantage = ALGORITHMS[name].objective(), ALGORITHMS[name].advantage
    logits, tokens, columns = rows()
    if advantage is not None:
        valid = torch.ones(len(LENGTHS), dtype=torch.bool)
        of_rows = advantage[0](columns[Column.REWARDS], valid, columns[Column.BASELINES])
        columns[Column.ADVANTAGES] = broadcast_to_tokens(of_rows, columns[Column.RESPONSE_LENGTHS])
    masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
    weights = objective.weigh(masked)
    found = []
    for _ in range(STEPS):
        logits = logits.detach().requires_grad_()
        log_probs = logits.log_softmax(-1)
        outputs = Outputs(log_probs.gather(1, tokens[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1))
        sums = objective.loss(outputs, columns, masked, weights.weights.double())
        found.append(torch.autograd.grad(sums.loss / weights.normaliser, logits)[0])
        logits = logits - RATE * found[-1]
    return found


def by_loop(algorithm: Algorithm) -> list[torch.Tensor]:
    """The same, row by row."""
    logits, tokens, columns = rows()
    found = []
    for _ in range(STEPS):
        logits = logits.detach().requires_grad_()
        losses, start = [], 0
        for number, length in enumerate(LENGTHS):
            at = [place for place in range(start, start + length) if columns[Column.LOSS_MASKS][place]]
            start += length
            if at:
                row = row_at(logits, tokens, columns, at)
                if algorithm.advantage is not None:
                    of_row = (float(columns[name][number]) for name in (Column.REWARDS, Column.BASELINES))
                    row = replace(row, advantage=algorithm.advantage[1](*of_row))
                losses.append(algorithm.losses(row))
        found.append(torch.autograd.grad(aggregated(losses, algorithm.aggregation[1]), logits)[0])
        logits = logits - RATE * found[-1]
    return found


def row_at(logits: torch.Tensor, tokens: torch.Tensor, columns: dict[Column, torch.Tensor], at: list[int]) -> Row:
    policies = [logits[place].softmax(-1) for place in at]
    old, engine, reference = (
        columns[name][at] for name in (Column.LOG_PROBS, Column.ROLLOUT_LOG_PROBS, Column.REF_LOG_PROBS)
    )
    return Row(
        torch.stack([policy[tokens[place]].log() for policy, place in zip(policies, at, strict=True)]),
        torch.stack([-(policy @ policy.log()) for policy in policies]),
        old,
        engine,
        reference,
        float(columns[Column.ADVANTAGES][at[0]]),
    )


def aggregated(losses: list[torch.Tensor], over: str) -> torch.Tensor:
    if over == "tokens":
        return torch.cat(losses).mean()
    if over == "means":
        return torch.stack([row.mean() for row in losses]).mean()
    sums = torch.stack([row.sum() for row in losses])
    return sums.mean() if over == "sums" else sums.sum() / (len(losses) * LENGTH)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradients_of_all_steps_are_those_of_the_papers_formulas(name: str) -> None:
    for step, (found, expected) in enumerate(zip(by_product_of_ours(name), by_loop(ALGORITHMS[name]), strict=True)):
        error = float((found - expected).norm() / expected.norm())
        assert error < 1e-6, f"step {step}: off by {error:.1e}"


@pytest.mark.parametrize("name", [name for name, algorithm in ALGORITHMS.items() if algorithm.parent])
def test_its_gradients_are_not_those_of_its_parent(name: str) -> None:
    parent = ALGORITHMS[name].parent
    assert parent is not None
    masks = rows()[2][Column.LOSS_MASKS] > 0
    shares = []
    for one, other in zip(by_product_of_ours(name), by_product_of_ours(parent), strict=True):
        differs = (one - other).norm(dim=1) > 1e-3 * other.norm(dim=1).clamp(min=1e-12)
        shares.append(float(differs[masks].double().mean()))
    steps = ", ".join(f"{share:.0%}" for share in shares)
    print(f"{name}: gradients of {steps} of the tokens are not those of {parent}, step by step")  # noqa: T201 - figures
    assert max(shares) > 0
