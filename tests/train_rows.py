"""Rows to train on, by the columns that a test cares about."""

from __future__ import annotations

import torch

from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows


def rows_of(
    tokens: Jagged, response_lengths: torch.Tensor, row_numbers: torch.Tensor | None = None, **columns: Jagged | None
) -> TrainRows:
    """Columns by their names in the queue; None leaves one out."""
    lengths = Jagged.scalars(response_lengths)
    always = {Column.TOKENS: tokens, Column.RESPONSE_LENGTHS: lengths}
    return TrainRows(always | _named(columns), row_numbers)


def replaced(rows: TrainRows, row_numbers: torch.Tensor | None = None, **columns: Jagged | None) -> TrainRows:
    """The same rows with other columns; None takes one away."""
    left = {column: values for column, values in rows.columns.items() if column.value not in columns}
    return TrainRows(left | _named(columns), rows.row_numbers if row_numbers is None else row_numbers)


def _named(columns: dict[str, Jagged | None]) -> dict[Column, Jagged]:
    return {Column[name.upper()]: values for name, values in columns.items() if values is not None}
