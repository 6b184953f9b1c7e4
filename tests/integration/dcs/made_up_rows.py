"""Rows without meaning, of the dtypes and inner shapes that the table of columns wants."""

from __future__ import annotations

import torch

from rljob_workers.pipeline import GENERATED
from rljob_workers.tensors.jagged import Jagged


def made_up_columns(num_rows: int) -> dict[str, Jagged]:
    """Every generated column: elements 0, 1 and 2 in each row."""
    columns: dict[str, Jagged] = {}
    for column in GENERATED:
        elements = torch.arange(3).view(3, *([1] * len(column.inner))).expand(3, *column.inner)
        columns[column] = Jagged.from_rows([elements.to(getattr(torch, column.dtype))] * num_rows)
    return columns
