"""From a generated and scored group to its rows in the queue. Pure; for the score stage.

What a row says of itself is a fact (was it scored, why did it end): what is learnt from it, the trainer decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rljob_api.wire.identity import WeightId
from rljob_workers import pipeline
from rljob_workers.engines.base import FinishReason, Sample
from rljob_workers.rewards.base import Score
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.types import GroupRows, Ticket

FINISH_CODES: Mapping[str, int] = {FinishReason.STOP: 0, FinishReason.LENGTH: 1, FinishReason.ABORT: 2}
"""Finish reason of a sample -> its number in the column `finish_reasons`. Numbers are never given twice."""

FINISH_LENGTH = FINISH_CODES[FinishReason.LENGTH]


def group_rows(
    ticket: Ticket, prompt_ids: Sequence[int], samples: Sequence[Sample], scores: Sequence[Score]
) -> GroupRows:
    """All columns of the group, a row for each sample."""
    lengths = [len(sample.output_ids) for sample in samples]
    response_lengths = torch.tensor(lengths, dtype=torch.int64)
    tokens = torch.tensor(
        [token for sample in samples for token in (*prompt_ids, *sample.output_ids)], dtype=torch.int32
    )
    log_probs = torch.tensor([value for sample in samples for value in sample.log_probs], dtype=torch.float32)
    columns = {
        pipeline.TOKENS: Jagged.from_lengths(tokens, response_lengths + len(prompt_ids)),
        pipeline.RESPONSE_LENGTHS: Jagged.scalars(response_lengths),
        pipeline.LOSS_MASKS: Jagged.from_lengths(torch.ones(sum(lengths), dtype=torch.uint8), response_lengths),
        pipeline.ROLLOUT_LOG_PROBS: Jagged.from_lengths(log_probs, response_lengths),
        pipeline.REWARDS: Jagged.scalars(torch.tensor([score.reward for score in scores], dtype=torch.float32)),
        pipeline.VALID: Jagged.scalars(torch.tensor([score.failure is None for score in scores], dtype=torch.uint8)),
        pipeline.FINISH_REASONS: Jagged.scalars(
            torch.tensor([FINISH_CODES[sample.finish_reason] for sample in samples], dtype=torch.uint8)
        ),
        pipeline.VERSION_SPANS: _spans(samples),
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
