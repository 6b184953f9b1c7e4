"""The composed loss."""

import dataclasses
import math

import pytest
import torch

from rljob_workers.algorithms.losses import PolicyLossConfig, TokenInputs, k3, policy_loss, sequence_mean, token_mean

CONFIG = PolicyLossConfig(
    clip_low=0.2, clip_high=0.28, aggregate=token_mean, kl_coefficient=0.1, kl_estimate=k3, tis_cap=1.5
)
# Two rows of 2 and 1 tokens. Ratios new / old: 1.5, 1, 0.5. TIS weights old / rollout: 1, 2 -> 1.5, 0.5.
OLD = torch.tensor([0.4, 0.4, 0.4]).log()
NEW = OLD + torch.tensor([1.5, 1.0, 0.5]).log()
TOKENS = TokenInputs(
    log_probs=OLD,
    rollout_log_probs=torch.tensor([0.4, 0.2, 0.8]).log(),
    advantages=torch.tensor([1.0, 1.0, -1.0]),
    loss_masks=torch.tensor([1, 1, 1], dtype=torch.uint8),
    ref_log_probs=NEW - math.log(2),
    response_lengths=torch.tensor([2, 1]),
)
KL = 0.5 - 1 + math.log(2)


def test_sums_equal_the_hand_computed_ones() -> None:
    sums = policy_loss(NEW, TOKENS, CONFIG)
    # clip: -1.28, -1, max(0.5, 0.8) = 0.8; weighted by TIS: -1.28, -1.5, 0.4; KL the same everywhere
    assert float(sums.loss) == pytest.approx(-1.28 - 1.5 + 0.4 + 3 * 0.1 * KL, abs=1e-5)
    assert float(sums.normaliser) == 3.0
    expected = {
        "clip_fraction": 2.0,
        "ratio": 3.0,
        "tis_weight": 3.0,
        "kl": 3 * KL,
        "entropy": -float(NEW.sum()),
        "rollout_kl": 0.0 - math.log(2) + math.log(2),
    }
    assert {name: float(value) for name, value in sums.metrics.items()} == pytest.approx(expected, abs=1e-5)


def test_the_sequence_mean_weighs_rows_alike() -> None:
    sums = policy_loss(NEW, TOKENS, dataclasses.replace(CONFIG, aggregate=sequence_mean, kl_coefficient=0.0))
    assert float(sums.loss) == pytest.approx((-1.28 - 1.5) / 2 + 0.4, abs=1e-5)
    assert float(sums.normaliser) == 2.0


def test_without_kl_and_correction_neither_is_read() -> None:
    config = dataclasses.replace(CONFIG, kl_coefficient=0.0, tis_cap=None)
    sums = policy_loss(NEW, dataclasses.replace(TOKENS, ref_log_probs=None), config)
    assert float(sums.loss) == pytest.approx(-1.28 - 1 + 0.8, abs=1e-5)


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
@pytest.mark.parametrize("tis_cap", [None, 2.0])
def test_metrics_come_with_the_names_that_the_config_promises(kl_coefficient: float, tis_cap: float | None) -> None:
    config = dataclasses.replace(CONFIG, kl_coefficient=kl_coefficient, tis_cap=tis_cap)
    assert set(policy_loss(NEW, TOKENS, config).metrics) == set(config.metric_names)


def test_masked_tokens_leave_no_trace_even_where_their_log_probs_are_infinite() -> None:
    masked = torch.tensor([1, 1, 0], dtype=torch.uint8)
    broken = dataclasses.replace(TOKENS, loss_masks=masked, log_probs=torch.tensor([*OLD[:2].tolist(), -math.inf]))
    new = NEW.clone().requires_grad_()
    sums = policy_loss(new, broken, CONFIG)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert float(sums.loss.detach()) == pytest.approx(-1.28 - 1.5 + 2 * 0.1 * KL, abs=1e-5)
    assert float(sums.normaliser) == 2.0
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())
    assert float(new.grad[2]) == 0.0


def test_a_kl_term_without_reference_log_probs_names_the_cure() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.kl\.coefficient is above 0\. Give the job the reference role"):
        policy_loss(NEW, dataclasses.replace(TOKENS, ref_log_probs=None), CONFIG)
