"""A generated group, and the rows that the queue carries of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rljob_api.wire.identity import WeightId
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import FINISH_CODES, Generation, Sample
from rljob_workers.rewards.base import SettledScore
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import RowExtra, pack_rows
from rljob_workers.transfer_queue.types import GroupRows, Ticket


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """All samples of a ticket's prompt."""

    ticket: Ticket
    prompt: Prompt
    generation: Generation


def group_rows(ticket: Ticket, prompt: Prompt, samples: Sequence[Sample], scores: Sequence[SettledScore]) -> GroupRows:
    """All columns of the group, a row for each sample."""
    prompt_ids = prompt.token_ids
    facts = {"dataset": prompt.dataset, "source": prompt.source}
    lengths = [len(sample.output_ids) for sample in samples]
    response_lengths = torch.tensor(lengths, dtype=torch.int64)
    tokens = torch.tensor(
        [token for sample in samples for token in (*prompt_ids, *sample.output_ids)], dtype=torch.int32
    )
    log_probs = torch.tensor([value for sample in samples for value in sample.log_probs], dtype=torch.float32)
    columns: dict[str, Jagged] = {
        Column.TOKENS: Jagged.from_lengths(tokens, response_lengths + len(prompt_ids)),
        Column.RESPONSE_LENGTHS: Jagged.scalars(response_lengths),
        Column.LOSS_MASKS: Jagged.from_lengths(torch.ones(sum(lengths), dtype=torch.uint8), response_lengths),
        Column.ROLLOUT_LOG_PROBS: Jagged.from_lengths(log_probs, response_lengths),
        Column.REWARDS: Jagged.scalars(torch.tensor([score.reward for score in scores], dtype=torch.float32)),
        Column.VALID: Jagged.scalars(torch.tensor([score.failure is None for score in scores], dtype=torch.uint8)),
        Column.FINISH_REASONS: Jagged.scalars(
            torch.tensor([FINISH_CODES[sample.finish_reason] for sample in samples], dtype=torch.uint8)
        ),
        Column.VERSION_SPANS: _spans(samples),
        Column.EXTRA: pack_rows([RowExtra(score.metrics, facts) for score in scores]),
    }
    oldest: list[WeightId] = [sample.spans[0].weight for sample in samples]
    newest: list[WeightId] = [sample.spans[-1].weight for sample in samples]
    return GroupRows(ticket, columns, oldest, newest)


def _spans(samples: Sequence[Sample]) -> Jagged:
    """[spans, 4] a row."""
    spans = [
        (span.weight.lineage, span.weight.version, span.start, span.end) for sample in samples for span in sample.spans
    ]
    counts = torch.tensor([len(sample.spans) for sample in samples], dtype=torch.int64)
    return Jagged.from_lengths(torch.tensor(spans, dtype=torch.int32), counts)
