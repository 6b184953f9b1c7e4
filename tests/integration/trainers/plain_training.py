"""What training is measured by: a loop that a reader of transformers' pages would write, in one process, in float64.

Rows one by one, all logits at once, torch's own optimizer; no packing, no shards, no chunks, no micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rljob_workers.algorithms.objective import Objective
from rljob_workers.algorithms.supervised import SupervisedObjective
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.optimizer_steps import AdamWConfig, LearningRate, linear
from tests.objectives import clip_objective
from tests.train_rows import rows_of
from tests.unit.trainers.fsdp.tiny import make_tokens

STEPS = 5
ROWS = 11
TEMPERATURE = 1.3
MOST_SKIPPED = 1
OBJECTIVE = clip_objective()
ENTROPY_BONUS = 0.3
OBJECTIVES: Mapping[str, Objective] = {
    "policy": OBJECTIVE,
    "policy and entropy": clip_objective(entropy_bonus=ENTROPY_BONUS),
    "supervised": SupervisedObjective(),
}
OPTIMIZER = AdamWConfig(
    learning_rate=LearningRate(1e-3, 1e-4, linear, warmup_steps=1, total_steps=STEPS),
    beta1=0.9,
    beta2=0.95,
    epsilon=1e-8,
    weight_decay=0.1,
    max_grad_norm=0.5,
)


PROBE = 99
"""The step whose rows are scored at the end, and not trained on."""


def rows_of_step(step: int) -> TrainRows:
    """Rows of uneven length; the log-probs before training are the new ones."""
    tokens, responses = make_tokens(seed=100 + step, rows=ROWS)
    chance = torch.Generator().manual_seed(200 + step)
    total = int(responses.sum())

    def per_token(values: torch.Tensor) -> Jagged:
        return Jagged.from_lengths(values, responses)

    masks = (torch.rand(total, generator=chance) > 0.2).float()
    masks[0] = 1.0
    return rows_of(
        tokens=tokens,
        response_lengths=responses,
        loss_masks=per_token(masks),
        log_probs=per_token(torch.zeros(total)),  # left out where rows are taken from it
        rollout_log_probs=per_token(torch.empty(total).uniform_(-5.0, -3.5, generator=chance)),
        advantages=per_token(torch.randn(total, generator=chance)),
        ref_log_probs=per_token(torch.empty(total).uniform_(-5.0, -3.5, generator=chance)),
    )


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it."""

    weights: Mapping[str, torch.Tensor]
    """By the hub's names."""
    before: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    """Adam's first ones: a sum of the clipped gradients, the last one's share being 1 - beta1."""
    results: Sequence[tuple[float, float, float]]
    """Loss, norm of the gradient, KL of each step; no KL where the objective has none."""
    log_probs: torch.Tensor
    """[response tokens] of the probe, at temperature 1."""
    entropies: torch.Tensor


def train_plainly(
    folder: Path,
    steps: int = STEPS,
    *,
    attention: str = "sdpa",
    objective: str = "policy",
    added: Callable[[Any, TrainRows], torch.Tensor] | None = None,
) -> Trained:
    """The optimizer steps [0, steps) of the model in a folder; `added` to the sum of losses is not reported as loss."""
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation=attention, experts_implementation="eager"
    )

    def stored(values_of: Callable[[torch.Tensor], torch.Tensor]) -> Mapping[str, torch.Tensor]:
        state = {name: values_of(parameter).detach().clone() for name, parameter in model.named_parameters()}
        return revert_weight_conversion(model, state)  # type: ignore[no-any-return]

    before = stored(lambda parameter: parameter)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIMIZER.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(OPTIMIZER.beta1, OPTIMIZER.beta2),
        eps=OPTIMIZER.epsilon,
    )
    results = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.learning_rate.of(step)
        loss, divergence, count = _sums(model, rows_of_step(step), objective)
        optimizer.zero_grad()
        # Of the sum: transformers' norms round a gradient to float32, at whatever scale it has.
        whole = loss if added is None else loss + added(model, rows_of_step(step))
        whole.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = (torch.nn.utils.get_total_norm(gradients) / count).item()
        for gradient in gradients:  # clip_grad_norm_ would divide by the norm and a millionth
            gradient.mul_(min(1.0, OPTIMIZER.max_grad_norm / norm) / count)
        optimizer.step()
        results.append((loss.item() / count, norm, divergence.item() / count))
    probe = rows_of_step(PROBE)
    with torch.no_grad():
        log_probs, entropies = scored_by_row(model, probe, 1.0)
    weights = stored(lambda parameter: parameter)
    moments = stored(lambda parameter: optimizer.state[parameter]["exp_avg"])
    return Trained(weights, before, moments, results, log_probs, entropies)


def scored_by_row(model: Any, rows: TrainRows, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies: each row in a forward pass of its own, all its logits at once."""
    log_probs, entropies = [], []
    for row, response in zip(rows.tokens.rows(), rows.response_lengths.tolist(), strict=True):
        logits = model(input_ids=row[None].long(), use_cache=False).logits[0, -response - 1 : -1] / temperature
        of_all = torch.log_softmax(logits, -1)
        log_probs.append(of_all.gather(1, row[-response:, None].long())[:, 0])
        entropies.append(-(of_all.exp() * of_all).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def _sums(model: Any, rows: TrainRows, objective: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Over unmasked tokens: the loss; the KL; how many they are.

    Of a policy tis x clipped objective + coefficient x KL, at most 10 each, - bonus x entropy.
    """
    new, entropies = scored_by_row(model, rows, TEMPERATURE)
    masks, advantages = rows.columns[Column.LOSS_MASKS].values.double(), rows.columns[Column.ADVANTAGES].values.double()
    if objective == "supervised":
        return -(new * masks).sum(), torch.zeros(()), float(masks.sum())
    ratio = torch.exp(new - new.detach())
    tis = torch.exp(new - rows.columns[Column.ROLLOUT_LOG_PROBS].values).clamp(max=2.0).detach()
    apart = rows.columns[Column.REF_LOG_PROBS].values - new
    divergence = (torch.exp(apart) - 1 - apart).clamp(max=10.0)
    token_loss = -advantages * ratio * tis + 0.05 * divergence
    if objective == "policy and entropy":
        token_loss = token_loss - ENTROPY_BONUS * entropies
    return (token_loss * masks).sum(), (divergence * masks).sum(), float(masks.sum())
