"""The three kinds of estimators of advantages, and what one that looks at tokens is given.

A row estimator gives one number a sample, which the trainer spreads over the response, and so does one of baselines,
which is given what each sample is measured against. A token estimator gives one a token, and the returns that a critic
is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import MaskedRows
from rljob_workers.tensors.columns import Column

RowEstimator: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(rewards, valid) -> advantages, all [groups, samples]; `valid` is bool: where it is False the reward may be anything,
and the advantage counts nowhere."""

BaselineEstimator: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(rewards, valid, baselines) -> advantages, all [rows], any rows; `valid` as above. A baseline is the reward of a
greedy answer to the row's prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class AdvantageRows:
    """Whole rows as a token estimator gets them: sorted by group, and by sample within it.

    As many as its statistics are taken over: whole groups, or a whole partition; else any rows.
    """

    rewards: torch.Tensor
    """[rows] float32; of a row that is not valid 0."""
    valid: torch.Tensor
    """[rows] bool: False where the sample could not be scored, so that it counts nowhere."""
    samples: int
    """Of each prompt."""
    masks: MaskedRows
    """The response tokens: 1 where the model drew the token and the row is valid."""
    cut_off: torch.Tensor
    """[rows] bool: the answer ended because there was room for no more."""
    values: torch.Tensor | None = None
    """[tokens] float32: the critic's expected return from each token on. None: nothing that needs it was asked for."""
    log_probs: torch.Tensor | None = None
    """[tokens] float32: of the policy before training. None: nothing that compares it was asked for."""
    ref_log_probs: torch.Tensor | None = None
    """[tokens] float32: of the reference, there where `log_probs` are."""
    penalties: torch.Tensor | None = None
    """[tokens] float32, taken off the reward of each token. None: there are none."""

    @property
    def response_lengths(self) -> torch.Tensor:
        """[rows] int64."""
        return self.masks.response_lengths

    def penalty_sums(self) -> torch.Tensor:
        """Of all drawn tokens of each row, [rows] float32; 0 where the row is not valid."""
        return torch.zeros_like(self.rewards) if self.penalties is None else self.masks.sums(self.penalties)

    def penalised_rewards(self) -> torch.Tensor:
        """Rewards less the penalties of all drawn tokens of the row, [rows] float32."""
        return self.rewards - self.penalty_sums()


TokenEstimator: TypeAlias = Callable[[AdvantageRows], Mapping[Column, torch.Tensor]]
"""(rows) -> `Column.ADVANTAGES` and, where a critic is trained on them, `Column.RETURNS`: all [tokens], 0 at tokens
that do not count."""


def broadcast_to_tokens(advantages: torch.Tensor, response_lengths: torch.Tensor) -> torch.Tensor:
    """Gives every response token its sample's advantage.

    Shapes: advantages [rows], response_lengths [rows] int64 -> [sum(response_lengths)], rows back to back.
    """
    return advantages.repeat_interleave(response_lengths)
