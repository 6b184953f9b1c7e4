"""The data plane on real servers: what is stored comes back, and every fault has a name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.names import Epoch
from rljob_workers.tensors.jagged import Jagged, JaggedParts
from rljob_workers.transfer_queue.chunks import encode_chunk
from rljob_workers.transfer_queue.errors import CorruptChunk, RowsLost, StorageFull, StorageUnreachable
from rljob_workers.transfer_queue.resp import RespConnection, ServerAddress
from rljob_workers.transfer_queue.row_format import HEADER_BYTES, ChunkRef, FieldPlacement
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.types import QueueTiming
from rljob_workers.transfer_queue.units import StorageUnit
from tests.integration.data_plane.unit_server import UnitServer

Connect = Callable[..., StorageUnits]
Soon = Callable[..., float]


def make_columns(lengths: list[int]) -> dict[str, Jagged]:
    counts = torch.tensor(lengths, dtype=torch.int64)
    total = int(counts.sum())
    return {
        "tokens": Jagged.from_lengths(torch.arange(total, dtype=torch.int32), counts),
        "log_probs": Jagged.from_lengths(torch.arange(total).to(torch.bfloat16), counts),
        "hidden": Jagged.from_lengths(torch.arange(total * 6, dtype=torch.float32).reshape(total, 2, 3), counts),
        "rewards": Jagged.scalars(torch.arange(len(lengths), dtype=torch.float64)),
    }


def picked(stored: Mapping[str, FieldPlacement], rows: list[int]) -> dict[str, FieldPlacement]:
    return {field: replace(placement, rows=placement.rows[rows]) for field, placement in stored.items()}


def assert_same(found: dict[str, Jagged], expected: dict[str, Jagged], rows: list[int] | None = None) -> None:
    assert found.keys() == expected.keys()
    for field, column in expected.items():
        wanted = column if rows is None else column.select(rows)
        assert found[field].values.dtype == column.values.dtype
        assert torch.equal(found[field].offsets, wanted.offsets)
        assert torch.equal(found[field].values, wanted.values)


def chunks_of(stored: Mapping[str, FieldPlacement]) -> list[ChunkRef]:
    return [chunk for placement in stored.values() for chunk in placement.chunks]


def _keys(server: UnitServer, deadline: float) -> set[str]:
    unit = StorageUnit(0, server.url)
    try:
        return {key for page in unit.scan(deadline=lambda: deadline) for key in page}
    finally:
        unit.close()


def raw(server: UnitServer) -> RespConnection:
    return RespConnection(ServerAddress.parse(server.url), deadline=time.monotonic() + 120, silence_seconds=120)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([3], id="one row"),
        pytest.param([3, 0, 7, 1, 0], id="rows of different length, some empty"),
        pytest.param([0, 0], id="only empty rows"),
        pytest.param([9] * 512, id="many small rows"),
        pytest.param([50_000, 1, 120_000, 90_000] * 6, id="several chunks a field on both units"),
        pytest.param([1_500_000, 3], id="a row longer than a chunk"),
    ],
)
def test_what_is_stored_comes_back(lengths: list[int], servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    columns = make_columns(lengths)
    stored = connect(*servers).store(columns, deadline=soon())
    assert_same(connect(*servers).fetch(stored, deadline=soon()), columns)


def test_tcp_units_serve_alike(tcp_server: UnitServer, connect: Connect, soon: Soon) -> None:
    columns = make_columns([40_000, 5, 300_000])
    stored = connect(tcp_server).store(columns, deadline=soon())
    assert_same(connect(tcp_server).fetch(stored, deadline=soon()), columns)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.sampled_from([0, 1, 5, 900, 30_000]), min_size=1, max_size=12),
    data=st.data(),
)
def test_any_rows_in_any_order_come_back(
    lengths: list[int], data: st.DataObject, servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    columns = make_columns(lengths)
    units = connect(*servers)
    stored = units.store(columns, deadline=soon())
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=20))
    assert_same(units.fetch(picked(stored, rows), deadline=soon()), columns, rows)
    units.delete(chunks_of(stored), deadline=soon())
    units.close()


def test_rows_of_several_puts_come_back_as_one_column(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    units = connect(*servers)
    parts = [Jagged.from_rows([torch.arange(n) + 100 * put for n in (2, 3)]) for put in range(3)]
    stored = [units.store({"tokens": part}, deadline=soon())["tokens"] for part in parts]
    assert {placement.chunks[0].unit for placement in stored} == {0, 1}
    tables = [placement.rows + np.array([put, 0, 0], np.uint32) for put, placement in enumerate(stored)]
    joined = FieldPlacement(tuple(placement.chunks[0] for placement in stored), np.concatenate(tables))
    found = units.fetch({"tokens": joined}, deadline=soon())["tokens"]
    assert torch.equal(found.values, Jagged.concat(parts).values)


def test_a_chunk_of_unknown_size_is_read(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    units = connect(*servers)
    columns = {"tokens": Jagged.scalars(torch.arange(200_000))}
    placement = units.store(columns, deadline=soon())["tokens"]
    chunks = tuple(replace(chunk, num_bytes=0) for chunk in placement.chunks)
    found = units.fetch({"tokens": FieldPlacement(chunks, placement.rows[5:9])}, deadline=soon())["tokens"]
    assert found.values.tolist() == [5, 6, 7, 8]


def test_a_small_put_is_one_chunk_per_field_on_one_unit(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    chunks = chunks_of(connect(*servers).store(make_columns([9] * 512), deadline=soon()))
    assert sorted(chunk.field for chunk in chunks) == ["hidden", "log_probs", "rewards", "tokens"]
    assert len({chunk.unit for chunk in chunks}) == 1


def test_keys_report_epoch_and_incarnation_and_are_never_used_twice(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    columns = make_columns([4, 5])
    puts = [connect(*servers).store(columns, deadline=soon()) for _ in range(3)]
    keys = [chunk.key for stored in puts for chunk in chunks_of(stored)]
    assert len(set(keys)) == len(keys) == 12
    assert all(key.startswith("3:0123456789ab:") for key in keys)


def test_chunks_name_the_generation_of_the_server_that_took_them(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0])
    assert {chunk.unit_generation for chunk in chunks_of(units.store(make_columns([4]), deadline=soon()))} == {1}
    servers[0].kill()
    servers[0].start(generation=2)
    assert {chunk.unit_generation for chunk in chunks_of(units.store(make_columns([4]), deadline=soon()))} == {2}


def test_a_unit_is_not_written_to_before_it_is_marked(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    servers[0].kill()
    servers[0].start(generation=None)
    with pytest.raises(StorageUnreachable, match=r"storage unit 0 .* rows were to be stored"):
        connect(servers[0]).store(make_columns([4]), deadline=soon(0.2))
    marker = threading.Timer(0.1, servers[0].mark, (7,))
    marker.start()
    stored = connect(servers[0]).store(make_columns([4]), deadline=soon())
    marker.join()
    assert {chunk.unit_generation for chunk in chunks_of(stored)} == {7}


def test_a_unit_that_came_back_empty_has_lost_its_rows(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    units = connect(*servers)
    columns = make_columns([50_000, 1, 120_000, 90_000] * 6)
    stored = units.store(columns, deadline=soon())
    servers[1].kill()
    servers[1].start(generation=2)
    with pytest.raises(RowsLost, match=r"storage unit 1 .* no longer has \d+ chunks .*train_4") as lost:
        units.fetch(stored, deadline=soon(), waiting="the actor waits for train_4")
    assert lost.value.units == (1,)
    retained = {field: placement for field, placement in stored.items() if all(c.unit == 0 for c in placement.chunks)}
    assert_same(units.fetch(retained, deadline=soon()), {field: columns[field] for field in retained})


@pytest.mark.parametrize("rows", [pytest.param([0, 1, 2], id="whole chunk"), pytest.param([1], id="a part of a chunk")])
def test_a_deleted_chunk_is_lost_and_the_connection_goes_on(
    rows: list[int], servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0])
    columns = {name: Jagged.from_rows([torch.arange(100_000)] * 3) for name in ("kept", "gone")}
    stored = units.store(columns, deadline=soon())
    assert units.delete(stored["gone"].chunks, deadline=soon()) == len(stored["gone"].chunks)
    with pytest.raises(RowsLost, match=r"no longer has \d+ chunks"):
        units.fetch(picked(stored, rows), deadline=soon())
    retained = {"kept": picked(stored, rows)["kept"]}
    assert_same(units.fetch(retained, deadline=soon()), {"kept": columns["kept"]}, rows)


def test_a_unit_that_hangs_keeps_no_chunk_on_the_others_and_loses_its_own_when_it_is_back(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(*servers)
    chunks = [chunk for _ in servers for chunk in chunks_of(units.store(make_columns([4, 5]), deadline=soon()))]
    assert {chunk.unit for chunk in chunks} == {0, 1}
    hung = chunks[0].unit
    servers[hung].pause()
    try:
        # No longer than the one that hangs is waited for.
        num_deleted = units.delete(chunks, deadline=soon(QueueTiming().unit_silence_seconds))
    finally:
        servers[hung].resume()
    assert num_deleted == sum(chunk.unit != hung for chunk in chunks)
    assert _keys(servers[1 - hung], soon()) == set()
    stored = [units.store(make_columns([4]), deadline=soon()) for _ in servers]
    named = {chunk.key for put in stored for chunk in chunks_of(put)}
    assert _keys(servers[0], soon()) | _keys(servers[1], soon()) == named


def test_a_put_goes_to_another_unit_when_one_is_dead(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    servers[0].kill()
    units = connect(*servers)
    columns = make_columns([50_000, 1, 120_000, 90_000] * 6)
    stored = units.store(columns, deadline=soon())
    assert {chunk.unit for chunk in chunks_of(stored)} == {1}
    assert_same(units.fetch(stored, deadline=soon()), columns)


def test_a_put_goes_to_another_unit_when_one_hangs(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    units = connect(*servers)
    for _ in range(2):
        units.store(make_columns([1]), deadline=soon())
    servers[0].pause()
    stored = [units.store(make_columns([4]), deadline=soon()) for _ in range(3)]
    assert {chunk.unit for put in stored for chunk in chunks_of(put)} == {1}
    servers[0].resume()


def test_a_fetch_waits_for_a_unit_that_hangs_and_goes_on(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0])
    columns = make_columns([5, 6])
    stored = units.store(columns, deadline=soon())
    servers[0].pause()
    with pytest.raises(
        StorageUnreachable,
        match=r"storage unit 0 \(.*unit0\.sock\) has not answered for .* s; the actor waits for train_2\.",
    ):
        units.fetch(stored, deadline=soon(0.2), waiting="the actor waits for train_2")
    timer = threading.Timer(0.2, servers[0].resume)
    timer.start()
    assert_same(units.fetch(stored, deadline=soon()), columns)
    timer.join()


def test_a_dead_unit_is_named_at_the_deadline(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    for server in servers:
        server.kill()
    with pytest.raises(StorageUnreachable) as error:
        connect(*servers).store(make_columns([4]), deadline=soon(0.5), waiting="rollout-0.0 puts train_1")
    assert "unit0.sock" in str(error.value) or "unit1.sock" in str(error.value)
    assert "; rollout-0.0 puts train_1. Check its process." in str(error.value)


def test_a_wrong_password_is_reported_and_never_shown(servers: list[UnitServer], soon: Soon) -> None:
    url = servers[0].url.replace("p%40ss%2Fw%3Ard", "hunter2")
    units = StorageUnits([url], Epoch(1), "0123456789ab")
    with pytest.raises(StorageUnreachable, match="WRONGPASS") as error:
        units.store(make_columns([4]), deadline=soon(2.0))
    assert "hunter2" not in str(error.value) + repr(ServerAddress.parse(url))


def test_a_full_unit_passes_its_put_on_and_keeps_no_half_of_it(folder: Path, connect: Connect, soon: Soon) -> None:
    full, roomy = UnitServer(folder, "full", max_bytes=8 << 20), UnitServer(folder, "roomy")
    try:
        full.start()
        roomy.start()
        columns = {name: Jagged.scalars(torch.arange(600_000)) for name in ("a", "b", "c", "d")}
        units = connect(full, roomy)
        stored = units.store(columns, deadline=soon())
        assert_same(units.fetch(stored, deadline=soon()), columns)
        named = {chunk.key for chunk in chunks_of(stored)}
        for server in (full, roomy):
            assert _keys(server, soon()) <= named
    finally:
        full.kill()
        roomy.kill()


def test_full_units_are_named_at_the_deadline_and_taken_again_when_there_is_room(
    folder: Path, connect: Connect, soon: Soon
) -> None:
    server = UnitServer(folder, "full", max_bytes=16 << 20)
    try:
        server.start()
        units = connect(server)
        columns = {"a": Jagged.from_rows([torch.arange(250_000)] * 4)}
        first = units.store(columns, deadline=soon())
        with pytest.raises(
            StorageFull, match=r"storage unit 0 .* has no room for \d+ bytes; rollout-0\.0 puts train_9"
        ):
            units.store(columns, deadline=soon(2), waiting="rollout-0.0 puts train_9")
        units.delete(chunks_of(first), deadline=soon())
        assert_same(units.fetch(units.store(columns, deadline=soon()), deadline=soon()), columns)
    finally:
        server.kill()


def chunk_bytes(values: torch.Tensor) -> bytes:
    return b"".join(encode_chunk(values, 3))


def claim_of_three(size: int) -> dict[str, FieldPlacement]:
    """Three numbers of a chunk that the queue takes for int64 and `size` bytes long."""
    chunk = ChunkRef(0, 1, "3:0123456789ab:bad", "tokens", 0, 3, "int64", (), size)
    return {"tokens": FieldPlacement((chunk,), np.array([[0, 0, 1], [0, 1, 1], [0, 2, 1]], np.uint32))}


READ_WHOLE, READ_IN_PART = 0, 1 << 22


@pytest.mark.parametrize(
    ("size", "value", "sentence"),
    [
        pytest.param(READ_WHOLE, b"", "shorter than its header", id="empty value"),
        pytest.param(READ_WHOLE, b"x" * 500, "begins with", id="not a chunk"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(3))[:-1], "its header says", id="cut off"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(3)) + b"x", "its header says", id="too long"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(2)), "shorter than the rows", id="fewer rows"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(6).int()), "holds int32", id="another dtype"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(6).view(3, 2)), r"holds int64\[2\]", id="another shape"),
        pytest.param(READ_WHOLE, chunk_bytes(torch.arange(3))[:-1] + b"\x01", "match their checksum", id="flipped bit"),
        pytest.param(READ_IN_PART, b"x" * 500, "begins with", id="part of no chunk"),
        pytest.param(READ_IN_PART, b"x", "shorter than its header", id="part of a byte"),
        pytest.param(READ_IN_PART, chunk_bytes(torch.arange(3))[:-1], "shorter than the rows", id="part cut off"),
        pytest.param(READ_IN_PART, chunk_bytes(torch.arange(2)), "shorter than the rows", id="part of fewer rows"),
        pytest.param(READ_IN_PART, chunk_bytes(torch.arange(6).int()), "holds int32", id="part of another dtype"),
    ],
)
def test_a_chunk_that_is_not_what_the_queue_states_is_refused(
    size: int, value: bytes, sentence: str, servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0])
    connection = raw(servers[0])
    connection.call(b"SET", b"3:0123456789ab:bad", value, deadline=soon())
    connection.close()
    with pytest.raises(CorruptChunk, match=sentence):
        units.fetch(claim_of_three(size), deadline=soon())
    columns = make_columns([3])
    assert_same(units.fetch(units.store(columns, deadline=soon()), deadline=soon()), columns)


def test_a_column_in_parts_comes_back_as_one(servers: list[UnitServer], connect: Connect, soon: Soon) -> None:
    units = connect(*servers)
    parts = [Jagged.from_rows([torch.arange(start, start + 300_000)] * 4) for start in (0, 7, 9)]
    stored = units.store({"tokens": JaggedParts(parts)}, deadline=soon())
    assert len(stored["tokens"].chunks) > 1
    assert_same(units.fetch(stored, deadline=soon()), {"tokens": Jagged.concat(parts)})
    assert_same(units.fetch(picked(stored, [11, 0, 5]), deadline=soon()), {"tokens": Jagged.concat(parts)}, [11, 0, 5])


def test_with_checksums_a_flipped_bit_is_found_also_where_only_a_part_is_wanted(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0], checksums=True)
    stored = units.store({"tokens": Jagged.from_rows([torch.arange(40_000)] * 10)}, deadline=soon())
    assert_same(units.fetch(picked(stored, [4]), deadline=soon()), {"tokens": Jagged.from_rows([torch.arange(40_000)])})
    connection = raw(servers[0])
    key = chunks_of(stored)[0].key.encode()
    connection.call(b"SETRANGE", key, b"1000000", b"\xff" * 8, deadline=soon())
    connection.close()
    with pytest.raises(CorruptChunk, match="do not match their checksum"):
        units.fetch(picked(stored, [0]), deadline=soon())


def test_a_part_of_a_large_chunk_is_read_without_the_rest(
    servers: list[UnitServer], connect: Connect, soon: Soon
) -> None:
    units = connect(servers[0])
    stored = units.store({"a": Jagged.from_rows([torch.arange(40_000)] * 10)}, deadline=soon())
    connection = raw(servers[0])
    before = _bytes_sent(connection, soon())
    found = units.fetch(picked(stored, [2, 3, 7]), deadline=soon())["a"]
    sent = _bytes_sent(connection, soon()) - before
    connection.close()
    assert torch.equal(found.values, torch.arange(40_000).repeat(3))
    assert 3 * 320_000 <= sent <= 3 * 320_000 + 20 * HEADER_BYTES + 20_000


def _bytes_sent(connection: RespConnection, deadline: float) -> int:
    reply = connection.call(b"INFO", b"stats", deadline=deadline)
    assert isinstance(reply, bytes)
    figures = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
    return int(figures["total_net_output_bytes"])
