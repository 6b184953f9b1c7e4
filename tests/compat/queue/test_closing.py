"""A client that is closed, also in the midst of its calls, and one that was forked."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rljob_transfer_queue as tq
from rljob_transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import ControlUnreachable
from tests.compat.queue.conftest import MakeClient
from tests.integration.transfer_queue.servers import Servers

CLOSED = r"client client-0 is closed\. Make a new one, or call init again\."
FORKED = r"client client-0 belongs to process \d+, not to its fork \d+\. Make a client there\."


def rows(count: int) -> TensorDict:
    return TensorDict({"x": torch.arange(count)}, batch_size=[count])


def test_calls_of_a_closed_client_are_refused(make_client: MakeClient) -> None:
    client, other = make_client(), make_client()
    meta = client.put(rows(2), partition_id="p")
    client.close()
    client.close()
    calls: list[Callable[[], Any]] = [
        lambda: client.put(rows(2), partition_id="p"),
        lambda: client.put(rows(2), metadata=meta),
        lambda: client.get_meta(["x"], 1, "p", task_name="t"),
        lambda: client.get_data(meta),
        lambda: client.clear_partition("p"),
        lambda: asyncio.run(client.async_put(rows(2), partition_id="p")),
        lambda: asyncio.run(client.async_get_meta(["x"], 1, "p", task_name="t")),
        lambda: asyncio.run(client.async_get_data(meta)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=CLOSED):
            call()
    assert other.get_meta(["x"], 2, "p", task_name="t").size == 2


def test_closing_ends_claims_that_wait(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQ_CONTROLLER_GET_METADATA_TIMEOUT", "3600")
    client, other = make_client(polling=False), make_client(polling=False)
    client.put(rows(2), partition_id="p")
    ended: list[str] = []

    def wait() -> None:
        try:
            client.get_meta(["x"], 4, "p", task_name="t")
        except RuntimeError as error:
            ended.append(str(error))

    async def waits_and_closes() -> None:
        waiting = [asyncio.create_task(client.async_get_meta(["x"], 4, "p", task_name="t")) for _ in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(client.close)
        for one in waiting:
            with pytest.raises(RuntimeError, match=CLOSED):
                await one

    thread = threading.Thread(target=wait)
    thread.start()
    asyncio.run(waits_and_closes())
    thread.join(240)
    assert [" is closed. " in one for one in ended] == [True]
    assert other.get_meta(["x"], 2, "p", task_name="t").size == 2


def test_closing_lets_a_put_end(make_client: MakeClient) -> None:
    """Closed between its bytes and its commit."""
    client, other = make_client(), make_client()
    stored, closing = threading.Event(), threading.Event()
    control = client.calls.session.control
    change = control.change

    def slow(name: str, *arguments: Any, what: str) -> list[Any]:
        stored.set()
        assert closing.wait(240)
        return change(name, *arguments, what=what)

    control.change = slow  # type: ignore[method-assign]
    put = threading.Thread(target=lambda: client.put(rows(2), partition_id="p"))
    put.start()
    assert stored.wait(240)
    close = threading.Thread(target=client.close)
    close.start()
    while not control._is_closed:
        closing.wait(0.001)
    closing.set()
    for thread in (put, close):
        thread.join(240)
        assert not thread.is_alive()
    assert other.get_data(other.get_meta(["x"], 2, "p", task_name="t"))["x"].tolist() == [0, 1]


def test_closing_ends_a_call_that_no_server_answers(
    make_client: MakeClient, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()
    client.put(rows(2), partition_id="p")
    monkeypatch.setattr("rljob_transfer_queue.control_plane.PATIENCE_SECONDS", 0.5)
    servers.control.kill()
    try:
        found: list[Exception] = []

        def ask() -> None:
            try:
                client.get_partition_list()
            except (ControlUnreachable, RuntimeError) as error:
                found.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        client.close()
        for thread in threads:
            thread.join(240)
        assert len(found) == len(threads)
    finally:
        servers.control.start()
    make_client()


def test_closing_the_module_ends_its_client_also_without_servers(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_transfer_queue.control_plane.PATIENCE_SECONDS", 0.5)
    tq.init({"control_redis": servers.control.url, "storage_units": [unit.url for unit in servers.units]})
    client = tq.get_client()
    servers.control.kill()
    try:
        with pytest.raises(ControlUnreachable, match="reads the queue's settings"):
            tq.close()
    finally:
        servers.control.start()
    with pytest.raises(RuntimeError, match="is closed"):
        client.get_partition_list()
    tq.close()


def _use(client: TransferQueueClient, found: Any) -> None:
    try:
        client.put(rows(2), partition_id="p")
    except RuntimeError as error:
        found.put(str(error))
    client.close()


def test_a_fork_of_a_client_is_refused(make_client: MakeClient) -> None:
    """It would speak on the same connections, and give its calls the same numbers."""
    client = make_client()
    client.put(rows(2), partition_id="p")
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    child = context.Process(target=_use, args=(client, found))
    child.start()
    sentence = found.get(timeout=60)
    child.join(240)
    assert child.exitcode == 0
    with pytest.raises(RuntimeError, match=FORKED):
        raise RuntimeError(sentence)
    assert client.get_data(client.get_meta(["x"], 2, "p", task_name="t"))["x"].tolist() == [0, 1]
