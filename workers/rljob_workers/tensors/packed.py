"""What a row carries without a column of its own, as bytes: metrics, facts and named arrays (`Column.EXTRA`).

For the rollout, which packs, and for all that read rows. Never a pickle; every length is checked. A pack without
content has no bytes. All numbers are little-endian:

    offset  size  what
    0       1     format version (1)
    1       4     bytes of the head
    5       n     head, JSON: {"metrics": [name], "facts": {name: value}, "extra": [[name, dtype, shape]]}
    5 + n   8     a float64 for each metric (JSON has no NaN)
            ...   raw bytes of each array, one behind the other
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import torch

from rljob_workers.tensors.jagged import Jagged

MAX_PACK_BYTES = 1 << 20
"""Of one row: what is larger deserves a column, which is fetched only where it is read."""


MAX_METRICS = 256
"""Of one row: each becomes a figure of the step."""


PACKED_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""As numpy names them."""


MAX_DIMS = 8


_VERSION = 1


_PREFIX = struct.Struct("<BI")


_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


_METRIC = np.dtype("<f8")


Fact: TypeAlias = str | int | float | bool | None


DRAWS, LAST_REFUSED = "draws", "last_draw_refused"
"""Facts of rows in jobs with `rollout.dynamicSampling`: draws of their group that the filter has seen, and whether it
has refused the last one, too."""


DRAWN_FOR = "drawn_for"
"""Fact of rows in jobs with `rollout.order: Swap`: the rollout that their group was begun for."""


LABEL = "label"
"""Fact of rows whose prompt has one: what it is as a text, for people."""


class CorruptPack(Exception):
    """Bytes that `pack` did not write; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True, eq=False)
class RowExtra:
    """What one row carries."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of rewards and of the rollout function; NaN and infinity stay what they are."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What the row comes from, e.g. `dataset` and `source`."""
    extra: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Of the rollout function, in any shape of up to 8 axes, of a dtype in `PACKED_DTYPES`."""


def draws_of(facts: Mapping[str, Fact]) -> tuple[int, bool] | None:
    """What `DRAWS` and `LAST_REFUSED` are in a row's facts; None where it has none."""
    draws = facts.get(DRAWS)
    return (draws, bool(facts.get(LAST_REFUSED))) if isinstance(draws, int) else None


def drawn_for(facts: Mapping[str, Fact]) -> float:
    """What `DRAWN_FOR` is in a row's facts; NaN where it has none."""
    rollout_id = facts.get(DRAWN_FOR)
    return float(rollout_id) if isinstance(rollout_id, int) else float("nan")


def pack(row: RowExtra) -> bytes:
    """The row's bytes. Raises ValueError, with name and bound, for what has no place in them."""
    if not (row.metrics or row.facts or row.extra):
        return b""
    if len(row.metrics) > MAX_METRICS:
        raise ValueError(f"metrics: a row has {len(row.metrics)} of them, at most {MAX_METRICS} are possible.")
    for kind, names in (("metrics", row.metrics), ("facts", row.facts), ("extra", row.extra)):
        _refuse_names(kind, names)
    arrays = {name: _packable(name, array) for name, array in row.extra.items()}
    head = {
        "metrics": list(row.metrics),
        "facts": {name: _fact(name, value) for name, value in row.facts.items()},
        "extra": [(name, array.dtype.name, array.shape) for name, array in arrays.items()],
    }
    text, values = orjson.dumps(head), np.array([_metric(*each) for each in row.metrics.items()], _METRIC)
    size = _PREFIX.size + len(text) + values.nbytes + sum(array.nbytes for array in arrays.values())
    if size > MAX_PACK_BYTES:
        raise ValueError(
            f"extra: metrics, facts and arrays of a row have {size} bytes, at most {MAX_PACK_BYTES} are possible."
            " Leave arrays out, or give them a smaller dtype."
        )
    parts = (_PREFIX.pack(_VERSION, len(text)), text, values.tobytes(), *(array.tobytes() for array in arrays.values()))
    return b"".join(parts)


