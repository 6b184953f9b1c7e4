"""Servers that die and come back, calls that come twice, memory that is full."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.errors import StorageKeyNotFoundError
from rljob_transfer_queue.samplers import GRPOGroupNSampler, RankAwareSampler
from rljob_workers.transfer_queue.errors import Mismatch, QueueError, StorageFull
from tests.compat.queue.conftest import MakeClient, stored_chunks
from tests.integration.transfer_queue.servers import Servers


def rows(count: int) -> TensorDict:
    return TensorDict({"x": torch.arange(count)}, batch_size=[count])


@pytest.fixture
def client(make_client: MakeClient) -> TransferQueueClient:
    return make_client()


def test_the_control_redis_is_killed_and_started_again(client: TransferQueueClient, servers: Servers) -> None:
    meta = client.put(rows(8), partition_id="p")
    meta.update_custom_meta([{"uid": row} for row in range(8)])
    client.set_custom_meta(meta)
    client.get_meta(["x"], 3, "p", task_name="t")
    servers.restart_control()
    rest = client.get_meta(["x"], 5, "p", task_name="t")
    assert client.get_data(rest)["x"].tolist() == [3, 4, 5, 6, 7]
    assert [each["uid"] for each in rest.custom_meta] == [3, 4, 5, 6, 7]
    servers.restart_control()
    more = client.put(rows(2), partition_id="p")
    assert not set(more.global_indexes) & set(meta.global_indexes)
    assert not client.check_consumption_status("t", "p")


def test_a_call_that_comes_after_a_later_one_is_refused(make_client: MakeClient) -> None:
    client = make_client()
    control = client.calls.session.control
    calls: list[tuple[str, tuple[Any, ...]]] = []
    call = control.call

    def received(name: str, *arguments: Any, what: str) -> Any:
        calls.append((name, arguments))
        return call(name, *arguments, what=what)

    control.call = received  # type: ignore[method-assign]
    client.put(rows(4), partition_id="p")
    client.clear_partition("p")
    client.put(rows(4), partition_id="p")
    control.call = call  # type: ignore[method-assign]
    for name in ("put", "clear_partition"):
        arguments = next(given for called, given in calls if called == name)
        with pytest.raises(Mismatch, match=r"call \d comes after call \d of the same client"):
            call(name, *arguments, what="comes late")
    assert client.get_meta([], None, "p", mode="force_fetch").size == 4


@pytest.mark.parametrize("then", ["nothing", "an empty claim", "the same batch", "a clear of nothing"])
def test_an_empty_claim_that_comes_late_takes_nothing(make_client: MakeClient, then: str) -> None:
    """Its client has its answer, and would not learn of rows that came since."""
    client, other = make_client(RankAwareSampler()), make_client()
    control = client.calls.session.control
    call, claims = control.call, []

    def received(name: str, *arguments: Any, what: str) -> Any:
        if name == "claim":
            claims.append(arguments)
        return call(name, *arguments, what=what)

    def claim(count: int, index: int) -> int:
        batch = {"dp_rank": 0, "batch_index": index}
        return client.get_meta(["x"], count, "p", task_name="t", sampling_config=batch).size

    other.put(rows(2), partition_id="p")
    assert claim(2, index=0) == 2
    control.call = received  # type: ignore[method-assign]
    assert claim(4, index=1) == 0
    control.call = call  # type: ignore[method-assign]
    match then:
        case "an empty claim":
            assert claim(4, index=2) == 0
        case "the same batch":
            assert claim(2, index=0) == 2
        case "a clear of nothing":
            client.clear_partition("nowhere")
    other.put(rows(4), partition_id="p")
    if then == "nothing":
        assert call("claim", *claims[0], what="comes late")[0] == b"N"
    else:
        with pytest.raises(Mismatch, match=r"call \d comes after call \d of the same client"):
            call("claim", *claims[0], what="comes late")
    assert claim(4, index=1) == 4


def test_a_claim_whose_rows_are_cleared_before_its_answer_is_repeated(make_client: MakeClient) -> None:
    client, other = make_client(), make_client()
    control = client.calls.session.control
    call = control.call
    client.put(rows(4), partition_id="p")

    def lost(name: str, *arguments: Any, what: str) -> Any:
        if name == "claim":
            call(name, *arguments, what=what)
            other.clear_partition("p")
        return call(name, *arguments, what=what)

    control.call = lost  # type: ignore[method-assign]
    assert client.get_meta(["x"], 4, "p", task_name="t").size == 0
    control.call = call  # type: ignore[method-assign]


def test_calls_that_come_twice_get_their_first_answer(make_client: MakeClient) -> None:
    client = make_client(GRPOGroupNSampler(2))
    control = client.calls.session.control
    call = control.call

    def twice(name: str, *arguments: Any, what: str) -> Any:
        """As if the first reply had been lost."""
        first = call(name, *arguments, what=what)
        if name in ("trash_names", "trash", "drop_trash"):
            return first
        again = call(name, *arguments, what=what)
        assert again == first or name in ("clear_partition", "configure"), name
        return again

    control.call = twice  # type: ignore[method-assign]
    first = client.put(rows(4), partition_id="p")
    second = client.put(rows(4), partition_id="p")
    assert first.global_indexes + second.global_indexes == list(range(8))
    claims = [client.get_meta(["x"], 4, "p", task_name="t").global_indexes for _ in range(2)]
    assert claims == [[0, 1, 2, 3], [4, 5, 6, 7]]
    client.kv_retrieve_meta(["a", "b"], "p", create=True)
    assert client.get_meta([], None, "p", mode="force_fetch").size == 10
    client.clear_samples(first)
    client.reset_consumption("p")
    assert client.get_meta(["x"], 4, "p", task_name="t").global_indexes == [4, 5, 6, 7]


def test_a_storage_unit_comes_back_empty(client: TransferQueueClient, servers: Servers) -> None:
    meta = client.put(rows(4), partition_id="p")
    for unit in servers.units:
        unit.kill()
        unit.start()
    with pytest.raises(StorageKeyNotFoundError, match=r"rows 0 \.\.\. of p are not there any more.* Put them again\."):
        client.get_data(meta)
    client.put(TensorDict({"x": torch.arange(4) + 10}, batch_size=[4]), metadata=meta)
    assert client.get_data(meta)["x"].tolist() == [10, 11, 12, 13]


def test_a_unit_that_is_away_leaves_its_rows_to_the_other(client: TransferQueueClient, servers: Servers) -> None:
    client.put(rows(2), partition_id="p")
    servers.units[1].kill()
    try:
        metas = [client.put(rows(2), partition_id="p") for _ in range(2)]
        assert all(client.get_data(meta)["x"].tolist() == [0, 1] for meta in metas)
    finally:
        servers.units[1].start()


def test_rows_are_cleared_also_while_a_unit_is_away(client: TransferQueueClient, servers: Servers) -> None:
    metas = [client.put(rows(2), partition_id=f"p{number}") for number in range(4)]
    servers.units[1].kill()
    try:
        client.put(rows(2), metadata=metas[0])
        for number in range(4):
            client.clear_partition(f"p{number}")
        with servers.units[0].admin() as admin:
            assert not list(admin.scan_iter("*:*:*"))
    finally:
        servers.units[1].start()
    # What lay on the unit waits in the trash for the next client that clears.
    client.clear_partition("nowhere")


def test_memory_that_is_full_is_named_and_comes_back(make_client: MakeClient, servers: Servers) -> None:
    client = make_client()
    big = TensorDict({"x": torch.ones(24, 1 << 18)}, batch_size=[24])
    parts = [f"p{number}" for number in range(8)]

    def fill() -> None:
        for part in parts:
            client.put(big, partition_id=part)

    with pytest.raises(StorageFull, match="has no room for"):
        fill()
    parts = client.get_partition_list()
    assert 0 < len(parts) < 8
    client.clear_partition(parts[0])
    assert client.put(big, partition_id="again").size == 24
    # What was stored of the put that failed is not part of the queue, and is swept.
    client.calls.session.sweep(0)
    expected = sum(client.get_meta(["x"], 1, part, mode="force_fetch").size for part in client.get_partition_list())
    assert expected == 24 * len(parts)


def test_a_put_that_is_refused_leaves_no_bytes(client: TransferQueueClient, servers: Servers) -> None:
    meta = client.put(rows(2), partition_id="p")
    client.clear_samples(meta)
    with pytest.raises(ValueError, match="some of these rows of partition p were cleared"):
        client.put(rows(2), metadata=meta)
    assert stored_chunks(servers) == 0


def test_servers_of_a_job_are_refused(servers: Servers, make_client: MakeClient) -> None:
    with servers.control.admin() as admin:
        admin.hset("q:meta", "epoch", 1)
    with pytest.raises(QueueError, match=r"this control Redis belongs to a job.* Use servers of your own"):
        make_client()
    with servers.control.admin() as admin:
        admin.delete("q:meta")
