"""A generated group, and the rows that the queue carries of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch

from rljob_api.base import without_middle
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import FINISH_CODES, FinishReason
from rljob_workers.estimators import JobEstimator, has_variance
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.trajectory import LostSample, Trajectory, place_of
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import LABEL, Fact, RowExtra, pack_rows
from rljob_workers.transfer_queue.types import GroupRows, Ticket

GREEDY_REWARD = "greedy_reward"
"""Metric of rows: the reward of the greedy answer. A step reports its mean as `rollout/greedy_reward`, which no
function's metric can be: a job has greedy answers or a function."""


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """All samples of a ticket's prompt."""

    ticket: Ticket
    prompt: Prompt
    samples: tuple[Trajectory | LostSample, ...]
    greedy: Trajectory | None = None
    """The greedy answer, where the job has them: no row, and scored alone."""

    @property
    def answers(self) -> tuple[Trajectory | LostSample, ...]:
        """What is to be scored: its samples, and after them the greedy answer."""
        return self.samples if self.greedy is None else (*self.samples, self.greedy)


def answer_of(group: GeneratedGroup, index: int, text: str) -> Answer:
    """A sample that was made, the greedy answer among them, as rewards and filters see it; `text` is its response."""
    prompt, sample = group.prompt, group.answers[index]
    assert isinstance(sample, Trajectory)
    return Answer(
        prompt.text,
        text,
        prompt.label,
        group.ticket.group,
        index,
        token_ids=tuple(sample.response_ids),
        loss_mask=tuple(sample.loss_mask),
        finish_reason=sample.finish.value,
        messages=prompt.messages,
        row=prompt.row,
        metrics=sample.metrics,
    )


def group_rows(
    group: GeneratedGroup,
    scores: Sequence[SettledScore],
    baseline: float | None = None,
    estimator: JobEstimator | None = None,
    of_draw: Mapping[str, Fact] = MappingProxyType({}),
) -> GroupRows:
    """All columns of the group, a row for each sample, of which there are `scores`; at least one was made.

    `baseline`: the reward of its greedy answer; None: there is none. `estimator`: with its advantages. `of_draw`:
    facts of its rows, beside where its prompt comes from.
    Raises ValueError where a user's estimator does not give what it should.
    """
    facts = {**_facts(group.prompt), **of_draw}
    rows = [sample if isinstance(sample, Trajectory) else _masked(group.prompt) for sample in group.samples]
    response_lengths = torch.tensor([len(row.loss_mask) for row in rows], dtype=torch.int64)
    total_lengths = torch.tensor([len(row.token_ids) for row in rows], dtype=torch.int64)
    columns: dict[str, Jagged] = {
        Column.TOKENS: Jagged.from_lengths(
            torch.tensor(list(chain.from_iterable(row.token_ids for row in rows)), dtype=torch.int32), total_lengths
        ),
        Column.RESPONSE_LENGTHS: Jagged.scalars(response_lengths),
        Column.LOSS_MASKS: Jagged.from_lengths(
            torch.tensor(list(chain.from_iterable(row.loss_mask for row in rows)), dtype=torch.uint8), response_lengths
        ),
        Column.ROLLOUT_LOG_PROBS: Jagged.from_lengths(
            torch.tensor(list(chain.from_iterable(row.response_log_probs() for row in rows)), dtype=torch.float32),
            response_lengths,
        ),
        Column.REWARDS: Jagged.scalars(torch.tensor([score.reward for score in scores], dtype=torch.float32)),
        Column.VALID: Jagged.scalars(torch.tensor([score.failure is None for score in scores], dtype=torch.uint8)),
        Column.FINISH_REASONS: Jagged.scalars(
            torch.tensor([FINISH_CODES[row.finish] for row in rows], dtype=torch.uint8)
        ),
        Column.VERSION_SPANS: _spans(rows),
        Column.EXTRA: pack_rows(
            [
                RowExtra({**row.metrics, **score.metrics, **of_group}, facts, row.extra)
                for row, score, of_group in zip(rows, scores, _group_metrics(baseline, len(rows)), strict=True)
            ]
        ),
    }
    if baseline is not None:
        columns[Column.BASELINES] = Jagged.scalars(torch.full((len(rows),), baseline, dtype=torch.float32))
    if estimator is not None:
        columns |= _advantages(columns, estimator)
    weights = [(row.oldest, row.newest) for row in rows if row.version_spans]
    if len(weights) < len(rows):  # samples that were lost count as made by the oldest
        oldest = min((first for first, _ in weights), key=place_of)
        weights = [(row.oldest, row.newest) if row.version_spans else (oldest, oldest) for row in rows]
    return GroupRows(group.ticket, columns, [first for first, _ in weights], [last for _, last in weights])


def _advantages(columns: Mapping[str, Jagged], estimator: JobEstimator) -> dict[str, Jagged]:
    rewards, valid = columns[Column.REWARDS].values, columns[Column.VALID].values.bool()
    baselines = columns[Column.BASELINES].values if Column.BASELINES in columns else None
    found = {Column.ROW_ADVANTAGES: estimator.of_samples(rewards, valid, len(rewards), baselines)}
    if estimator.finds_variance:
        found[Column.HAS_VARIANCE] = has_variance(rewards, valid, len(rewards), baselines)
    return {column: Jagged.scalars(values) for column, values in found.items()}


def _group_metrics(baseline: float | None, num_rows: int) -> list[dict[str, float]]:
    """Of each row; what is the group's is its first row's, so that a step's mean has each group once."""
    first = {} if baseline is None else {GREEDY_REWARD: baseline}
    return [first, *({} for _ in range(num_rows - 1))]


LABEL_CHARACTERS = 1000
"""Characters of a label that go with every row of its group, to be shown: a file of tests may be one."""


def _facts(prompt: Prompt) -> dict[str, Fact]:
    """The origin of a row, and what was right."""
    facts = (("dataset", prompt.dataset), ("source", prompt.source), (LABEL, _label_text(prompt.label)))
    return {name: value for name, value in facts if value}


def _label_text(label: Any) -> str:  # noqa: ANN401 - a label is what the user wrote
    """Empty where there is none. Half a surrogate pair, which no pack takes, is a question mark."""
    if label is None:
        return ""
    text = label if isinstance(label, str) else json.dumps(label, ensure_ascii=False, default=str, skipkeys=True)
    return without_middle(text, LABEL_CHARACTERS).encode(errors="replace").decode()


def _masked(prompt: Prompt) -> Trajectory:
    """The row of a sample that was lost: no role takes an empty response."""
    return Trajectory([*prompt.token_ids, prompt.token_ids[-1]], len(prompt.token_ids), [0], [], (), FinishReason.STOP)


def _spans(rows: Sequence[Trajectory]) -> Jagged:
    """[spans, 4] a row; of a row without a drawn token none."""
    spans = [
        (span.weight.lineage, span.weight.version, span.start, span.end) for row in rows for span in row.version_spans
    ]
    counts = torch.tensor([len(row.version_spans) for row in rows], dtype=torch.int64)
    return Jagged.from_lengths(torch.tensor(spans, dtype=torch.int32).reshape(-1, 4), counts)
