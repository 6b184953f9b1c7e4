"""Packs of a row come back as they went in, and no bytes that were not packed are taken for one."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.packed import (
    MAX_PACK_BYTES,
    PACKED_DTYPES,
    CorruptPack,
    RowExtra,
    pack,
    pack_rows,
    unpack,
    unpack_rows,
)

NAMES = st.from_regex(r"[A-Za-z0-9_./-]{1,12}", fullmatch=True)
FACTS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text() | st.floats(allow_nan=False)
ARRAYS = st.builds(
    lambda dtype, shape, data: np.resize(np.frombuffer(data, np.uint8), shape).astype(dtype),
    st.sampled_from(PACKED_DTYPES),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.binary(min_size=1, max_size=64),
)
ROWS = st.builds(
    RowExtra,
    st.dictionaries(NAMES, st.floats(), max_size=5),
    st.dictionaries(NAMES, FACTS.filter(lambda fact: not (isinstance(fact, float) and math.isinf(fact))), max_size=5),
    st.dictionaries(NAMES, ARRAYS, max_size=3),
)


def as_values(row: RowExtra) -> tuple[str, dict[str, Any], dict[str, Any]]:
    arrays = {name: (array.dtype, array.shape, array.tobytes()) for name, array in row.extra.items()}
    return repr(dict(row.metrics)), dict(row.facts), arrays


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_come_back_as_they_were_packed(rows: list[RowExtra]) -> None:
    column = pack_rows(rows)
    assert len(column) == len(rows)
    assert [as_values(row) for row in unpack_rows(column)] == [as_values(row) for row in rows]


def test_a_row_that_carries_nothing_has_no_bytes() -> None:
    column = pack_rows([RowExtra(), RowExtra({"reward/format": 1.0}), RowExtra()])
    lengths = column.lengths.tolist()
    assert (lengths[0], lengths[1] > 0, lengths[2]) == (0, True, 0)
    assert pack_rows([RowExtra()] * 2).lengths.tolist() == [0, 0]


def test_arrays_of_any_layout_are_packed_by_value() -> None:
    routed = np.arange(24, dtype=">i2").reshape(2, 3, 4)
    found = unpack(pack(RowExtra(extra={"routed": routed.transpose(2, 0, 1)}))).extra["routed"]
    assert found.tolist() == routed.transpose(2, 0, 1).tolist()
    found[0] = 0  # a copy of its own


REFUSED = [
    pytest.param(RowExtra({"my metric": 1.0}), "metrics: 'my metric' is no name", id="a name with a space"),
    pytest.param(RowExtra(facts={"": "x"}), "facts: '' is no name", id="a name without a letter"),
    pytest.param(RowExtra({f"m{i}": 0.0 for i in range(257)}), "257 of them, at most 256", id="too many metrics"),
    pytest.param(RowExtra({"m": "1.0"}), "m is '1.0', which is no number", id="a string"),  # type: ignore[dict-item]
    pytest.param(RowExtra({"m": None}), "m is None, which is no number", id="none"),  # type: ignore[dict-item]
    pytest.param(RowExtra(facts={"n": 1 << 64}), "n is 18446744073709551616. Give a string", id="a huge fact"),
    pytest.param(RowExtra(facts={"n": math.nan}), "n is nan. Give a string", id="a fact that is no number"),
    pytest.param(RowExtra(facts={"n": "\ud800"}), "Give a string", id="half a character"),
    pytest.param(RowExtra(facts={"n": [1]}), r"n is \[1\]. Give a string", id="a list"),  # type: ignore[dict-item]
    pytest.param(
        RowExtra(extra={"a": np.zeros(2, np.complex64)}),
        "a is complex64. Give a numpy array",
        id="a dtype without place",
    ),
    pytest.param(RowExtra(extra={"a": [1]}), "a is list. Give a numpy array", id="no array"),  # type: ignore[dict-item]
    pytest.param(RowExtra(extra={"a": np.array([object()])}), "a is object", id="objects"),
    pytest.param(RowExtra(extra={"a": np.zeros((1,) * 9)}), "9 axes, at most 8", id="too many axes"),
    pytest.param(
        RowExtra(extra={"a": np.zeros(MAX_PACK_BYTES, np.uint8)}), "at most 1048576 are possible", id="too many bytes"
    ),
]


@pytest.mark.parametrize(("row", "message"), REFUSED)
def test_what_has_no_place_in_a_pack_is_refused_by_name(row: RowExtra, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(row)


@given(ROWS, st.data())
def test_cut_or_changed_bytes_raise_or_are_a_pack(row: RowExtra, data: st.DataObject) -> None:
    whole = bytearray(pack(row))
    if data.draw(st.booleans()) or not whole:
        damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        damaged = bytes(whole)
    try:
        found = unpack(damaged)
    except CorruptPack:
        return
    assert as_values(unpack(pack(found))) == as_values(found)


@given(st.binary(max_size=64))
def test_foreign_bytes_raise_a_named_error(data: bytes) -> None:
    if data:
        with pytest.raises(CorruptPack, match="extra: a pack"):
            unpack(data)


@pytest.mark.parametrize(
    "head",
    [
        b'{"metrics":["a","a"],"facts":{},"extra":[]}',
        b'{"metrics":[],"facts":{},"extra":[["a","object",[]]]}',
        b'{"metrics":[],"facts":{},"extra":[["a","uint8",[-1]]]}',
        b'{"metrics":[],"facts":{},"extra":[["a","uint8",[true]]]}',
        b'{"metrics":[],"facts":{},"extra":[["a",["uint8"],[0]]]}',
        b'{"metrics":[],"facts":[],"extra":[]}',
        b'{"metrics":[],"facts":{"a":[]},"extra":[]}',
        b'{"metrics":{},"facts":{}}',
        b"[]",
    ],
)
def test_a_head_that_describes_no_row_raises_a_named_error(head: bytes) -> None:
    with pytest.raises(CorruptPack, match="extra: a pack's head"):
        unpack(b"\x01" + len(head).to_bytes(4, "little") + head + bytes(16))
