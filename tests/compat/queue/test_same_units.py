"""Every client of a queue means the same storage units in the same order, or is refused with one sentence."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.errors import StorageKeyNotFoundError
from rljob_transfer_queue.settings import Servers as Names
from rljob_workers.transfer_queue.errors import Mismatch, QueueError
from tests.compat.queue.conftest import stored_chunks
from tests.integration.transfer_queue.servers import PASSWORD, Server, Servers, running_servers

Join = Callable[..., TransferQueueClient]
OtherName = Callable[[Server, str], str]
CURE = "Name the same storage units in the same order in every process"


def rows(count: int, first: int = 0) -> TensorDict:
    return TensorDict({"x": torch.arange(first, first + count)}, batch_size=[count])


@pytest.fixture
def others() -> Iterator[Servers]:
    """Servers of another queue."""
    with running_servers() as found:
        yield found


@pytest.fixture
def join(servers: Servers) -> Iterator[Join]:
    """A client that names these units, by URL or as servers; without any, those of the queue."""
    made: list[TransferQueueClient] = []

    def client(*units: Server | str, control: Server | None = None) -> TransferQueueClient:
        urls = [unit if isinstance(unit, str) else unit.url for unit in units or servers.units]
        names = Names((control or servers.control).url, tuple(urls))
        made.append(TransferQueueClient(f"client-{len(made)}", names))
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture
def other_name() -> Iterator[OtherName]:
    """A second address of a server, as from another host; the last call for a name counts."""
    # Not tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:

        def link(server: Server, name: str) -> str:
            path = Path(folder) / name
            path.unlink(missing_ok=True)
            path.symlink_to(server.url.split("@")[1])
            return f"unix://:{PASSWORD}@{path}"

        yield link


def test_another_order_is_refused_before_it_takes_rows(join: Join, servers: Servers) -> None:
    first = join()
    meta = first.put(rows(8), partition_id="p")
    swapped = join(*reversed(servers.units))
    calls: list[Callable[[], Any]] = [
        lambda: swapped.get_meta(["x"], 8, "p", task_name="t"),
        lambda: swapped.get_data(meta),
        lambda: swapped.put(rows(8), partition_id="p"),
        lambda: swapped.clear_partition("p"),
        lambda: swapped.calls.session.sweep(0),
    ]
    for call in calls:
        sentence = r"storage unit 0 \(\S+unit1\.sock\) is storage unit 1 of this queue\. " + CURE
        with pytest.raises(Mismatch, match=sentence):
            call()
    assert first.get_data(first.get_meta(["x"], 8, "p", task_name="t"))["x"].tolist() == list(range(8))


def test_another_number_of_units_is_refused(join: Join, servers: Servers, others: Servers) -> None:
    join().put(rows(2), partition_id="p")
    with pytest.raises(Mismatch, match="this client names 1 storage units, and this queue has 2. " + CURE):
        join(servers.units[0]).get_partition_list()
    with pytest.raises(Mismatch, match="this client names 3 storage units, and this queue has 2"):
        join(*servers.units, others.units[0]).get_partition_list()


def test_a_unit_that_is_named_twice_is_refused(join: Join, servers: Servers) -> None:
    with pytest.raises(Mismatch, match=r"storage unit 1 \(\S+unit0\.sock\) is named twice"):
        join(servers.units[0], servers.units[0]).get_partition_list()
    assert join().get_partition_list() == []


def test_units_of_other_names_are_known_by_their_marks(join: Join, servers: Servers, other_name: OtherName) -> None:
    metas = [join().put(rows(4, first), partition_id="p") for first in (0, 4)]
    urls = [other_name(unit, f"u{index}") for index, unit in enumerate(servers.units)]
    far = join(*urls)
    assert [far.get_data(meta)["x"].tolist() for meta in metas] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    swapped = join(other_name(servers.units[1], "v0"), other_name(servers.units[0], "v1"))
    with pytest.raises(Mismatch, match=r"storage unit 0 \(\S+v0\) is storage unit 1 of this queue\. " + CURE):
        swapped.get_data(metas[0])


def test_units_of_another_queue_and_of_a_job_are_refused(join: Join, servers: Servers, others: Servers) -> None:
    retained = join(control=others.control).put(rows(4), partition_id="theirs")
    refused = r"storage unit 0 \(\S+unit0\.sock\) belongs to another queue or job"
    for call in (partial(join().put, rows(2), partition_id="p"), partial(join().calls.session.sweep, 0)):
        with pytest.raises(Mismatch, match=refused):
            call()
    assert join(control=others.control).get_data(retained)["x"].tolist() == [0, 1, 2, 3]
    servers.wipe()
    with servers.units[0].admin() as admin:
        admin.set("rljob:generation", 1)
    with pytest.raises(Mismatch, match=refused):
        join().put(rows(2), partition_id="p")


def test_a_unit_that_was_started_again_is_taken_under_names_that_are_known(
    join: Join, servers: Servers, other_name: OtherName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_transfer_queue.unit_marks.OTHERS_MARK_SECONDS", 0.1)
    client = join()
    meta = client.put(rows(2), partition_id="p")
    for unit in servers.units:
        unit.kill()
        unit.start()
    far = join(*(other_name(unit, f"u{index}") for index, unit in enumerate(servers.units)))
    sentence = r"storage unit 0 \(\S+u0\) is new to this queue, which knows storage unit 0 as \S+unit0\.sock\. If"
    with pytest.raises(Mismatch, match=sentence):
        far.get_partition_list()
    with pytest.raises(StorageKeyNotFoundError, match="are not there any more"):
        client.get_data(meta)
    client.put(rows(2, 10), metadata=meta)
    assert far.get_data(far.get_meta(["x"], 2, "p", task_name="t"))["x"].tolist() == [10, 11]


def put_at_once(clients: list[TransferQueueClient]) -> list[Any]:
    """Four rows of each: the batch, or what it was refused with."""
    begin = threading.Barrier(len(clients))
    outcomes: dict[int, Any] = {}

    def put(number: int) -> None:
        begin.wait(240)
        try:
            outcomes[number] = clients[number].put(rows(4, 4 * number), partition_id="p")
        except QueueError as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    return [outcomes[number] for number in range(len(clients))]


def assert_everybody_reads(clients: list[TransferQueueClient], batches: dict[int, Any]) -> None:
    for number, batch in batches.items():
        for client in clients:
            assert client.get_data(batch)["x"].tolist() == list(range(4 * number, 4 * number + 4))


@pytest.mark.parametrize("attempt", range(5))
def test_first_clients_that_race_agree(join: Join, servers: Servers, attempt: int) -> None:
    """Half of them name another order: all of one order go on, all of the other are refused."""
    clients = [join(*(servers.units if number % 2 else reversed(servers.units))) for number in range(8)]
    outcomes = put_at_once(clients)
    refused = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, str)}
    assert refused in ({0, 2, 4, 6}, {1, 3, 5, 7}), outcomes
    assert all(CURE in outcomes[number] for number in refused)
    others = [number for number in range(8) if number not in refused]
    assert_everybody_reads([clients[number] for number in others], {number: outcomes[number] for number in others})


def test_clients_that_find_units_empty_at_once_agree(join: Join, servers: Servers) -> None:
    clients = [join() for _ in range(4)]
    put_at_once(clients)
    for unit in servers.units:
        unit.kill()
        unit.start()
    outcomes = put_at_once(clients)
    assert_everybody_reads([*clients, join()], dict(enumerate(outcomes)))


def test_a_unit_that_was_away_at_first_is_met_when_it_is_back(
    join: Join, servers: Servers, other_name: OtherName
) -> None:
    first = join()
    metas = [first.put(rows(2, 2 * number), partition_id="p") for number in range(4)]
    links = [other_name(servers.units[1], "u0"), other_name(servers.units[0], "u1")]
    for unit in servers.units:
        unit.stop()
    try:
        fine, swapped = join(), join(*links)
        assert fine.get_partition_list() == swapped.get_partition_list() == ["p"]
    finally:
        for unit in servers.units:
            unit.resume()
    assert [fine.get_data(meta)["x"].tolist() for meta in metas] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # Nothing of the other order gets into the queue, and nothing is deleted.
    for call in (
        lambda: swapped.put(rows(2), partition_id="p"),
        lambda: swapped.get_data(metas[0]),
        lambda: swapped.clear_samples(metas[0]),
    ):
        with pytest.raises(Mismatch, match=r"storage unit [01] \(\S+u[01]\) is storage unit [01] of this queue\."):
            call()
    assert fine.get_meta([], None, "p", mode="force_fetch").size == 6
    first.clear_partition("p")
    assert stored_chunks(servers) == 0


def test_a_unit_that_comes_back_empty_before_the_commit_gets_the_bytes_again(join: Join, servers: Servers) -> None:
    client, other = join(), join()
    client.put(rows(2), partition_id="p")
    control = client.calls.session.control
    change = control.change

    def late(name: str, *arguments: Any, what: str) -> list[Any]:
        control.change = change  # type: ignore[method-assign]
        for index in range(2):
            servers.empty_unit(index)
        for _ in range(2):
            other.put(rows(2), partition_id="p")
        return change(name, *arguments, what=what)

    control.change = late  # type: ignore[method-assign]
    meta = client.put(rows(4, 50), partition_id="p")
    assert join().get_data(meta)["x"].tolist() == [50, 51, 52, 53]


def test_a_server_whose_place_was_taken_is_refused(
    join: Join, servers: Servers, others: Servers, other_name: OtherName
) -> None:
    """Two hosts where one name leads to two servers: one of the two clients goes on, the other gets an error."""
    name = other_name(servers.units[0], "u0")
    mine = join(servers.units[0], servers.units[1])
    join(name, servers.units[1].url).put(rows(2), partition_id="p")
    mine.put(rows(2), partition_id="p")
    other_name(others.units[0], "u0")
    theirs = join(name, servers.units[1].url)
    meta = theirs.put(rows(2, 8), partition_id="p")
    with pytest.raises(Mismatch, match=r"storage unit 0 \(\S+unit0\.sock\) belongs to another queue or job, or is not"):
        [mine.put(rows(2), partition_id="p") for _ in range(2)]
    assert theirs.get_data(meta)["x"].tolist() == [8, 9]


def test_a_queue_that_was_given_up_may_have_other_units(join: Join, servers: Servers, others: Servers) -> None:
    first = join()
    session = first.calls.session
    session.configure(b"{}", "owner")
    first.put(rows(4), partition_id="p")
    first.clear_partition("p")
    session.forget_settings("owner")
    second = join(servers.units[1], servers.units[0], others.units[0])
    metas = [second.put(rows(4, 4 * number), partition_id="q") for number in range(3)]
    third = join(servers.units[1], servers.units[0], others.units[0])
    assert [third.get_data(meta)["x"].tolist() for meta in metas] == [
        list(range(4 * number, 4 * number + 4)) for number in range(3)
    ]
    # A client of the old list reads and writes no more.
    for call in (lambda: first.put(rows(2), partition_id="q"), lambda: [first.get_data(meta) for meta in metas]):
        with pytest.raises(Mismatch, match=re.escape("this client names 2 storage units, and this queue has 3")):
            call()