def unpack(data: bytes | memoryview) -> RowExtra:
    """The reverse of `pack`; raises CorruptPack. Arrays are copies."""
    if not len(data):
        return RowExtra()
    if not _PREFIX.size <= len(data) <= MAX_PACK_BYTES:
        raise CorruptPack(f"extra: a pack of {len(data)} bytes; it has {_PREFIX.size} to {MAX_PACK_BYTES}")
    version, head_bytes = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise CorruptPack(f"extra: a pack has format version {version}, known is {_VERSION}")
    at = _PREFIX.size + head_bytes
    metrics, facts, arrays = _parse_head(bytes(data[_PREFIX.size : at]))
    values_end = at + len(metrics) * _METRIC.itemsize
    sizes = [np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in arrays]
    if values_end + sum(sizes) != len(data):
        raise CorruptPack(f"extra: a pack has {len(data)} bytes, its head describes {values_end + sum(sizes)}")
    values = np.frombuffer(data[at:values_end], _METRIC).tolist()
    extra, at = {}, values_end
    for (name, dtype, shape), size in zip(arrays, sizes, strict=True):
        extra[name] = np.frombuffer(data[at : at + size], np.dtype(dtype).newbyteorder("<")).reshape(shape).copy()
        at += size
    return RowExtra(dict(zip(metrics, values, strict=True)), facts, extra)


def pack_rows(rows: Sequence[RowExtra]) -> Jagged:
    """The column of these rows: uint8 values, a length for each."""
    packs, of_facts = [], dict[int, bytes]()
    for row in rows:
        if row.metrics or row.extra:
            packs.append(pack(row))
            continue
        facts = id(row.facts)  # rows of a group share theirs
        if facts not in of_facts:
            of_facts[facts] = pack(row)
        packs.append(of_facts[facts])
    values = torch.from_numpy(np.frombuffer(bytearray(b"".join(packs)), np.uint8))  # torch refuses an empty buffer
    return Jagged.from_lengths(values, torch.tensor([len(each) for each in packs], dtype=torch.int64))


def unpack_rows(column: Jagged) -> list[RowExtra]:
    """The reverse of `pack_rows`; raises CorruptPack. Rows of the same bytes share what they carry."""
    data, ends = column.values.numpy().tobytes(), column.offsets.tolist()
    packs = [data[first:last] for first, last in itertools.pairwise(ends)]
    found = {each: unpack(each) for each in set(packs)}
    return [found[each] for each in packs]


def _refuse_names(kind: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{kind}: {name!r} is no name. Use 1 to 128 letters, digits and the signs _ . / - in a string."
            )


def _metric(name: str, value: float) -> float:
    if isinstance(value, str):
        raise ValueError(f"metrics: {name} is {value!r}, which is no number.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"metrics: {name} is {value!r}, which is no number.") from error


def _fact(name: str, value: Fact) -> Fact:
    is_whole = isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    is_finite = isinstance(value, float) and math.isfinite(value)
    if value is None or is_whole or is_finite or (isinstance(value, str) and _is_text(value)):
        return value
    raise ValueError(f"facts: {name} is {value!r}. Give a string, a whole number of 64 bits, a finite number or None.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _packable(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(array, np.ndarray) or array.dtype.name not in PACKED_DTYPES:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"extra: {name} is {found}. Give a numpy array of {', '.join(PACKED_DTYPES)}.")
    if array.ndim > MAX_DIMS:
        raise ValueError(f"extra: {name} has {array.ndim} axes, at most {MAX_DIMS} are possible. Flatten it.")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _parse_head(text: bytes) -> tuple[list[str], dict[str, Fact], list[tuple[str, str, tuple[int, ...]]]]:
    try:
        head = orjson.loads(text)
        metrics, facts = head["metrics"], head["facts"]
        arrays = [(name, dtype, tuple(shape)) for name, dtype, shape in head["extra"]]
        _refuse_names("metrics", metrics)
        _refuse_names("facts", facts)
        _refuse_names("extra", [name for name, _, _ in arrays])
        facts = {name: _fact(name, value) for name, value in facts.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptPack(f"extra: a pack's head cannot be read: {error}") from error
    named = [name for name, _, _ in arrays]
    if len(set(metrics)) != len(metrics) or len(set(named)) != len(named) or len(metrics) > MAX_METRICS:
        raise CorruptPack(f"extra: a pack's head has {len(metrics)} metrics and {len(named)} arrays, or one twice")
    for name, dtype, shape in arrays:
        if dtype not in PACKED_DTYPES or len(shape) > MAX_DIMS or not all(_is_size(size) for size in shape):
            raise CorruptPack(f"extra: a pack's head describes {name} as {dtype!r} {list(shape)!r}")
    return metrics, facts, arrays


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_PACK_BYTES
