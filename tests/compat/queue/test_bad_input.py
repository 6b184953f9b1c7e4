"""Every mistake gets one sentence that names what was given and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.samplers import GRPOGroupNSampler, RankAwareSampler
from tests.compat.queue.conftest import MakeClient

Call = Callable[[TransferQueueClient], Any]


def rows(**fields: Any) -> TensorDict:
    return TensorDict(fields, batch_size=[2])


def meta(client: TransferQueueClient) -> BatchMeta:
    return client.put(rows(x=torch.zeros(2)), partition_id="p")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda c: c.put(rows(x=torch.zeros(2))), "neither metadata nor partition_id is given"),
        (lambda c: c.put({"x": torch.zeros(2)}, partition_id="p"), "dict is no TensorDict with one batch dimension"),
        (lambda c: c.put(TensorDict({}, batch_size=[2]), partition_id="p"), "2 rows of 0 fields are nothing to put"),
        (lambda c: c.put(rows(**{"a|b": torch.zeros(2)}), partition_id="p"), "'a|b' is no name of a field"),
        (lambda c: c.put(rows(x=rows(y=torch.zeros(2))), partition_id="p"), "x is a TensorDict inside the TensorDict"),
        (lambda c: c.put(rows(x=torch.zeros(2)), partition_id="p", data_parser=print), "data_parser is not there"),
        (lambda c: c.put(rows(x=torch.zeros(2)), metadata=meta(c)[0]), "the data has 2 rows, metadata has 1"),
        (
            lambda c: c.put(rows(x=torch.zeros(2)), metadata=meta(c).select_samples([1, 1])),
            "metadata names a row twice",
        ),
        (lambda c: c.put(rows(x=torch.zeros(2)), metadata=BatchMeta([8, 9], ["no"] * 2)), "there is no partition no"),
        (lambda c: c.get_meta(["x"], 0, "p", task_name="t"), "batch_size is 0"),
        (lambda c: c.get_meta(["x"], 1, "p"), "task_name None and data_fields ['x'] must both be given"),
        (lambda c: c.get_meta(["x"], 1, "p", mode="steal"), "mode is 'steal'"),
        (lambda c: c.get_meta(["x"], 1, "p", task_name="t", sampling_config={"rank": 1}), "sampling_config has 'rank'"),
        (lambda c: c.get_data(BatchMeta([0], ["p"], {"x": {}})), "there is no partition p"),
        (lambda c: c.get_data(meta(c).union(c.get_meta(["y"], 2, "p", mode="insert"))), "global_indexes are"),
        (lambda c: c.kv_retrieve_meta([], "p"), "the list is empty"),
        (lambda c: c.initialize_storage_manager("SimpleStorage", {}), "SimpleStorage cannot be chosen here"),
    ],
)
def test_a_mistake_gets_a_sentence(make_client: MakeClient, call: Call, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call(make_client())


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "x: a value of type object cannot be carried"),
        ({1: "a"}, "x: a dict has the key 1, which is no text"),
        ([{"deep": {3}}], "x: a value of type set cannot be carried"),
    ],
)
def test_what_would_need_pickle_is_refused(make_client: MakeClient, value: object, sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        make_client().put(rows(x=NonTensorStack(value, value)), partition_id="p")
    assert sentence in str(caught.value)


def test_a_row_without_the_field_is_named(make_client: MakeClient) -> None:
    client = make_client()
    both = meta(client)
    client.put(TensorDict({"y": torch.zeros(1)}, batch_size=[1]), metadata=both[0])
    with pytest.raises(ValueError, match=r"row 1 has no y yet\. Use select_fields or select_samples first\."):
        client.get_data(client.get_meta(["x", "y"], 2, "p", mode="force_fetch"))


def test_not_enough_rows_are_named_after_a_while(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "0.05")
    client = make_client(polling=False)
    meta(client)
    with pytest.raises(TimeoutError, match=r"t waited 0\.05 s for 3 rows of p with x; there are 2\."):
        client.get_meta(["x"], 3, "p", task_name="t")


def test_a_batch_of_parts_of_groups_is_refused(make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="batch_size 4 is no multiple of n_samples_per_prompt 3"):
        make_client(GRPOGroupNSampler(3)).get_meta(["x"], 4, "p", task_name="t")


def test_a_rank_is_needed(make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="dp_rank is None, but RankAwareSampler needs a number from 0 on"):
        make_client(RankAwareSampler()).get_meta(["x"], 4, "p", task_name="t")
