"""The module as users have it: `init`, `get_client`, keys, the asynchronous twins, datasets."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rljob_transfer_queue as tq
from tests.compat.queue.conftest import control_keys, stored_chunks
from tests.integration.transfer_queue.servers import Servers


@pytest.fixture
def config(servers: Servers) -> Iterator[dict[str, Any]]:
    yield {
        "control_redis": servers.control.url,
        "storage_units": [unit.url for unit in servers.units],
        "controller": {"sampler": "RankAwareSampler", "polling_mode": True},
        "backend": {"storage_backend": "SimpleStorage"},
    }
    tq.close()
    assert stored_chunks(servers) == 0
    assert control_keys(servers) <= {"tq:numbers", "tq:units"}


def rows(count: int) -> TensorDict:
    return TensorDict({"x": torch.arange(count).view(count, 1)}, batch_size=[count])


def test_the_first_settings_count_for_all(config: dict[str, Any]) -> None:
    tq.init(config)
    with pytest.raises(ValueError, match="set up with sampler RankAwareSampler, polling_mode True"):
        tq.init({**config, "controller": {"sampler": "SequentialSampler"}})
    tq.init({key: value for key, value in config.items() if key != "controller"})
    assert tq.get_client().get_partition_list() == []
    tq.init(config)


def test_closing_the_owner_clears_and_closing_others_does_not(config: dict[str, Any]) -> None:
    other = tq.TransferQueueClient("other", tq.Servers(config["control_redis"], tuple(config["storage_units"])))
    tq.init(config)
    tq.get_client().put(rows(2), partition_id="p")
    assert other.get_partition_list() == ["p"]
    tq.close()
    tq.close()
    assert other.get_partition_list() == []
    other.close()


def test_rows_by_key(config: dict[str, Any]) -> None:
    tq.init(config)
    first = tq.kv_put("a", "p", {"x": torch.tensor([1, 2]), "note": "hi"}, tag={"v": 1})
    assert (first.fields, first.tags) == (["note", "x"], [{"v": 1}])
    tq.kv_batch_put(["b", "a"], "p", TensorDict({"x": torch.tensor([[5], [6]])}, batch_size=[2]), tags=[{"v": 2}, {}])
    assert tq.kv_list() == {"p": {"a": {"v": 1}, "b": {"v": 2}}}
    found = tq.kv_batch_get(["b", "a"], "p")
    assert ([row.tolist() for row in found["x"].unbind()], list(found.keys())) == ([[5], [6]], ["x"])
    assert list(tq.kv_batch_get("a", "p", select_fields="note")["note"]) == ["hi"]
    with pytest.raises(ValueError, match=r"note is not there for all of the keys; they share \['x'\]"):
        tq.kv_batch_get(["a", "b"], "p", select_fields=["note"])
    tq.kv_clear(["a", "never"], "p")
    assert tq.kv_list("p") == {"p": {"b": {"v": 2}}}
    meta = tq.get_client().kv_retrieve_meta("b", "p")
    assert tq.get_client().kv_retrieve_keys(meta.global_indexes, "p") == ["b"]


def test_every_call_has_an_asynchronous_twin(config: dict[str, Any]) -> None:
    async def work() -> list[int]:
        client = tq.get_client()
        meta = await client.async_put(rows(4), partition_id="p")
        await client.async_set_custom_meta(meta)
        claim = {"task_name": "t", "sampling_config": {"dp_rank": 0, "batch_index": 0}}
        taken, other = await asyncio.gather(
            client.async_get_meta(["x"], 3, "p", **claim), client.async_get_partition_list()
        )
        assert other == ["p"]
        data = await client.async_get_data(taken)
        assert not await client.async_check_consumption_status("t", "p")
        assert await client.async_check_production_status(["x"], "p")
        assert await client.async_reset_consumption("p")
        assert (await client.async_get_consumption_status("t", "p"))[1].sum() == 0  # type: ignore[union-attr]
        assert (await client.async_get_production_status(["x"], "p"))[1].sum() == 4  # type: ignore[union-attr]
        await client.async_clear_samples(taken)
        await tq.async_kv_put("k", "q", {"x": torch.tensor([1])})
        assert await tq.async_kv_list("q") == {"q": {"k": {}}}
        assert (await tq.async_kv_batch_get("k", "q"))["x"][0].tolist() == [1]
        await tq.async_kv_clear("k", "q")
        await client.async_clear_partition("p")
        return [int(row) for row in data["x"].unbind()]

    tq.init(config)
    assert asyncio.run(work()) == [0, 1, 2]


def test_calls_that_wait_hold_up_no_other(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "60")

    async def work() -> list[list[int]]:
        client = tq.get_client()
        waiting = [asyncio.create_task(client.async_get_meta(["x"], 4, "p", task_name=f"t{n}")) for n in range(12)]
        await asyncio.sleep(0.1)
        await client.async_put(rows(4), partition_id="p")
        return [(await one).global_indexes for one in waiting]

    tq.init({**config, "controller": {"sampler": "SequentialSampler", "polling_mode": False}})
    assert asyncio.run(work()) == [[0, 1, 2, 3]] * 12


def test_a_dataset_gives_micro_batches_and_the_same_again(config: dict[str, Any]) -> None:
    tq.init(config)
    for partition in ("p0", "p1"):
        tq.get_client().put(rows(8), partition_id=partition)
    dataset = tq.StreamingDataset(config, 4, 3, ["x"], "p0", "t", 0, should_check_consumption_status=True)
    loader = tq.StreamingDataLoader(dataset)
    passes = []
    for _ in range(2):
        passes.append([[int(row) for row in data["x"].unbind()] for data, _ in loader])
        loader.reset()
    assert passes == [[[0, 1, 2], [3], [4, 5, 6], [7]]] * 2
    loader.step("p1")
    assert [meta.partition_ids[0] for _, meta in loader] == ["p1"] * 4
    assert len(loader.get_buffer()) == 2


def _put_in_child(found: Any) -> None:
    meta = tq.get_client().put(rows(2), partition_id="child")
    found.put(meta)


def test_a_forked_child_has_a_client_of_its_own(config: dict[str, Any]) -> None:
    tq.init(config)
    mine = tq.get_client()
    mine.put(rows(2), partition_id="p")
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    child = context.Process(target=_put_in_child, args=(found,))
    child.start()
    meta = found.get(timeout=60)
    child.join(240)
    assert child.exitcode == 0
    # A batch goes from process to process with all that it knows.
    assert [int(row) for row in mine.get_data(meta)["x"].unbind()] == [0, 1]


def test_what_is_not_there_is_refused(config: dict[str, Any]) -> None:
    for call in (tq.save_checkpoint, tq.load_checkpoint):
        with pytest.raises(NotImplementedError, match="are not saved to files"):
            call("folder")
    tq.get_metrics_endpoint()
