"""The composed loss."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.aggregation import sequence_mean, token_mean
from rljob_workers.algorithms.corrections import Correction, importance_weights, truncated_weights
from rljob_workers.algorithms.kl import KlEstimate, k1, k3
from rljob_workers.algorithms.losses import TokenLosses, reinforce
from rljob_workers.algorithms.metric_totals import StepTotals, values_of
from rljob_workers.algorithms.objective import MaskedRows, Objective, Outputs
from rljob_workers.algorithms.policy import KlTerm, PolicyObjective
from rljob_workers.tensors.columns import Column
from tests.objectives import clip_objective

OBJECTIVE = clip_objective(kl=0.1, cap=1.5)
# Two rows of 2 and 1 tokens. Ratios new / old: 1.5, 1, 0.5. TIS weights old / rollout: 1, 2 -> 1.5, 0.5.
OLD = torch.tensor([0.4, 0.4, 0.4]).log()
NEW = OLD + torch.tensor([1.5, 1.0, 0.5]).log()
COLUMNS: dict[Column, torch.Tensor] = {
    Column.LOG_PROBS: OLD,
    Column.ROLLOUT_LOG_PROBS: torch.tensor([0.4, 0.2, 0.8]).log(),
    Column.ADVANTAGES: torch.tensor([1.0, 1.0, -1.0]),
    Column.LOSS_MASKS: torch.tensor([1, 1, 1], dtype=torch.uint8),
    Column.REF_LOG_PROBS: NEW - math.log(2),
    Column.RESPONSE_LENGTHS: torch.tensor([2, 1]),
    Column.IS_CURRENT: torch.tensor([1, 0, 1], dtype=torch.uint8),
}
KL = 0.5 - 1 + math.log(2)


def step(
    objective: Objective, columns: dict[Column, torch.Tensor], new: torch.Tensor = NEW
) -> tuple[torch.Tensor, float, dict[str, float]]:
    """Loss sum, normaliser and metrics of a step of one micro-batch."""
    rows = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
    weights, totals = objective.weigh(rows), StepTotals(objective.metrics, 0, 1)
    buffer = torch.zeros(totals.size)
    totals.clear(buffer)
    totals.add_weights(buffer, weights, rows)
    sums = objective.loss(Outputs(log_probs=new), columns, rows, weights.weights)
    totals.add(buffer, sums, rows)
    _, normaliser, metrics = totals.read(buffer.tolist())
    return sums.loss, normaliser, values_of(metrics)


def test_sums_equal_the_hand_computed_ones() -> None:
    loss, normaliser, metrics = step(OBJECTIVE, COLUMNS)
    # clip: -1.28, -1, max(0.5, 0.8) = 0.8; weighted by TIS: -1.28, -1.5, 0.4; KL the same everywhere
    assert float(loss) == pytest.approx(-1.28 - 1.5 + 0.4 + 3 * 0.1 * KL, abs=1e-5)
    assert normaliser == 3.0
    expected = {
        "policy/clip_fraction_low": 1 / 3,
        "policy/clip_fraction_high": 1 / 3,
        "policy/ratio": 1.0,
        "policy/ratio_max": 1.5,
        "policy/approx_kl": (0.5 - math.log(1.5) + 0 - 0.5 - math.log(0.5)) / 3,
        "policy/entropy": -float(NEW.mean()),
        "policy/kl_reference": KL,
        "correction/weight": 1.0,
        "correction/masked_fraction": 0.0,
        "correction/effective_share": 9 / (3 * (1 + 1.5**2 + 0.25)),
        "mismatch/kl": (0 + 0.5 - 1 - math.log(0.5)) / 2,
        "mismatch/log_prob_gap_max": math.log(2),
        "staleness/kl": 2 - 1 - math.log(2),
    }
    assert metrics == pytest.approx(expected, abs=1e-5)
    assert set(metrics) == {metric.name for metric in OBJECTIVE.metrics}


def test_the_sequence_mean_weighs_rows_alike() -> None:
    loss, normaliser, _ = step(clip_objective(sequence_mean, kl=0.0, cap=1.5), COLUMNS)
    assert float(loss) == pytest.approx((-1.28 - 1.5) / 2 + 0.4, abs=1e-5)
    assert normaliser == 2.0


def test_without_kl_and_correction_neither_is_read() -> None:
    columns: dict[Column, torch.Tensor] = {
        column: values for column, values in COLUMNS.items() if column is not Column.REF_LOG_PROBS
    }
    loss, _, metrics = step(clip_objective(kl=0.0, cap=None), columns)
    assert float(loss) == pytest.approx(-1.28 - 1 + 0.8, abs=1e-5)
    assert not {"correction/weight", "policy/kl_reference"} & set(metrics)


def test_an_entropy_bonus_lowers_the_loss_of_tokens_that_count() -> None:
    columns = {**COLUMNS, Column.LOSS_MASKS: torch.tensor([1, 1, 0], dtype=torch.uint8)}
    entropy = torch.tensor([0.5, 1.5, math.inf], requires_grad=True)
    rows = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
    losses = []
    for bonus in (0.0, 0.01):
        objective = PolicyObjective(reinforce, token_mean, entropy_bonus=bonus)
        sums = objective.loss(Outputs(NEW, entropy), columns, rows, objective.weigh(rows).weights)
        torch.testing.assert_close(sums.metrics["policy/entropy"].values, torch.tensor([0.5, 1.5, 0.0]))
        losses.append(sums.loss)
    assert not losses[0].requires_grad
    assert float((losses[1] - losses[0]).detach()) == pytest.approx(-0.01 * (0.5 + 1.5))
    (gradient,) = torch.autograd.grad(losses[1], entropy)
    torch.testing.assert_close(gradient, torch.tensor([-0.01, -0.01, 0.0]))


def test_a_bonus_needs_entropies() -> None:
    objective = PolicyObjective(reinforce, token_mean, entropy_bonus=0.01)
    with pytest.raises(ValueError, match="entropy: this model computes log_probs only"):
        step(objective, COLUMNS)


def with_kl(*, is_weighted: bool, correct: Correction | None = None, estimate: KlEstimate = k3) -> PolicyObjective:
    """Of the plain policy gradient: without advantages the KL term is all of its loss."""
    return PolicyObjective(reinforce, token_mean, kl=KlTerm(1.0, estimate, is_weighted), correct=correct)


def test_a_weighted_kl_term_is_multiplied_by_ratio_and_correction() -> None:
    columns = {**COLUMNS, Column.ADVANTAGES: torch.zeros(3)}
    loss, _, metrics = step(with_kl(is_weighted=True), columns)
    assert float(loss) == pytest.approx((1.5 + 1 + 0.5) * KL, abs=1e-5)
    assert metrics["policy/kl_reference"] == pytest.approx(KL, abs=1e-5)
    loss, _, _ = step(with_kl(is_weighted=True, correct=partial(truncated_weights, cap=1.5)), columns)
    assert float(loss) == pytest.approx((1.5 * 1 + 1 * 1.5 + 0.5 * 0.5) * KL, abs=1e-5)


@pytest.mark.parametrize("estimate", [k1, k3])
@given(st.integers(0, 1000))
def test_weighted_its_gradient_is_that_of_the_kl_whichever_policy_drew(estimate: KlEstimate, seed: int) -> None:
    """The expectation over all tokens of a small vocabulary, each of which is a row, as often as it is drawn."""
    chance = torch.Generator().manual_seed(seed)
    logits, proximal, behaviour, reference = (
        1.2 * torch.rand(4, 7, generator=chance, dtype=torch.float64)  # near enough for K3 to stay below its limit
    ).unbind()
    logits.requires_grad_()
    columns: dict[Column, torch.Tensor] = {
        Column.LOG_PROBS: proximal.log_softmax(-1),
        Column.ROLLOUT_LOG_PROBS: behaviour.log_softmax(-1),
        Column.REF_LOG_PROBS: reference.log_softmax(-1),
        Column.ADVANTAGES: torch.zeros(7, dtype=torch.float64),
        Column.LOSS_MASKS: torch.ones(7),
        Column.RESPONSE_LENGTHS: torch.ones(7, dtype=torch.int64),
    }
    rows, drawn = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS]), behaviour.softmax(-1)

    def gradient(*, is_weighted: bool) -> torch.Tensor:
        objective = with_kl(is_weighted=is_weighted, correct=importance_weights, estimate=estimate)
        loss = objective.loss(Outputs(log_probs=logits.log_softmax(-1)), columns, rows, drawn).loss
        return torch.autograd.grad(loss, logits)[0]

    log_probs = logits.log_softmax(-1)
    divergence = log_probs.exp() @ (log_probs - columns[Column.REF_LOG_PROBS])
    (expected,) = torch.autograd.grad(divergence, logits)
    torch.testing.assert_close(gradient(is_weighted=True), expected)
    assert not torch.allclose(gradient(is_weighted=False), expected)


def test_masked_tokens_leave_no_trace_even_where_their_log_probs_are_infinite() -> None:
    columns = {
        **COLUMNS,
        Column.LOSS_MASKS: torch.tensor([1, 1, 0], dtype=torch.uint8),
        Column.LOG_PROBS: torch.tensor([*OLD[:2].tolist(), -math.inf]),
    }
    new = NEW.clone().requires_grad_()
    loss, normaliser, metrics = step(OBJECTIVE, columns, new)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(-1.28 - 1.5 + 2 * 0.1 * KL, abs=1e-5)
    assert normaliser == 2.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())
    assert float(new.grad[2]) == 0.0


def test_a_loss_of_the_users_may_be_anything_at_masked_tokens() -> None:
    def divides(new: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, rows: MaskedRows) -> TokenLosses:
        del log_probs, rows
        return TokenLosses(advantages / new, advantages / advantages, torch.zeros_like(new))

    columns = {**COLUMNS, Column.LOSS_MASKS: torch.tensor([1, 1, 0], dtype=torch.uint8)}
    new = NEW.clone().requires_grad_()
    loss, _, metrics = step(PolicyObjective(divides, token_mean), columns, new)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(float((1 / NEW[:2]).sum()), rel=1e-5)
    assert metrics["policy/ratio"] == 1.0
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())
