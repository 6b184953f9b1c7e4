"""What is put comes back: every dtype, shape and kind of value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.chunks import DTYPE_CODES
from tests.compat.queue.conftest import MakeClient

# complex64 has no code in a chunk: it is carried as bytes of its own.
DTYPES = [*DTYPE_CODES, torch.complex64]


def again(client: TransferQueueClient, value: Any, num_rows: int) -> Any:
    meta = client.put(TensorDict({"x": value}, batch_size=[num_rows]), partition_id="p")
    return client.get_data(meta)["x"]


def rows_of(value: Any) -> list[Any]:
    return list(value.unbind() if isinstance(value, torch.Tensor) else value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(make_client: MakeClient, dtype: torch.dtype) -> None:
    given = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)
    found = again(make_client(), given, 2)
    assert found.dtype == dtype
    assert all(torch.equal(one, other) for one, other in zip(rows_of(found), given, strict=True))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(torch.arange(3.0), id="one element a row comes back dense"),
        pytest.param(torch.rand(3, 4), id="rows of one length"),
        pytest.param(torch.rand(3, 2, 5, 4), id="rows with inner dimensions"),
        pytest.param(torch.rand(3, 1, 2, 1, 2, 1, 2), id="more inner dimensions than a chunk has"),
        pytest.param(torch.empty(3, 0), id="rows without elements"),
        pytest.param(torch.rand(3, 8)[:, ::2], id="a view with gaps"),
        pytest.param(torch.rand(3, 2, requires_grad=True), id="a tensor with a gradient"),
    ],
)
def test_dense_tensors_come_back(make_client: MakeClient, given: torch.Tensor) -> None:
    found = again(make_client(), given, 3)
    assert found.is_nested == (given.dim() > 1)
    assert [row.tolist() for row in rows_of(found)] == given.tolist()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_come_back(make_client: MakeClient, layout: torch.layout) -> None:
    rows = [torch.rand(length, 2) for length in (3, 0 if layout is torch.jagged else 2, 5)]
    found = again(make_client(), torch.nested.as_nested_tensor(rows, layout=layout), 3)
    assert found.layout is torch.jagged
    assert [row.tolist() for row in rows_of(found)] == [row.tolist() for row in rows]


def test_a_jagged_tensor_with_holes_comes_back(make_client: MakeClient) -> None:
    padded = torch.arange(12).view(2, 6)
    part = torch.nested.narrow(padded, 1, torch.tensor([1, 0]), torch.tensor([2, 5]), layout=torch.jagged)
    assert [row.tolist() for row in rows_of(again(make_client(), part, 2))] == [[1, 2], [6, 7, 8, 9, 10]]


def test_tensors_whose_shapes_do_not_match_come_back_row_by_row(make_client: MakeClient) -> None:
    given = NonTensorStack(torch.ones(2, 3), torch.zeros(4, 5), torch.ones(1))
    found = again(make_client(), given, 3)
    assert [row.shape for row in found] == [(2, 3), (4, 5), (1,)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(["", "a", "Grüße \x00 €"], id="text"),
        pytest.param([None, True, -7], id="what JSON knows"),
        pytest.param([1 << 70, -math.inf, (1, ("a", b"\x00\xff"))], id="what JSON does not know"),
        pytest.param([{"role": "user", "parts": [1.5, {"deep": None}]}, {}, {"$rljob": "mine"}], id="documents"),
        pytest.param([b"", b"bytes", np.str_("numpy text")], id="bytes"),
    ],
)
def test_other_values_come_back(make_client: MakeClient, rows: list[Any]) -> None:
    found = again(make_client(), NonTensorStack(*rows), 3)
    assert list(found) == rows
    assert [type(one) for one in found] == [type(one) for one in rows]


def test_tensors_and_arrays_inside_values_come_back(make_client: MakeClient) -> None:
    image: dict[str, Any] = {
        "pixels": torch.rand(2, 3).to(torch.bfloat16),
        "grid": np.arange(6).reshape(2, 3),
        "scale": np.float32(2),
    }
    found = again(make_client(), NonTensorData([image, image], batch_size=[2]), 2)
    for one in found:
        assert torch.equal(one["pixels"], image["pixels"])
        assert np.array_equal(one["grid"], image["grid"])
        assert (one["scale"], type(one["scale"])) == (2, np.float32)


def test_arrays_of_objects_come_back(make_client: MakeClient) -> None:
    given = np.array(["a", None, {"b": 1}], dtype=object)
    assert list(again(make_client(), given, 3)) == ["a", None, {"b": 1}]


def test_a_field_may_get_rows_of_another_shape_later(make_client: MakeClient) -> None:
    client = make_client()
    first = client.put(TensorDict({"x": torch.ones(2, 4, 3)}, batch_size=[2]), partition_id="p")
    second = client.put(TensorDict({"x": torch.zeros(1, 2, 5)}, batch_size=[1]), partition_id="p")
    found = client.get_data(client.get_meta(["x"], None, "p", mode="force_fetch"))["x"]
    assert [row.shape for row in rows_of(found)] == [(4, 3), (4, 3), (2, 5)]
    assert first.global_indexes + second.global_indexes == [0, 1, 2]


def test_large_rows_are_spread_and_come_back(make_client: MakeClient) -> None:
    given = torch.arange(6 << 18, dtype=torch.int64).view(6, -1)
    found = again(make_client(), given, 6)
    assert all(torch.equal(one, other) for one, other in zip(rows_of(found), given, strict=True))


def test_what_comes_back_is_the_readers_own(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.put(TensorDict({"x": torch.ones(2, 3)}, batch_size=[2]), partition_id="p")
    client.get_data(meta)["x"][0, 0] = 7.0
    assert client.get_data(meta)["x"][0].tolist() == [1.0, 1.0, 1.0]


def test_rows_in_any_order_and_of_many_partitions(make_client: MakeClient) -> None:
    client = make_client()
    parts = [
        client.put(TensorDict({"x": torch.arange(4) + 10 * number}, batch_size=[4]), partition_id=f"p{number}")
        for number in range(3)
    ]
    both = type(parts[0]).concat(parts).select_samples([9, 0, 5, 2, 11])
    assert client.get_data(both)["x"].tolist() == [21, 0, 11, 2, 23]
    client.put(TensorDict({"y": torch.arange(5), "t": list("abcde")}, batch_size=[5]), metadata=both)
    found = client.get_data(both)
    assert found["y"].tolist() == [0, 1, 2, 3, 4]
    again = type(both)(both.global_indexes, both.partition_ids, {"y": {}, "x": {}, "t": {}})
    found = client.get_data(again)
    assert (found["x"].tolist(), found["y"].tolist()) == ([21, 0, 11, 2, 23], [0, 1, 2, 3, 4])
    assert list(found["t"]) == list("abcde")
