"""What a BatchMeta knows of its fields: dtype, shape of one row, whether shapes differ, whether it is a tensor at all.

Pure. Made from what a user puts (`schema_of_data`) and from where rows lie (`schema_of_places`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rljob_transfer_queue.columns import ARRAY, DOCUMENT, SCALAR, TEXT
from rljob_transfer_queue.rows import Places

FieldSchema = dict[str, Any]
"""`dtype`, `shape`, `is_nested`, `is_non_tensor`, and `per_sample_shapes` where `is_nested`."""


def make_schema(dtype: torch.dtype | None, shapes: list[tuple[int, ...]], *, nested: bool) -> FieldSchema:
    """Of a tensor column whose rows have `shapes`."""
    schema: FieldSchema = {"dtype": dtype, "shape": shapes[0], "is_nested": nested, "is_non_tensor": False}
    if nested:
        schema["per_sample_shapes"] = shapes
    return schema


def non_tensor_schema() -> FieldSchema:
    """Of a column of other values."""
    return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}


def placeholder_schema() -> FieldSchema:
    """Of a field that is still to be produced."""
    return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": False}


def schema_of_data(data: TensorDict) -> dict[str, FieldSchema]:
    """Of every field of `data`; a row of a one-dimensional column counts as of shape (1,)."""
    return {name: _of_value(name, value, data.batch_size[0]) for name, value in data.items()}


def _of_value(name: str, value: Any, num_rows: int) -> FieldSchema:  # noqa: ANN401 - whatever a TensorDict holds
    nested = isinstance(value, torch.Tensor) and value.is_nested
    found = value.size(0) if nested else len(value)
    if found != num_rows:
        raise ValueError(f"data: {name} has {found} rows, the batch has {num_rows}.")
    if not isinstance(value, torch.Tensor):
        return non_tensor_schema()
    if nested:
        return make_schema(value.dtype, [tuple(row.shape) for row in value.unbind()], nested=True)
    return make_schema(value.dtype, [tuple(value.shape[1:]) or (1,)], nested=False)


def schema_of_places(places: Places) -> FieldSchema | None:
    """None where no row has the field."""
    kinds = set(np.unique(places.kinds).tolist()) - {0}
    if not kinds:
        return None
    if kinds <= {TEXT, DOCUMENT}:
        return non_tensor_schema()
    if not kinds <= {SCALAR, ARRAY}:
        return placeholder_schema()
    chunks = places.placement.chunks
    shapes = [
        (1,) if kind == SCALAR else (length, *chunks[chunk].inner_shape)
        for (chunk, _, length), kind in zip(places.placement.rows.tolist(), places.kinds.tolist(), strict=True)
    ]
    nested = len(set(shapes)) > 1
    dtype = getattr(torch, chunks[0].dtype, None)
    return make_schema(dtype, shapes if nested else shapes[:1], nested=nested)
