"""Who gets which rows: once per task, whole groups, the same question the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.samplers import GRPOGroupNSampler, RankAwareSampler, SeqlenBalancedSampler
from tests.compat.queue.conftest import MakeClient
from tests.integration.transfer_queue.servers import Servers

ROOT = Path(__file__).parents[3]
CONSUMER = """
import json, sys, time
import rljob_transfer_queue as tq

tq.init()
client, seen, deadline = tq.get_client(), [], time.monotonic() + 240
while not client.check_consumption_status("train", "p"):
    meta = client.get_meta(["x"], 8, "p", task_name="train")
    if meta.size:
        seen += client.get_data(meta)["x"].tolist()
    # Nobody has everything before the other has begun.
    tq.kv_put(sys.argv[1], "begun", tag={"rows": len(seen)})
    while len(tq.kv_list("begun")["begun"]) < 2:
        assert time.monotonic() < deadline, "the other consumer did not begin"
        time.sleep(0.01)
print(json.dumps(seen))
tq.close()
"""


def numbers(count: int, first: int = 0) -> TensorDict:
    return TensorDict({"x": torch.arange(first, first + count)}, batch_size=[count])


def field(name: str, count: int) -> TensorDict:
    return TensorDict({name: torch.zeros(count, 1)}, batch_size=[count])


def test_two_processes_consume_every_row_once(make_client: MakeClient, servers: Servers, tmp_path: Path) -> None:
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text(servers.endpoints.model_dump_json())
    make_client().put(numbers(1024), partition_id="p")
    environ = {**os.environ, "RLJOB_ENDPOINTS": str(endpoints), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CONSUMER, name],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    shares = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert Counter(shares[0] + shares[1]) == Counter(range(1024))
    assert all(shares)


def test_a_task_that_comes_late_sees_what_is_there(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.put(numbers(700), partition_id="p")
    client.put(field("y", 300), metadata=meta[:300])
    late = client.get_meta(["x", "y"], 300, "p", task_name="late")
    assert late.global_indexes == meta.global_indexes[:300]
    assert not client.get_meta(["x", "y"], 1, "p", task_name="late").size
    client.put(field("y", 2), metadata=meta.select_samples([650, 400]))
    assert client.get_meta(["y", "x"], 2, "p", task_name="late").global_indexes == [400, 650]


def test_a_task_has_a_row_once_whatever_fields_it_asks_for(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.put(numbers(4), partition_id="p")
    assert not client.get_meta(["x", "y"], 1, "p", task_name="t").size
    assert client.get_meta(["x"], 2, "p", task_name="t").global_indexes == [0, 1]
    client.put(field("y", 4), metadata=meta)
    assert client.get_meta(["x", "y"], 2, "p", task_name="t").global_indexes == [2, 3]
    assert client.check_consumption_status("t", "p")
    assert not client.check_consumption_status("other", "p")


def test_a_field_that_is_put_again_replaces_and_is_not_consumed_again(
    make_client: MakeClient, servers: Servers
) -> None:
    client = make_client()
    old = client.put(numbers(4), partition_id="p")
    held = client.get_meta(["x"], 4, "p", task_name="t")
    client.put(numbers(4, first=50), metadata=old.copy())
    assert not client.get_meta(["x"], 1, "p", task_name="t").size
    # The batch in hand still says where the old bytes were.
    assert client.get_data(held)["x"].tolist() == [50, 51, 52, 53]


def test_a_batch_in_hand_sees_what_others_replaced_and_cleared(make_client: MakeClient) -> None:
    client, other = make_client(), make_client()
    held = client.put(numbers(4), partition_id="p")
    assert client.get_data(held)["x"].tolist() == [0, 1, 2, 3]
    # The old bytes of the other rows lie in the same chunk and stay.
    other.put(numbers(1, first=50), metadata=held[1])
    assert client.get_data(held)["x"].tolist() == [0, 50, 2, 3]
    other.clear_samples(held[2])
    with pytest.raises(ValueError, match="some of these rows of partition p were cleared"):
        client.get_data(held)
    assert client.get_data(held.select_samples([3, 0]))["x"].tolist() == [3, 0]


def test_force_fetch_gives_every_row_whatever_it_has(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.put(numbers(3), partition_id="p")
    client.put(field("y", 1), metadata=meta[1])
    client.get_meta(["x"], 3, "p", task_name="t")
    found = client.get_meta(["x", "y", "never"], 1, "p", mode="force_fetch", task_name="t")
    assert found.global_indexes == [0, 1, 2]
    assert found.field_names == ["x", "y"]
    assert found.production_status.tolist() == [0, 1, 0]
    assert client.get_meta(["x"], 1, "nowhere", mode="force_fetch").size == 0


def test_reset_consumption_gives_the_rows_again(make_client: MakeClient) -> None:
    client = make_client()
    client.put(numbers(4), partition_id="p")
    for task in ("a", "b"):
        client.get_meta(["x"], 4, "p", task_name=task)
    assert client.reset_consumption("p", "a")
    assert (client.check_consumption_status("a", "p"), client.check_consumption_status("b", "p")) == (False, True)
    assert client.get_meta(["x"], 4, "p", task_name="a").global_indexes == [0, 1, 2, 3]
    client.reset_consumption("p")
    assert client.get_meta(["x"], 4, "p", task_name="b").size == 4


def test_production_status_reports_which_rows_have_what(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.get_meta(["x", "y"], 3, "p", mode="insert")
    assert not meta.is_ready
    assert client.get_production_status(["x"], "p") == (None, None)
    client.put(TensorDict({"x": torch.ones(2, 1), "y": torch.ones(2, 1)}, batch_size=[2]), metadata=meta[:2])
    client.put(field("x", 1), metadata=meta[2])
    indexes, status = client.get_production_status(["x", "y"], "p")
    assert indexes is not None
    assert status is not None
    assert (indexes.tolist(), status.tolist()) == (meta.global_indexes, [[1, 1], [1, 1], [1, 0]])
    assert (client.check_production_status(["x"], "p"), client.check_production_status(["x", "y"], "p")) == (
        True,
        False,
    )


def test_expected_rows_count_as_not_consumed(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_PRE_ALLOC_SAMPLE_NUM", "4")
    client = make_client()
    first = client.put(numbers(2), partition_id="p")
    client.get_meta(["x"], 2, "p", task_name="t")
    assert not client.check_consumption_status("t", "p")
    second = client.put(numbers(2), partition_id="p")
    assert first.global_indexes + second.global_indexes == [0, 1, 2, 3]
    client.get_meta(["x"], 2, "p", task_name="t")
    assert client.check_consumption_status("t", "p")


def test_groups_are_taken_whole_by_the_order_in_which_they_were_put(make_client: MakeClient) -> None:
    client = make_client(GRPOGroupNSampler(3))
    meta = client.get_meta(["x"], 9, "p", mode="insert")
    client.put(numbers(7), metadata=meta.select_samples([1, 2, 3, 4, 5, 7, 8]))
    # Rows 1 to 3 are three in a row, but of two groups.
    assert client.get_meta(["x"], 3, "p", task_name="t").global_indexes == [3, 4, 5]
    assert not client.get_meta(["x"], 3, "p", task_name="t").size
    client.put(numbers(2), metadata=meta.select_samples([6, 0]))
    assert client.get_meta(["x"], 6, "p", task_name="t").global_indexes == [0, 1, 2, 6, 7, 8]


def test_the_same_rank_and_batch_get_the_same_rows(make_client: MakeClient) -> None:
    clients = [make_client(RankAwareSampler()) for _ in range(2)]
    clients[0].put(numbers(8), partition_id="p")

    def ask(client: int, rank: int, index: int) -> list[int]:
        config = {"dp_rank": rank, "batch_index": index}
        found = clients[client].get_meta(["x"], 2, "p", task_name="t", sampling_config=config)
        return found.global_indexes

    assert [ask(0, 0, 0), ask(1, 0, 0), ask(0, 1, 0), ask(0, 0, 1), ask(1, 1, 0)] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [4, 5],
        [2, 3],
    ]


def test_balanced_ranks_get_whole_groups_of_near_length(make_client: MakeClient) -> None:
    client = make_client(SeqlenBalancedSampler(2, dp_size=2))
    meta = client.put(numbers(8), partition_id="p")
    meta.update_custom_meta([{"total_lengths": length} for length in (9, 9, 1, 1, 5, 5, 4, 4)])
    client.set_custom_meta(meta)
    shares = [
        client.get_meta(["x"], 4, "p", task_name="t", sampling_config={"dp_rank": rank, "batch_index": 0})
        for rank in (1, 0)
    ]
    assert sorted(shares[0].global_indexes + shares[1].global_indexes) == list(range(8))
    assert [sum(each["total_lengths"] for each in share.custom_meta) for share in shares] == [18, 20]


def test_waits_for_rows_that_come(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "60")
    waiting, putting = make_client(polling=False), make_client()
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(waiting.get_meta(["x"], 4, "p", task_name="t").global_indexes)
    )
    thread.start()
    for _ in range(2):
        putting.put(numbers(2), partition_id="p")
    thread.join(240)
    assert found == [[0, 1, 2, 3]]


def test_custom_meta_stays_with_its_row(make_client: MakeClient) -> None:
    client = make_client()
    meta = client.put(numbers(3), partition_id="p")
    meta.update_custom_meta([{"uid": "a"}, {}, {"uid": "c", "score": float("inf")}])
    client.set_custom_meta(meta)
    found = client.get_meta(["x"], 3, "p", task_name="t")
    assert found.custom_meta == [{"uid": "a"}, {}, {"uid": "c", "score": float("inf")}]
    found.clear_custom_meta()
    client.set_custom_meta(found)
    assert client.get_meta([], None, "p", mode="force_fetch").custom_meta == [{}, {}, {}]


def test_batches_of_partitions_beyond_a_page(make_client: MakeClient) -> None:
    client = make_client()
    for first in range(0, 900, 300):
        client.put(numbers(300, first), partition_id="p")
        client.put(numbers(300, 5000), partition_id="other")
    found = client.get_meta(["x"], 900, "p", task_name="t")
    assert client.get_data(found)["x"].tolist() == list(range(900))
    assert len(set(found.global_indexes)) == 900
    assert isinstance(found, BatchMeta)


def test_groups_of_any_size_are_dealt(make_client: MakeClient) -> None:
    """More rows than one command of a script takes."""
    size = 9000
    client = make_client(SeqlenBalancedSampler(size, dp_size=2))
    meta = client.put(numbers(4 * size), partition_id="p")
    lengths = [3] * size + [1] * size + [1] * size + [3] * size
    meta.update_custom_meta([{"total_lengths": length} for length in lengths])
    client.set_custom_meta(meta)
    shares = [
        client.get_meta(["x"], 2 * size, "p", task_name="t", sampling_config={"dp_rank": rank, "batch_index": 0})
        for rank in range(2)
    ]
    assert [sum(each["total_lengths"] for each in share.custom_meta) for share in shares] == [4 * size] * 2
    assert sorted(row for share in shares for row in share.global_indexes) == list(range(4 * size))
    assert client.check_consumption_status("t", "p")
