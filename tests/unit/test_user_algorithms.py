"""What a user's loss, aggregation, correction or advantages may return, and the sentence for all else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.spec.algorithm import AlgorithmSpec, CorrectionSpec
from rljob_workers.algorithms.losses import TokenLosses, reinforce
from rljob_workers.algorithms.objective import MaskedRows, TokenWeights
from rljob_workers.estimators import estimator_of
from rljob_workers.trainers.objectives import policy_objective
from rljob_workers.user_algorithms import MAX_METRICS, OwnAdvantage, OwnAggregation, OwnCorrection, OwnLoss

ROWS = MaskedRows(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([3, 1]))
OLD = torch.tensor([-1.0, -2.0, 0.0, -1.5])
ADVANTAGES = torch.tensor([1.0, -1.0, 0.0, 0.5])
FORM = (
    "Return TokenLosses(loss, ratio, is_clipped) of rljob_workers.algorithms.losses, each a tensor of one number for"
    " each token."
)
EACH = "Give a tensor of one number for each of 4 tokens, on cpu."
FLOATING = "Give a tensor of one floating-point number for each of 4 tokens, on cpu."


def right(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, rows: MaskedRows) -> TokenLosses:
    return reinforce(new, old, advantages, rows)


def with_parts(**parts: Callable[[TokenLosses], Any]) -> Callable[..., TokenLosses]:
    """A right loss, some parts of which are others."""

    def loss(*given: Any) -> TokenLosses:
        found = right(*given)
        return replace(found, **{name: make(found) for name, make in parts.items()})

    return loss


def raises(*given: Any) -> TokenLosses:
    raise KeyError("beta")


async def is_async(*given: Any) -> TokenLosses:
    return right(*given)


def refused(function: str, sentence: str) -> Any:
    return pytest.raises(ValueError, match=f"^{re.escape(f'algorithm.{function} returned {sentence}')}$")


WRONG_LOSSES = [
    pytest.param(
        lambda new, old, a, rows: -(new * a), f"a tensor [4] of float32 on cpu for 4 tokens. {FORM}", id="a tensor"
    ),
    pytest.param(lambda *_: None, f"None for 4 tokens. {FORM}", id="nothing"),
    pytest.param(
        lambda new, old, a, rows: (new.detach() * a).numpy(), f"numpy.ndarray [4] for 4 tokens. {FORM}", id="numpy"
    ),
    pytest.param(lambda *_: (1, 2), f"tuple (1, 2) for 4 tokens. {FORM}", id="a tuple"),
    pytest.param(
        with_parts(loss=lambda found: found.loss.sum()),
        f"TokenLosses whose loss is a tensor -0.05 [] of float32 on cpu. {FLOATING}",
        id="a sum of losses",
    ),
    pytest.param(
        with_parts(loss=lambda found: found.loss.detach().numpy()),
        f"TokenLosses whose loss is numpy.ndarray [4]. {FLOATING}",
        id="numpy within",
    ),
    pytest.param(
        with_parts(loss=lambda found: found.loss.detach().long()),
        f"TokenLosses whose loss is a tensor [4] of int64 on cpu. {FLOATING}",
        id="whole numbers",
    ),
    pytest.param(
        with_parts(loss=lambda found: found.loss.to("meta")),
        f"TokenLosses whose loss is a tensor [4] of float32 on meta. {FLOATING}",
        id="another device",
    ),
    pytest.param(
        with_parts(loss=lambda found: found.loss.detach()),
        "TokenLosses whose loss has no gradient. Make it of new_log_probs, without detach() and outside"
        " torch.no_grad().",
        id="no gradient",
    ),
    pytest.param(
        with_parts(loss=lambda found: found.loss / (ADVANTAGES > 0.7)),
        "TokenLosses whose loss is not finite at 2 of 3 tokens that count, whose log-probs and advantages are finite."
        " Look for a division by 0, a logarithm of 0, or exp of a large number (ratio_of clamps it).",
        id="not finite; at the masked token it may be so",
    ),
    pytest.param(
        with_parts(ratio=lambda found: found.ratio[:2]),
        f"TokenLosses whose ratio is a tensor [2] of float32 on cpu. {EACH}",
        id="a ratio of another shape",
    ),
    pytest.param(
        with_parts(is_clipped=lambda _: None), f"TokenLosses whose is_clipped is None. {EACH}", id="without is_clipped"
    ),
    pytest.param(
        with_parts(metrics=lambda _: [1]),
        "TokenLosses whose metrics are list [1]. Give a mapping of names to tensors.",
        id="metrics that are no mapping",
    ),
    pytest.param(
        with_parts(metrics=lambda found: {"large": found.ratio.mean()}),
        "TokenLosses whose metrics['large'] is a tensor 1.0025 [] of float32 on cpu. " + EACH,
        id="a metric that is a mean already",
    ),
    pytest.param(
        with_parts(metrics=lambda found: {"a b": found.ratio}),
        "TokenLosses with the metric 'a b'. Give it a name of at most 64 letters, digits, underscores, full stops,"
        " hyphens and slashes between them.",
        id="a name that no tracker takes",
    ),
    pytest.param(
        with_parts(metrics=lambda found: {f"of_{number}": found.ratio for number in range(MAX_METRICS + 1)}),
        "more than 64 different metrics. Each is a figure of every step: name what is measured, not what it is measured"
        " of.",
        id="names of everything",
    ),
]


def new_log_probs() -> torch.Tensor:
    return torch.tensor([-1.1, -1.9, 0.0, -1.5], requires_grad=True)


@pytest.mark.parametrize(("loss", "sentence"), WRONG_LOSSES)
def test_a_loss_is_refused_with_what_it_returned_and_what_is_wanted(loss: Any, sentence: str) -> None:
    with refused("loss: own:loss", sentence):
        OwnLoss("loss", "own:loss", loss)(new_log_probs(), OLD, ADVANTAGES, ROWS)


def test_what_a_loss_raises_ends_the_job_with_its_line() -> None:
    with pytest.raises(
        ValueError, match=r"^algorithm\.loss: own:raises raised KeyError on 4 tokens \(.*, line \d+\): 'beta'\n"
    ):
        OwnLoss("loss", "own:raises", raises)(new_log_probs(), OLD, ADVANTAGES, ROWS)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), torch.AcceleratorError("a link is down")])
def test_what_a_device_raises_is_no_fault_of_the_function(error: Exception) -> None:
    def loss(*_: Any) -> TokenLosses:
        raise error

    with pytest.raises(type(error)):
        OwnLoss("loss", "own:loss", loss)(new_log_probs(), OLD, ADVANTAGES, ROWS)


def test_a_right_loss_passes_with_its_gradient_and_nothing_else_carries_one() -> None:
    new = new_log_probs()
    loss = with_parts(
        ratio=lambda found: found.ratio.double() * new,
        is_clipped=lambda found: found.ratio > 1,
        metrics=lambda found: {"large/share": found.ratio > 1, "weight": found.ratio * new},
    )
    found = OwnLoss("loss", "own:loss", loss)(new, OLD, ADVANTAGES, ROWS)
    assert found.loss.requires_grad
    others = (found.ratio, found.is_clipped, *found.metrics.values())
    assert [(one.requires_grad, one.dtype) for one in others] == [(False, torch.float32)] * 4
    (gradient,) = torch.autograd.grad(found.loss.sum(), new)
    assert torch.equal(gradient, -ADVANTAGES)


def test_a_loss_that_was_finite_may_have_a_step_that_is_skipped() -> None:
    """Looking at each call would make the host wait for the device; an optimizer step that is not finite is skipped."""
    own = OwnLoss("loss", "own:loss", lambda new, old, a, rows: right(new, old, a / a.sum().sub(0.5).sign(), rows))
    nothing = MaskedRows(torch.zeros(4), ROWS.response_lengths)
    own(new_log_probs(), OLD, ADVANTAGES * 3, nothing)  # shows nothing
    own(new_log_probs(), OLD, ADVANTAGES * 3, ROWS)
    assert not own(new_log_probs(), OLD, ADVANTAGES, ROWS).loss.isfinite().all()


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_a_token_or_without_gradients_is_no_fault(grad: bool) -> None:
    own = OwnLoss("loss", "own:loss", with_parts(loss=lambda found: found.loss.detach()))
    empty = torch.zeros(0, requires_grad=True)
    own(empty, torch.zeros(0), torch.zeros(0), MaskedRows(torch.zeros(0), torch.zeros(0, dtype=torch.int64)))
    if not grad:
        own(new_log_probs().detach(), OLD, ADVANTAGES, ROWS)


ONE_EACH = "Return a tensor of one finite number for each reward."
REWARDS = torch.tensor([[1.0, 0.0], [0.5, 0.25]])
VALID = torch.tensor([[True, True], [True, False]])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param(
            lambda r, v: (r - r.mean()).numpy(), f"numpy.ndarray [2, 2] for rewards [2, 2]. {ONE_EACH}", id="numpy"
        ),
        pytest.param(
            lambda r, v: r.mean(1), f"a tensor [2] of float32 on cpu for rewards [2, 2]. {ONE_EACH}", id="a row each"
        ),
        pytest.param(lambda r, v: None, f"None for rewards [2, 2]. {ONE_EACH}", id="nothing"),
        pytest.param(
            lambda r, v: r.tolist(),
            f"list [[1.0, 0.0], [0.5, 0.25]] for rewards [2, 2]. {ONE_EACH}",
            id="a list",
        ),
        pytest.param(
            lambda r, v: r.to(torch.complex64),
            f"a tensor [2, 2] of complex64 on cpu for rewards [2, 2]. {ONE_EACH}",
            id="complex",
        ),
        pytest.param(
            lambda r, v: r.to("meta"),
            f"a tensor [2, 2] of float32 on meta for rewards [2, 2]. {ONE_EACH}",
            id="another device",
        ),
        pytest.param(
            lambda r, v: r / (r - 1.0) / (r != 0.5),
            f"advantages that are not finite for 2 of 3 valid samples. {ONE_EACH}",
            id="not finite",
        ),
    ],
)
def test_advantages_are_refused_with_what_they_are(function: Any, sentence: str) -> None:
    with refused("advantage: own:advantages", sentence):
        OwnAdvantage("advantage", "own:advantages", function)(REWARDS, VALID)


def test_advantages_may_be_anything_where_there_is_no_score_and_change_no_reward() -> None:
    def advantages(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        rewards -= 0.25
        return (1.0 / rewards).double().requires_grad_()

    before = REWARDS.clone()
    found = OwnAdvantage("advantage", "own:advantages", advantages)(REWARDS, VALID)
    assert torch.equal(REWARDS, before)
    assert found.tolist() == [[pytest.approx(4 / 3), -4.0], [4.0, 0.0]]
    assert not found.requires_grad


WEIGHTS_FORM = (
    "Return TokenWeights(weights, normaliser) of rljob_workers.algorithms.objective: a tensor of one weight for each"
    " token, and a tensor [] whose sum over all rows of a step the loss is divided by."
)
AMOUNT = "Give a tensor [] of a finite number of 0 or more, as rows.masks.sum() is."
WEIGHT = "Give a tensor of one finite weight of 0 or more for each of 4 tokens, on cpu."


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param(
            lambda rows: rows.masks, f"a tensor [4] of float32 on cpu for 4 tokens. {WEIGHTS_FORM}", id="weights alone"
        ),
        pytest.param(
            lambda rows: TokenWeights(rows.counts, rows.masks.sum()),
            f"TokenWeights whose weights are a tensor [2] of float32 on cpu. {WEIGHT}",
            id="a weight a row",
        ),
        pytest.param(
            lambda rows: TokenWeights(-rows.masks, rows.masks.sum()),
            f"TokenWeights whose weights are a tensor [4] of float32 on cpu. {WEIGHT}",
            id="below 0",
        ),
        pytest.param(
            lambda rows: TokenWeights(rows.masks, 3.0),  # type: ignore[arg-type]
            f"TokenWeights whose normaliser is float 3.0. {AMOUNT}",
            id="a float",
        ),
        pytest.param(
            lambda rows: TokenWeights(rows.masks, rows.counts),
            f"TokenWeights whose normaliser is a tensor [2] of float32 on cpu. {AMOUNT}",
            id="one a row",
        ),
        pytest.param(
            lambda rows: TokenWeights(rows.masks, rows.masks.sum() / 0),
            f"TokenWeights whose normaliser is a tensor inf [] of float32 on cpu. {AMOUNT}",
            id="infinite",
        ),
        pytest.param(
            lambda rows: TokenWeights(torch.ones_like(rows.masks), rows.masks.sum()),
            "TokenWeights with a weight above 0 where rows.masks is 0: nothing may be learnt from these tokens."
            " Multiply the weights by rows.masks.",
            id="masked tokens",
        ),
    ],
)
def test_an_aggregation_is_refused_with_what_it_returned(function: Any, sentence: str) -> None:
    with refused("lossAggregation: own:mean", sentence):
        OwnAggregation("lossAggregation", "own:mean", function)(ROWS)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param(
            lambda p, b, rows: np.ones(4),
            "numpy.ndarray [4] for 4 tokens. Return a tensor of one weight for each token, on cpu.",
            id="numpy",
        ),
        pytest.param(
            lambda p, b, rows: 1.0,
            "float 1.0 for 4 tokens. Return a tensor of one weight for each token, on cpu.",
            id="one number",
        ),
        pytest.param(
            lambda p, b, rows: (p - b).log(),
            "weights that are not finite at 3 of 3 tokens that count, whose log-probs are finite. Clamp the log-ratio"
            " before exp, as ratio_of of rljob_workers.algorithms.objective does.",
            id="not finite",
        ),
    ],
)
def test_a_correction_is_refused_with_what_it_returned(function: Any, sentence: str) -> None:
    with refused("correction.kind: own:weigh", sentence):
        OwnCorrection("correction.kind", "own:weigh", function)(OLD, OLD, ROWS)


def test_a_correction_may_be_a_mask() -> None:
    found = OwnCorrection("correction.kind", "own:weigh", lambda p, b, rows: p > -1.8)(OLD, OLD, ROWS)
    assert (found.dtype, found.tolist()) == (torch.float32, [1.0, 0.0, 1.0, 1.0])


def test_every_import_path_of_an_algorithm_is_checked(tmp_path: Path) -> None:
    (tmp_path / "wrong_forms.py").write_text(
        "def loss(new, old, advantages, rows): return new\n"
        "def mean(rows): return rows\n"
        "def weigh(new, old, rows): return None\n"
        "def advantages(rewards, valid): return 1\n"
        "async def waits(rewards, valid): return rewards\n"
    )
    algorithm = AlgorithmSpec(
        advantage="wrong_forms:advantages",
        loss="wrong_forms:loss",
        loss_aggregation="wrong_forms:mean",
        correction=CorrectionSpec(kind="wrong_forms:weigh"),
        path=str(tmp_path),
    )
    objective, estimator = policy_objective(algorithm, 8), estimator_of(algorithm)
    with pytest.raises(
        ValueError, match=r"wrong_forms:mean returned rljob_workers\.algorithms\.objective\.MaskedRows "
    ):
        objective.weigh(ROWS)
    assert isinstance(objective._token_loss, OwnLoss)
    assert isinstance(objective._correct, OwnCorrection)
    with pytest.raises(ValueError, match=r"wrong_forms:advantages returned int 1 for rewards \[2, 2\]"):
        estimator.of_samples(REWARDS.flatten(), VALID.flatten(), 2, None)
    with pytest.raises(ValueError, match="wrong_forms:waits is async, and it is called, and not awaited"):
        estimator_of(algorithm.model_copy(update={"advantage": "wrong_forms:waits"}))
