"""What token estimators are made of: rewards of single tokens, discounted sums over a response, and whitening.

All of it skips tokens that do not count (a tool wrote them, or the row is not valid): for a return they are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rljob_workers.algorithms.advantages.estimator import AdvantageRows


class DrawnTokens:
    """The tokens that count, row by row without gaps.

    drawn = DrawnTokens(rows)
    rewards = drawn.rewards()                          [drawn tokens]
    drawn.spread(drawn.discounted_sums(rewards, 0.9))  [tokens]
    """

    def __init__(self, rows: AdvantageRows) -> None:
        self._rows = rows
        self._places = rows.masks.masks.nonzero().flatten()
        self.row = rows.masks.row_of_token[self._places]
        """[drawn tokens] int64: the row of each."""
        self.is_last = torch.ones_like(self.row, dtype=torch.bool)
        """[drawn tokens] bool: nothing that was drawn follows in the row."""
        self.is_last[:-1] = self.row[1:] != self.row[:-1]

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [drawn tokens] float64: sums of thousands of tokens lose nothing that float32 can show."""
        return values[self._places].double()

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[drawn tokens] -> [tokens] float32, 0 at the others."""
        found = torch.zeros(self._rows.masks.masks.shape, dtype=torch.float32, device=values.device)
        found[self._places] = values.float()
        return found

    def rewards(self) -> torch.Tensor:
        """The row's reward at its last drawn token, and less the penalty of each token: [drawn tokens] float64."""
        found = torch.where(self.is_last, self._rows.rewards[self.row].double(), 0.0)
        return found if self._rows.penalties is None else found - self.of(self._rows.penalties)

    def following(self, values: torch.Tensor) -> torch.Tensor:
        """Of each token the value of the next drawn one in its row, 0 at the last: both [drawn tokens]."""
        following = torch.zeros_like(values)
        following[:-1] = values[1:]
        return following.masked_fill_(self.is_last, 0.0)

    def discounted_sums(self, values: torch.Tensor, factor: float) -> torch.Tensor:
        """S_t = v_t + factor * S_{t + 1} within each row, both [drawn tokens].

        By doubling: after k rounds S_t has the first 2^k terms, so that a response of 16 000 tokens takes 14 rounds.
        """
        sums, reach = values, 1
        longest = int(self.row.bincount().max()) if len(self.row) else 0
        while reach < longest:
            same_row = self.row[reach:] == self.row[:-reach]
            further = torch.zeros_like(sums)
            further[:-reach] = torch.where(same_row, factor**reach * sums[reach:], 0.0)
            sums, reach = sums + further, 2 * reach
        return sums


def whitened(values: torch.Tensor, *, epsilon: float = 1e-8) -> torch.Tensor:
    """(v - mean) / sqrt(variance + epsilon), with the unbiased variance (n - 1); [n] -> [n].

    Fewer than two values have no variance: they become 0.
    """
    centred = values - values.mean() if len(values) else values
    variance = centred.square().sum() / max(len(values) - 1, 1)
    return centred * torch.rsqrt(variance + epsilon)
