"""What is cleared is gone, and so are its bytes; what is not cleared stays."""

from __future__ import annotations

import time

import torch
from tensordict import TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.metadata import BatchMeta
from tests.compat.queue.conftest import MakeClient, control_keys, stored_chunks
from tests.integration.transfer_queue.servers import Servers


def put(client: TransferQueueClient, count: int, partition: str = "p") -> BatchMeta:
    data = TensorDict({"x": torch.arange(count), "text": [str(row) for row in range(count)]}, batch_size=[count])
    return client.put(data, partition_id=partition)


def used_memory(servers: Servers) -> int:
    total = 0
    for unit in servers.units:
        with unit.admin() as admin:
            total += int(admin.info("memory")["used_memory"])
    return total


def test_clearing_a_partition_gives_memory_back(make_client: MakeClient, servers: Servers) -> None:
    client = make_client()
    client.put(TensorDict({"x": torch.ones(1, 1)}, batch_size=[1]), partition_id="warm")
    client.clear_partition("warm")
    before, deadline = used_memory(servers), time.monotonic() + 240
    for _ in range(3):
        client.put(TensorDict({"x": torch.ones(16, 1 << 18)}, batch_size=[16]), partition_id="p")
        assert used_memory(servers) > before + (16 << 20)
        client.clear_partition("p")
        assert stored_chunks(servers) == 0
        # The server frees in a thread of its own.
        while used_memory(servers) > before + (1 << 20):
            assert time.monotonic() < deadline, f"{used_memory(servers)} bytes are used, {before} before"
            time.sleep(0.01)
    assert control_keys(servers) == {"tq:numbers", "tq:config", "tq:units"}


def test_a_cleared_partition_is_another_one_when_it_comes_back(make_client: MakeClient) -> None:
    client = make_client()
    old = put(client, 2)
    client.get_meta(["x"], 2, "p", task_name="t")
    client.clear_partition("p")
    assert (client.get_partition_list(), client.get_consumption_status("t", "p")) == ([], (None, None))
    new = put(client, 2)
    assert not set(old.global_indexes) & set(new.global_indexes)
    assert client.get_meta(["x"], 2, "p", task_name="t").global_indexes == new.global_indexes
    client.clear_samples(old)
    assert client.get_data(new)["x"].tolist() == [0, 1]


def test_clearing_what_is_not_there_does_nothing(make_client: MakeClient) -> None:
    client = make_client()
    client.clear_partition("nowhere")
    meta = put(client, 2)
    client.clear_samples(meta)
    client.clear_samples(meta)
    assert client.get_partition_list() == ["p"]
    assert client.get_meta([], None, "p", mode="force_fetch").size == 0


def test_cleared_rows_are_claimed_by_no_one(make_client: MakeClient) -> None:
    client = make_client()
    meta = put(client, 6)
    client.get_meta(["x"], 1, "p", task_name="t")
    client.clear_samples(meta.select_samples([4, 1, 2]))
    assert client.get_meta(["x"], 2, "p", task_name="t").global_indexes == [3, 5]
    assert client.get_meta(["x"], 3, "p", task_name="late").global_indexes == [0, 3, 5]
    assert not client.get_meta(["x"], 1, "p", task_name="t").size
    assert client.check_consumption_status("t", "p")


def test_bytes_go_with_the_last_row_that_needs_them(make_client: MakeClient, servers: Servers) -> None:
    client = make_client()
    meta = put(client, 4)
    # Two fields of one put: a chunk each.
    assert stored_chunks(servers) == 2
    client.clear_samples(meta.select_samples([0, 3]))
    assert stored_chunks(servers) == 2
    assert client.get_data(meta.select_samples([1, 2]))["x"].tolist() == [1, 2]
    client.put(TensorDict({"x": torch.tensor([7, 8])}, batch_size=[2]), metadata=meta.select_samples([2, 1]))
    assert stored_chunks(servers) == 2
    client.clear_samples(meta.select_samples([1]))
    assert client.get_data(meta.select_samples([2]))["x"].tolist() == [7]
    client.clear_samples(meta.select_samples([2]))
    assert stored_chunks(servers) == 0


def test_a_client_that_died_while_it_cleared_leaves_the_rest_to_the_next(
    make_client: MakeClient, servers: Servers
) -> None:
    client = make_client()
    put(client, 4)
    put(client, 4, "other")
    # As far as the one that died came: the rows are gone, their bytes are not.
    client.calls.session.control.change("clear_partition", "p", what="clears")
    assert client.get_partition_list() == ["other"]
    assert stored_chunks(servers) == 4
    client.clear_partition("other")
    assert stored_chunks(servers) == 0
