"""AdamW on a flat buffer, against the formula written out."""

import dataclasses

import pytest
import torch

from rljob_workers.trainers.optimizer_steps import AdamWConfig, FlatAdamW, LearningRate

CONFIG = AdamWConfig(
    learning_rate=LearningRate(0.1), beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, max_grad_norm=0.0
)


def test_two_steps_by_hand() -> None:
    flat, gradient = torch.tensor([1.0, 1.0]), torch.zeros(2)
    optimizer = FlatAdamW(flat, gradient, 1, CONFIG)  # the first element decays, the second does not
    weight, m, v = torch.tensor([1.0, 1.0]), torch.zeros(2), torch.zeros(2)
    for step, values in enumerate(([0.5, -0.25], [0.1, 0.2]), start=1):
        g = torch.tensor(values)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        weight = weight * torch.tensor([1 - 0.1 * 0.1, 1.0])
        weight = weight - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
        gradient.copy_(g)
        optimizer.scale_and_step(CONFIG.clipping(float(gradient.norm())))
        torch.testing.assert_close(flat, weight)
        torch.testing.assert_close(optimizer.second_moment, v)


def test_a_gradient_is_clipped_to_the_limit() -> None:
    gradient = torch.tensor([3.0, 4.0])
    config = dataclasses.replace(CONFIG, max_grad_norm=1.0)
    FlatAdamW(torch.zeros(2), gradient, 2, config).scale_and_step(config.clipping(5.0))
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("limit", [0.0, 6.0], ids=["off", "below the limit"])
def test_nothing_is_clipped(limit: float) -> None:
    assert dataclasses.replace(CONFIG, max_grad_norm=limit).clipping(5.0) == 1.0


def test_warm_up_is_linear() -> None:
    flat, gradient = torch.zeros(1), torch.ones(1)
    config = dataclasses.replace(CONFIG, weight_decay=0.0, learning_rate=LearningRate(0.1, warmup_steps=3))
    optimizer = FlatAdamW(flat, gradient, 1, config)
    moves = []
    for _ in range(5):
        before = float(flat)
        optimizer.scale_and_step(1.0)
        moves.append(before - float(flat))
    assert moves == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1], rel=1e-4)  # a constant gradient moves by the rate
