"""Columns of a TensorDict as the queue's jagged columns, and back.

Pure. For `calls`. Dense and jagged tensors go in as they are, without a copy; every other value of a row is a few
bytes of its own. What comes out is what the package TransferQueue gives: a jagged nested tensor for rows with a
dimension (also where all lengths agree), a dense one for scalars, a NonTensorStack for everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, is_tensor_collection

from rljob_transfer_queue import values
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.chunks import DTYPE_CODES, MAX_INNER_DIMS

SCALAR, ARRAY, TENSOR, TEXT, DOCUMENT = range(1, 6)
"""Kinds of a row's value: one element; [length, *inner]; bytes of a tensor, dtype and shape in front; see `values`."""
_FORMS = {TEXT: values.TEXT, DOCUMENT: values.DOCUMENT}
_HEAD = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A field's rows, ready to be stored."""

    jagged: Jagged
    kinds: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, jagged: Jagged, kind: int) -> Column:
        """All rows of one kind."""
        return cls(jagged, np.full(len(jagged), kind, np.uint32))

    def select(self, indices: Sequence[int]) -> Column:
        """The rows at `indices`."""
        return Column(self.jagged.select(indices), self.kinds[np.asarray(indices, np.int64)])


def to_columns(data: TensorDict) -> dict[str, Column]:
    """Every field of `data`, which must have exactly one batch dimension with at least one row."""
    if not is_tensor_collection(data) or len(data.batch_size) != 1:
        raise ValueError(
            f"data: {type(data).__name__} is no TensorDict with one batch dimension. Give batch_size=[rows]."
        )
    num_rows = data.batch_size[0]
    if not num_rows or not len(list(data.keys())):
        raise ValueError(
            f"data: {num_rows} rows of {len(list(data.keys()))} fields are nothing to put. Give at least one."
        )
    return {_name(name): _to_column(name, value, num_rows) for name, value in data.items()}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or "|" in name:
        raise ValueError(f"data: {name!r} is no name of a field. Use text without a bar (|).")
    return name


def _to_column(name: str, value: Any, num_rows: int) -> Column:  # noqa: ANN401 - whatever a TensorDict holds
    if isinstance(value, torch.Tensor):
        column = _from_tensor(name, value.detach().cpu())
    else:
        column = _from_items(name, _items(name, value, num_rows))
    if len(column.jagged) != num_rows:
        raise ValueError(f"data: {name} has {len(column.jagged)} rows, the batch has {num_rows}.")
    return column


def _from_tensor(name: str, value: torch.Tensor) -> Column:
    if value.is_nested:
        return _from_nested(name, value)
    if value.dtype not in DTYPE_CODES or value.dim() > MAX_INNER_DIMS + 2:
        return _from_items(name, list(value))
    if value.dim() == 1:
        return Column.of(Jagged.scalars(value), SCALAR)
    num_rows, length = value.shape[:2]
    offsets = torch.arange(num_rows + 1, dtype=torch.int64) * length
    return Column.of(Jagged(value.reshape(num_rows * length, *value.shape[2:]), offsets), ARRAY)


def _from_nested(name: str, value: torch.Tensor) -> Column:
    plain = value.layout is torch.jagged and value._ragged_idx == 1 and value.lengths() is None  # type: ignore[attr-defined]
    if plain and value.dtype in DTYPE_CODES and value.dim() <= MAX_INNER_DIMS + 2:
        offsets: torch.Tensor = value.offsets()  # type: ignore[attr-defined]  # of a jagged one
        first, last = int(offsets[0]), int(offsets[-1])
        return Column.of(Jagged(value.values()[first:last], (offsets - first).to(torch.int64)), ARRAY)
    return _from_items(name, list(value.unbind()))


def _items(name: str, value: Any, num_rows: int) -> list[Any]:  # noqa: ANN401 - whatever a TensorDict holds
    if isinstance(value, NonTensorData):
        whole = value.data
        if isinstance(whole, list | tuple | np.ndarray) and len(whole) == num_rows:
            return list(whole)
        return [whole] * num_rows
    if isinstance(value, NonTensorStack):
        return list(value.tolist())
    if is_tensor_collection(value):
        raise ValueError(f"data: {name} is a TensorDict inside the TensorDict. Give its fields names of their own.")
    return list(value)


