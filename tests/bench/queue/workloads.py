"""What is moved: the workloads and their rows. Knows neither queue; both sides are given the same tensors.

The first element of a row's first field is the row's number, so that a reader knows what it should have got.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rljob_workers.tensors.jagged import Jagged

GROUP_ROWS = 8
"""samplesPerPrompt of our queue in every workload."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one partition, and how they are put and claimed."""

    name: str
    title: str
    num_rows: int
    put_rows: int
    """Per put."""
    claim_rows: int
    """Per claim."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(_FIELDS[_kind(self.name)])


def jagged() -> Workload:
    return Workload("w1", "64 samples x 3 jagged fields, 4.6 MB", 64, 64, 64)


def large() -> Workload:
    return Workload("w2", "256 samples x 4 fields of 1 MiB", 256, 256, 256)


def tiny() -> Workload:
    return Workload("w3", "4096 samples of a dozen tokens, micro-batches of 8", 4096, 1024, 8)


def waiting(num_rows: int) -> Workload:
    return Workload("w5", f"claim 8 of {num_rows} waiting rows", num_rows, 1024, 8)


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "jagged": ("tokens", "log_probs", "ref_log_probs"),
    "large": ("tokens", "pixels", "hidden", "logits"),
    "tiny": ("tokens", "log_probs", "rewards"),
}
_LARGE_ELEMENTS = 1 << 18
"""4 bytes each: a value of 1 MiB."""


def _kind(name: str) -> str:
    return {"w1": "jagged", "w2": "large"}.get(name, "tiny")


def make_columns(workload: Workload) -> dict[str, Jagged]:
    """The rows of one partition."""
    kind = _kind(workload.name)
    if kind == "large":
        return _large(workload.num_rows)
    chance = torch.Generator().manual_seed(7)
    low, high = (1000, 8000) if kind == "jagged" else (8, 17)
    lengths = torch.randint(low, high, (workload.num_rows,), generator=chance)
    total = int(lengths.sum())
    tokens = Jagged.from_lengths(torch.randint(0, 32000, (total,), dtype=torch.int64, generator=chance), lengths)
    tokens.values[tokens.offsets[:-1]] = torch.arange(workload.num_rows)
    columns = {"tokens": tokens, "log_probs": Jagged(torch.randn(total, generator=chance), tokens.offsets)}
    if kind == "jagged":
        columns["ref_log_probs"] = Jagged(torch.randn(total, generator=chance), tokens.offsets)
    else:
        columns["rewards"] = Jagged.scalars(torch.randn(workload.num_rows, generator=chance))
    return columns


def _large(num_rows: int) -> dict[str, Jagged]:
    """Field k's row i is row i + k of one buffer: a GiB is moved without each client keeping one to put."""
    fields = _FIELDS["large"]
    buffer = torch.randint(0, 1 << 30, ((num_rows + len(fields) - 1) * _LARGE_ELEMENTS,), dtype=torch.int32)
    buffer[::_LARGE_ELEMENTS] = torch.arange(num_rows + len(fields) - 1, dtype=torch.int32)
    offsets = torch.arange(num_rows + 1, dtype=torch.int64) * _LARGE_ELEMENTS
    return {
        field: Jagged(buffer[shift * _LARGE_ELEMENTS : (shift + num_rows) * _LARGE_ELEMENTS], offsets)
        for shift, field in enumerate(fields)
    }


def num_bytes(workload: Workload) -> int:
    """Of W2."""
    return workload.num_rows * len(workload.fields) * _LARGE_ELEMENTS * 4


def rows_between(column: Jagged, first: int, last: int) -> Jagged:
    """Rows first to last - 1, without a copy of their values."""
    offsets = column.offsets[first : last + 1]
    return Jagged(column.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def wrong_rows(source: Mapping[str, Jagged], got: Mapping[str, list[torch.Tensor]]) -> list[str]:
    """What differs between the rows that were got and those that were put; each by its own number."""
    wrong = []
    first_field = next(iter(source))
    numbers = [int(row.reshape(-1)[0]) for row in got[first_field]]
    for field, column in source.items():
        for number, row in zip(numbers, got[field], strict=True):
            wanted = column.row(number)
            if row.dtype != wanted.dtype or not torch.equal(row.reshape(-1), wanted.reshape(-1)):
                wrong.append(f"row {number}, field {field}: {tuple(row.shape)} {row.dtype} is not what was put")
    return wrong
