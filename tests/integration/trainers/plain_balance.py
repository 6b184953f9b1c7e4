"""What balanced experts are measured by: the losses of routers in a plain loop, in float64, token by token.

Written by the definitions: of T tokens of a group that a layer deals to k of E experts each, F_e went to expert e, and
p_e is the mean of the softmax: E sum over e of (F_e / (k T)) p_e; and the mean of log-sum-exp squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.base import TrainRows

Groups = Callable[[TrainRows], Sequence[Sequence[int]]]
"""Which rows of a step are balanced together."""


@dataclass(frozen=True)
class Seen:
    """Of one step."""

    added: torch.Tensor
    """To the sum of losses, with a graph."""
    aux: float
    """Mean over groups by their tokens that count, and over layers, without a coefficient."""
    z: float
    loads: torch.Tensor
    """[layers, experts]"""


@contextmanager
def _logits(model: Any) -> Iterator[list[torch.Tensor]]:
    """[tokens, experts] of each layer in turn, of the passes within."""
    found: list[torch.Tensor] = []

    def note(gate: Any, inputs: Any, _: Any) -> None:
        found.append(inputs[0].reshape(-1, gate.weight.shape[1]) @ gate.weight.t())

    hooks = [layer.mlp.gate.register_forward_hook(note) for layer in model.model.layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def balance(model: Any, rows: TrainRows, groups: Groups, *, aux: float, z: float) -> Seen:
    """With these coefficients."""
    of_row = []
    for row in rows.tokens.rows():
        with _logits(model) as found:
            model(input_ids=row[None].long(), use_cache=False)
        of_row.append([one[:-1] for one in found])
    masks = torch.split(rows.columns[Column.LOSS_MASKS].values.double(), rows.response_lengths.tolist())
    chosen_of_token = model.config.num_experts_per_tok
    layers, experts = len(of_row[0]), model.config.num_experts
    added, auxes, zs = torch.zeros((), dtype=torch.float64), 0.0, 0.0
    loads = torch.zeros(layers, experts, dtype=torch.float64)
    for group in groups(rows):
        weight = sum(float(masks[row].sum()) for row in group)
        for layer in range(layers):
            logits = torch.cat([of_row[row][layer] for row in group])
            if not len(logits):
                continue
            fractions = torch.zeros(experts, dtype=torch.float64)
            for token in logits:
                fractions[token.topk(chosen_of_token).indices] += 1
            loads[layer] += fractions
            even = experts * (fractions / (chosen_of_token * len(logits)) * logits.softmax(-1).mean(0)).sum()
            small = logits.logsumexp(-1).square().mean()
            added = added + weight * (aux * even + z * small)
            auxes, zs = auxes + weight * even.item(), zs + weight * small.item()
    total = sum(float(one.sum()) for one in masks) * layers
    return Seen(added, auxes / total, zs / total, loads)