def _from_items(name: str, items: Sequence[Any]) -> Column:
    if all(isinstance(item, torch.Tensor) for item in items):
        return _from_rows([item.detach().cpu() for item in items])
    encoded = [values.encode_value(item, name) for item in items]
    kinds = np.array([TEXT if form == values.TEXT else DOCUMENT for form, _ in encoded], np.uint32)
    return Column(_bytes_column([data for _, data in encoded]), kinds)


def _from_rows(rows: Sequence[torch.Tensor]) -> Column:
    shapes = {(row.dtype, row.dim(), row.shape[1:]) for row in rows}
    dtype, num_dims, _ = next(iter(shapes))
    if len(shapes) == 1 and dtype in DTYPE_CODES and num_dims <= MAX_INNER_DIMS + 1:
        if num_dims == 0:
            return Column.of(Jagged.scalars(torch.stack(list(rows))), SCALAR)
        return Column.of(Jagged.from_rows(rows), ARRAY)
    return Column.of(_bytes_column([_tensor_bytes(row) for row in rows]), TENSOR)


def _bytes_column(rows: Sequence[bytes]) -> Jagged:
    joined = bytearray(b"".join(rows))
    flat = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return Jagged.from_lengths(flat, torch.tensor([len(row) for row in rows], dtype=torch.int64))


def _tensor_bytes(row: torch.Tensor) -> bytes:
    if row.is_nested or row.layout is not torch.strided:
        raise ValueError(
            "data: a nested or sparse tensor cannot be the value of one row. Give each part its own field."
        )
    head = orjson.dumps([str(row.dtype).removeprefix("torch."), list(row.shape)])
    return _HEAD.pack(len(head)) + head + row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _read_tensor(data: bytes) -> torch.Tensor:
    (length,) = _HEAD.unpack_from(data)
    name, shape = orjson.loads(data[_HEAD.size : _HEAD.size + length])
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"TransferQueue: a stored tensor has the dtype {name!r}, which this version does not know.")
    raw = bytearray(data[_HEAD.size + length :])
    return (
        torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
    )


def to_tensordict(columns: Mapping[str, Sequence[Column]], num_rows: int) -> TensorDict:
    """Fields whose rows came in one part or more (each row of a part is of kind 0 where another part has it)."""
    return TensorDict({name: _packed(parts) for name, parts in columns.items()}, batch_size=[num_rows])


def _packed(parts: Sequence[Column]) -> Any:  # noqa: ANN401 - whatever a TensorDict holds
    if len(parts) == 1:
        jagged, kinds = parts[0].jagged, parts[0].kinds
        if (kinds == ARRAY).all():
            return _nested(jagged)
        if (kinds == SCALAR).all():
            return jagged.values
    rows: list[Any] = [None] * len(parts[0].kinds)
    for part in parts:
        for place in np.flatnonzero(part.kinds).tolist():
            rows[place] = _row(part.jagged.row(place), int(part.kinds[place]))
    return _stacked(rows)


def _nested(jagged: Jagged) -> torch.Tensor:
    lengths = jagged.lengths
    return torch.nested.nested_tensor_from_jagged(
        jagged.values, jagged.offsets, min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max())
    )


def _row(value: torch.Tensor, kind: int) -> Any:  # noqa: ANN401 - whatever a TensorDict holds
    if kind == ARRAY:
        return value
    if kind == SCALAR:
        return value[0]
    data = value.numpy().tobytes()
    return _read_tensor(data) if kind == TENSOR else values.decode_value(_FORMS[kind], data)


def _stacked(rows: list[Any]) -> Any:  # noqa: ANN401 - whatever a TensorDict holds
    if all(isinstance(row, torch.Tensor) for row in rows):
        if all(row.dim() == 0 for row in rows) and len({row.dtype for row in rows}) == 1:
            return torch.stack(rows)
        if len({row.dtype for row in rows}) == 1 and all(row.dim() for row in rows):
            for layout in (torch.jagged, torch.strided):
                try:
                    return torch.nested.as_nested_tensor(rows, layout=layout)
                except (RuntimeError, TypeError):
                    # Shapes that differ in more than one place, or in their number of dimensions.
                    continue
    return NonTensorStack(*rows)
