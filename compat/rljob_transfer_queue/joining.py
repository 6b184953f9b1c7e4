"""What becomes of schemas and batch-level notes when batches are joined.

Pure. For `metadata` and `kv_metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rljob_transfer_queue.schema import FieldSchema


def require_same_fields(schemas: Sequence[Mapping[str, FieldSchema]]) -> None:
    """Raises ValueError where a part has other fields, or a field another dtype, than the first."""
    first = schemas[0]
    for number, schema in enumerate(schemas):
        if set(schema) != set(first):
            raise ValueError(
                f"BatchMeta.concat: part {number} has the fields {sorted(schema)}, part 0 has"
                f" {sorted(first)}. Use select_fields first."
            )
        for name, one in schema.items():
            if one.get("dtype") != first[name].get("dtype"):
                raise ValueError(
                    f"BatchMeta.concat: field {name!r} is {one.get('dtype')} in part {number} and"
                    f" {first[name].get('dtype')} in part 0."
                )


def joined_schemas(parts: Sequence[tuple[Mapping[str, FieldSchema], int]]) -> dict[str, FieldSchema]:
    """Schemas of the first part's fields over all rows; `parts` are schemas and numbers of rows."""
    return {name: _joined([(schema.get(name, {}), rows) for schema, rows in parts]) for name in parts[0][0]}


def _joined(parts: Sequence[tuple[FieldSchema, int]]) -> FieldSchema:
    first = parts[0][0]
    shapes: list[Any] = []
    for schema, rows in parts:
        own = schema.get("per_sample_shapes")
        shapes += [schema.get("shape")] * rows if own is None else list(own)
    nested = any(schema.get("is_nested", False) for schema, _ in parts) or any(shape != shapes[0] for shape in shapes)
    joined: FieldSchema = {
        "dtype": first.get("dtype"),
        "shape": None if nested else first.get("shape"),
        "is_nested": nested,
        "is_non_tensor": first.get("is_non_tensor", False),
    }
    if nested:
        joined["per_sample_shapes"] = shapes
    return joined


def agreed_info(what: str, infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """All entries; raises ValueError where two parts say different things under one key."""
    agreed: dict[str, Any] = {}
    for info in infos:
        for key, value in (info or {}).items():
            if key in agreed and not _same(agreed[key], value):
                raise ValueError(
                    f"{what}: extra_info says two things of {key!r}: {agreed[key]!r} and {value!r}. Make them agree or"
                    " remove the key."
                )
            agreed.setdefault(key, value)
    return agreed


def _same(first: object, second: object) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    return bool(first == second)
