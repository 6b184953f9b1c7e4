"""Values that are no tensor columns: what comes back is what was given, and nothing else is taken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from rljob_transfer_queue.values import DOCUMENT, TEXT, decode_value, encode_value

SCALARS = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False)
    | some.text()
    | some.binary(max_size=20)
)
VALUES = some.recursive(
    SCALARS,
    lambda inner: (
        some.lists(inner, max_size=4) | some.tuples(inner) | some.dictionaries(some.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def again(value: object) -> Any:
    return decode_value(*encode_value(value, "x"))


@given(VALUES)
def test_every_value_comes_back(value: object) -> None:
    found = again(value)
    assert found == value
    assert type(found) is type(value)


def test_text_is_stored_as_it_is() -> None:
    assert encode_value("Grüße", "x") == (TEXT, "Grüße".encode())
    assert encode_value(1, "x") == (DOCUMENT, b"1")


def test_what_is_no_number_comes_back() -> None:
    assert math.isnan(again(math.nan))


def test_a_dict_that_looks_like_a_mark_comes_back() -> None:
    assert again({"$rljob": "tuple", "is": [1]}) == {"$rljob": "tuple", "is": [1]}


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(2, 3).to(torch.bfloat16),
        torch.tensor(3),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.rand(4, 4).t(),
    ],
    ids=["bfloat16", "one element", "empty", "bool", "transposed"],
)
def test_tensors_come_back(value: torch.Tensor) -> None:
    found = again([value])[0]
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert torch.equal(found, value)


@pytest.mark.parametrize(
    "value",
    [np.arange(6).reshape(2, 3), np.array(["a", "bc"]), np.array([1.5], ">f4"), np.array(["2026-11-21"], "M8[D]")],
    ids=["integers", "text", "big endian", "dates"],
)
def test_arrays_come_back(value: Any) -> None:
    found = again({"in": value})["in"]
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)
    found[:] = value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "x: a value of type object cannot be carried, since nothing is pickled here"),
        ([lambda: 0], "x: a value of type function cannot be carried"),
        ({("a", "b"): 1}, r"x: a dict has the key \('a', 'b'\), which is no text"),
        (np.zeros(1, [("a", "i4")]), "x: an array of records"),
        ([torch.nested.as_nested_tensor([torch.ones(1)], layout=torch.jagged)], "x: a nested or sparse tensor"),
    ],
    ids=["object", "function", "key", "records", "nested"],
)
def test_what_is_refused_is_named(value: object, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        encode_value(value, "x")


@pytest.mark.parametrize(
    "data",
    [b'{"$rljob":"call","is":"os.system"}', b'{"$rljob":"tensor","is":["load",[1],""]}', b"not json"],
    ids=["unknown mark", "no dtype", "no JSON"],
)
def test_what_was_not_written_here_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - orjson's own sentence is one of them
        decode_value(DOCUMENT, data)


def test_no_array_of_objects_is_made_of_bytes() -> None:
    with pytest.raises(ValueError, match="OBJECT"):
        decode_value(DOCUMENT, b'{"$rljob":"array","is":["|O",[1],"AAAAAAAAAAA="]}')
