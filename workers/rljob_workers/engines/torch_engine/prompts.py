"""Token sequences made ready for one forward pass: chunks of like lengths, padded on the right.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.slots import Admission

_SLACK_TOKENS = 16
"""Prompts whose lengths differ by no more share a pass: a second pass costs more than so much padding."""


@dataclass(frozen=True, slots=True, eq=False)
class PaddedPrompts:
    """`ids` [B, T] int64, zeros behind each sequence; `lengths` [B] int64."""

    ids: torch.Tensor
    lengths: torch.Tensor

    @property
    def width(self) -> int:
        """T."""
        return self.ids.shape[1]


def pad_prompts(sequences: Sequence[Sequence[int]]) -> PaddedPrompts:
    """Pads to the longest."""
    lengths = [len(sequence) for sequence in sequences]
    width = max(lengths)
    padded = [[*sequence, *([0] * (width - length))] for sequence, length in zip(sequences, lengths, strict=True)]
    return PaddedPrompts(torch.tensor(padded, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))


def cut_chunks(admitted: list[Admission], max_tokens: int) -> list[list[Admission]]:
    """Sorts by prompt length and cuts into passes of at most `max_tokens` padded tokens (or one prompt)."""
    chunks: list[list[Admission]] = []
    for one in sorted(admitted, key=lambda admission: -len(admission.group.prompt)):
        length = len(one.group.prompt)
        if chunks:
            longest = len(chunks[-1][0].group.prompt)
            is_alike = longest - length <= max(_SLACK_TOKENS, longest // 4)
            if is_alike and longest * (len(chunks[-1]) + 1) <= max_tokens:
                chunks[-1].append(one)
                continue
        chunks.append([one])
    return chunks
