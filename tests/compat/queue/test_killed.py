"""Clients that are killed where it hurts most: what they did not finish was never there, and what they did stays."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.compat.queue.conftest import MakeClient, stored_chunks
from tests.integration.preloaded.client import fork_program
from tests.integration.transfer_queue.servers import Servers

ROOT = Path(__file__).parents[3]
PUT = """
meta = client.put(TensorDict({"x": torch.arange(4)}, batch_size=[4]), partition_id="p")
"""
CLAIM = """
client.get_meta(["x"], 2, "p", task_name="t")
"""
_PROGRAM = """
import sys
import torch
from tensordict import TensorDict
import rljob_transfer_queue as tq

client = tq.get_client()
{work}
raise SystemExit("it was not killed")
"""


def kill_at(place: str, work: str, servers: Servers, folder: Path) -> None:
    endpoints = folder / "endpoints.json"
    endpoints.write_text(servers.endpoints.model_dump_json())
    environ = {
        "RLJOB_ENDPOINTS": str(endpoints),
        "RLJOB_FAILPOINTS": f"{place}=1",
        "RLJOB_FAILPOINTS_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    program = folder / "program.py"
    program.write_text(_PROGRAM.format(work=work))
    with (folder / "output.txt").open("wb") as output:
        killed = fork_program(str(program), [], environment=environ, output=output)
    assert killed.wait(120) == -signal.SIGKILL, (folder / "output.txt").read_text()
    assert (folder / f"{place}.fired").exists()


def test_killed_between_bytes_and_commit(make_client: MakeClient, servers: Servers, tmp_path: Path) -> None:
    client = make_client()
    client.put(TensorDict({"x": torch.arange(2)}, batch_size=[2]), partition_id="other")
    kill_at("queue.between_bytes_and_commit", PUT, servers, tmp_path)
    assert client.get_partition_list() == ["other"]
    assert stored_chunks(servers) == 2
    session = client.calls.session
    # Bytes that are young may belong to a put that is under way.
    assert session.sweep(3600) == 0
    assert session.sweep(0) == 1
    assert stored_chunks(servers) == 1


def test_killed_before_the_answer_to_a_put(make_client: MakeClient, servers: Servers, tmp_path: Path) -> None:
    client = make_client()
    kill_at("queue.after_script", PUT, servers, tmp_path)
    assert client.calls.session.sweep(0) == 0
    assert client.get_data(client.get_meta(["x"], 4, "p", task_name="t"))["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["reset", "next"])
def test_killed_with_rows_in_hand(make_client: MakeClient, servers: Servers, tmp_path: Path, how: str) -> None:
    """Its task has had them: others get the next ones, and all of them after a reset."""
    client = make_client()
    client.put(TensorDict({"x": torch.arange(4)}, batch_size=[4]), partition_id="p")
    kill_at("queue.after_script", CLAIM, servers, tmp_path)
    if how == "reset":
        client.reset_consumption("p", "t")
    expected = [0, 1] if how == "reset" else [2, 3]
    assert client.get_data(client.get_meta(["x"], 2, "p", task_name="t"))["x"].tolist() == expected


def test_bytes_that_were_swept_while_their_client_slept_are_put_again(
    make_client: MakeClient, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = make_client(), make_client()
    control, commits = client.calls.session.control, 0
    change = control.change

    def sleep_before(name: str, *arguments: Any, what: str) -> list[Any]:
        nonlocal commits
        if name == "put":
            commits += 1
            if commits == 1:
                assert other.calls.session.sweep(0) > 2
                assert stored_chunks(servers) == 0
        return change(name, *arguments, what=what)

    monkeypatch.setattr(control, "change", sleep_before)
    big = torch.arange(4 << 20, dtype=torch.int32).reshape(8, -1)
    data = TensorDict({"x": torch.arange(8), "y": big}, batch_size=[8])
    for expected in (2, 3):
        meta = client.put(data.select("x") if expected == 3 else data, partition_id="p")
        assert commits == expected
    found = client.get_data(client.get_meta(["x", "y"], 8, "p", task_name="t"))
    assert found["x"].tolist() == list(range(8))
    assert torch.equal(torch.stack(list(found["y"])), big)
    assert client.get_data(meta)["x"].tolist() == list(range(8))
    assert other.calls.session.sweep(0) == 0


def test_bytes_that_are_committed_while_a_sweep_looks_at_them_stay(
    make_client: MakeClient, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = make_client(), make_client()
    sweeper, putter = other.calls.session, client.calls.session.control
    call, change = sweeper.control.call, putter.change
    waiting: list[Callable[[], Any]] = []

    def commit_before(name: str, *arguments: Any, what: str) -> Any:
        if name == "condemn" and waiting:
            waiting.pop()()
        return call(name, *arguments, what=what)

    def sweep_before(name: str, *arguments: Any, what: str) -> list[Any]:
        if name != "put":
            return change(name, *arguments, what=what)
        reply: list[list[Any]] = []
        waiting.append(lambda: reply.append(change(name, *arguments, what=what)))
        assert sweeper.sweep(0) == 0
        return reply[0]

    monkeypatch.setattr(sweeper.control, "call", commit_before)
    monkeypatch.setattr(putter, "change", sweep_before)
    meta = client.put(TensorDict({"x": torch.arange(4)}, batch_size=[4]), partition_id="p")
    assert client.get_data(meta)["x"].tolist() == [0, 1, 2, 3]
    assert stored_chunks(servers) == 1
