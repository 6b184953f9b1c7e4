"""Storage units that answer nonsense: refused by name, never a crash, a hang, a wrong tensor, or memory on their word.

RLJOB_FUZZ_EXAMPLES makes it longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.chunk_io import BufferPool, plan_reads, read_chunks
from rljob_workers.transfer_queue.chunks import ChunkHeader, encode_chunk, encode_header, row_table
from rljob_workers.transfer_queue.errors import CorruptChunk, StorageUnreachable
from rljob_workers.transfer_queue.resp import BrokenReply, ErrorReply, RespConnection, ServerAddress
from rljob_workers.transfer_queue.row_format import ChunkRef, FieldPlacement
from rljob_workers.transfer_queue.units import StorageUnit
from tests.unit.transfer_queue.mutations import mutated

EXAMPLES = int(os.environ.get("RLJOB_FUZZ_EXAMPLES", "60"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOON_SECONDS = 120.0
REFUSALS = (BrokenReply, ErrorReply, OSError)
"""What a connection may say: OSError where the listener has gone."""
COLUMN = Jagged.from_lengths(torch.arange(60, dtype=torch.int32), torch.tensor([10, 0, 30, 20]))


class Liar:
    """Takes a connection, waits for a request, says `replies` and closes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replies = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def connection(self) -> RespConnection:
        return RespConnection(ServerAddress(str(self.path), "", 0, None), deadline=soon(), silence_seconds=SOON_SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            # A client that does not like what it receives goes away in the middle.
            with peer, contextlib.suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(self.replies)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        made = Liar(Path(folder) / "liar.sock")
        yield made
        made.close()


def soon(seconds: float = SOON_SECONDS) -> float:
    return time.monotonic() + seconds


def placement() -> tuple[FieldPlacement, bytes]:
    """One chunk with a checksum, and the reply that holds it."""
    header, payload = encode_chunk(COLUMN.values, len(COLUMN))
    value = header + bytes(payload)
    chunk = ChunkRef(0, 1, "1:0123456789ab:0", "tokens", 0, len(COLUMN), "int32", (), len(value))
    return FieldPlacement((chunk,), row_table(COLUMN.offsets.numpy(), [0])), b"$%d\r\n%s\r\n" % (len(value), value)


@FUZZ
@given(data=st.data())
def test_a_chunk_is_whole_or_missing_or_refused(data: st.DataObject, liar: Liar) -> None:
    field, reply = placement()
    columns, by_unit = plan_reads({"tokens": field}, BufferPool(), checksums=True)
    liar.replies = data.draw(st.one_of(st.just(reply), mutated(reply), st.binary(max_size=200)))
    connection = liar.connection()
    try:
        missing = read_chunks(connection, soon(), by_unit[0], set())
    except (*REFUSALS, CorruptChunk):
        return
    finally:
        connection.close()
    assert missing == [field.chunks[0]] or torch.equal(columns["tokens"].values, COLUMN.values)


REPLIES = b"+OK\r\n:42\r\n$5\r\nab\r\nc\r\n$-1\r\n*2\r\n$0\r\n\r\n*1\r\n:7\r\n*-1\r\n-ERR no\r\n$3\r\nend\r\n"


@FUZZ
@given(data=st.data())
def test_replies_are_read_or_refused(data: st.DataObject, liar: Liar) -> None:
    liar.replies = data.draw(mutated(REPLIES, most=5))
    connection = liar.connection()
    connection.command(b"PING")
    try:
        with pytest.raises((BrokenReply, OSError)):
            read_all(connection)
    finally:
        connection.close()


def read_all(connection: RespConnection) -> None:
    """Until there is no more: that is a refusal, too."""
    while True:
        with contextlib.suppress(ErrorReply):
            connection.read(soon())


ASKED: dict[str, Callable[[StorageUnit, float], object]] = {
    "generation": lambda unit, until: unit.generation(deadline=until),
    "mark": lambda unit, until: unit.mark(3, deadline=until),
    "raise_mark": lambda unit, until: unit.raise_mark(3, deadline=until),
    "delete": lambda unit, until: unit.delete(["1:a:0"], deadline=until),
    "present": lambda unit, until: unit.present(["1:a:0", "1:a:1"], deadline=until),
    "figures": lambda unit, until: unit.figures(deadline=until),
    "scan": lambda unit, until: next(unit.scan(deadline=lambda: until)),
}
USE = b"used_memory:100\r\nmaxmemory:200\r\ntotal_net_input_bytes:5\r\ntotal_net_output_bytes:6"
ANSWERS = {
    "generation": b"$1\r\n4\r\n",
    "mark": b"+OK\r\n$1\r\n4\r\n",
    "raise_mark": b"$1\r\n4\r\n",
    "delete": b":1\r\n",
    "present": b":1\r\n:0\r\n",
    "figures": b"$%d\r\n%s\r\n:3\r\n" % (len(USE), USE),
    "scan": b"*2\r\n$2\r\n17\r\n*2\r\n$5\r\n1:a:0\r\n$5\r\n1:\xff:1\r\n",
}


@settings(FUZZ, max_examples=EXAMPLES // 3)
@given(data=st.data())
@pytest.mark.parametrize("question", list(ASKED))
def test_what_the_coordinator_asks_is_answered_or_fails_by_name(data: st.DataObject, question: str, liar: Liar) -> None:
    liar.replies = data.draw(st.one_of(mutated(ANSWERS[question]), st.sampled_from(list(ANSWERS.values()))))
    unit = StorageUnit(0, f"unix://{liar.path}")
    try:
        ASKED[question](unit, soon(0.03))
    except StorageUnreachable as error:
        assert "storage unit 0" in str(error)  # noqa: PT017 - an answer is allowed, too
    finally:
        unit.close()


MOST_BYTES = 8 << 20


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param(b"$500000000\r\n", id="a value"),
        pytest.param(b"*2\r\n$500000000\r\n", id="a value in a list"),
        pytest.param(b"*500000000\r\n", id="a list"),
        pytest.param(b"*1\r\n" * 20_000, id="lists in lists"),
    ],
)
def test_no_memory_is_taken_for_a_size_that_a_unit_claims(replies: bytes, liar: Liar) -> None:
    liar.replies = replies
    connection = liar.connection()
    connection.command(b"PING")
    tracemalloc.start()
    try:
        with pytest.raises((BrokenReply, OSError)):
            connection.read(soon())
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
        connection.close()


def test_a_value_that_is_longer_than_the_queue_states_is_refused_before_memory_is_taken(liar: Liar) -> None:
    field, _ = placement()
    _, by_unit = plan_reads({"tokens": field}, BufferPool(), checksums=True)
    header = encode_header(ChunkHeader(torch.int32, (), 4, 400_000_000, None))
    liar.replies = b"$%d\r\n" % (len(header) + 400_000_000) + header
    connection = liar.connection()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptChunk):
            read_chunks(connection, soon(), by_unit[0], set())
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
        connection.close()
