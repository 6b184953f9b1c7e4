"""The connection against a listener that says what a test wants: cut anywhere, broken, silent."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_workers.transfer_queue.resp import BrokenReply, ErrorReply, RespConnection, ServerAddress

SOON_SECONDS = 120.0


@contextmanager
def replying(folder: Path, *pieces: bytes, hold: bool = False) -> Iterator[RespConnection]:
    """A connection to a listener that sends `pieces` and then closes, or holds the line."""
    path = folder / "listener.sock"
    path.unlink(missing_ok=True)
    done = threading.Event()

    def speak(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        # A client that has received enough goes away in the middle.
        with peer, suppress(OSError):
            for piece in pieces:
                peer.sendall(piece)
            if hold:
                done.wait(SOON_SECONDS)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=speak, args=(listener,))
        thread.start()
        address = ServerAddress(str(path), "", 0, None)
        try:
            with closing(RespConnection(address, deadline=soon(), silence_seconds=SOON_SECONDS)) as connection:
                yield connection
        finally:
            done.set()
            thread.join()


def soon() -> float:
    return time.monotonic() + SOON_SECONDS


REPLIES = b"+OK\r\n:42\r\n$5\r\nab\r\nc\r\n$-1\r\n*2\r\n$0\r\n\r\n*-1\r\n-ERR no\r\n+end\r\n"


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(REPLIES)), max_size=12).map(sorted))
def test_replies_are_read_however_they_arrive(cuts: list[int], folder: Path) -> None:
    edges = [0, *cuts, len(REPLIES)]
    with replying(folder, *[REPLIES[start:end] for start, end in itertools.pairwise(edges)]) as connection:
        assert [connection.read(soon()) for _ in range(5)] == [b"OK", 42, b"ab\r\nc", None, [b"", None]]
        with pytest.raises(ErrorReply, match="ERR no"):
            connection.read(soon())
        assert connection.read(soon()) == b"end"


def test_a_bulk_longer_than_the_buffer_lands_in_the_callers_memory(folder: Path) -> None:
    body = bytes(range(256)) * 1000
    target = bytearray(len(body))
    with replying(folder, b"$%d\r\n" % len(body), body[:7], body[7:], b"\r\n:1\r\n") as connection:
        assert connection.begin_bulk(soon()) == (len(body), b"")
        connection.read_into(memoryview(target), soon())
        assert bytes(target) == body
        assert connection.read(soon()) == 1


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.tuples(st.sampled_from([b"$", b"*", b":", b"+"]), st.binary(max_size=30)).map(lambda parts: b"".join(parts)),
        st.sampled_from(
            [b"$99999999999999\r\n", b"*99999999999\r\n", b"$3\r\nabcd\r\n", b"x" * 100_000, b"$" + b"9" * 5000]
        ),
    )
)
def test_what_is_no_reply_breaks_the_connection_and_nothing_else(data: bytes, folder: Path) -> None:
    with replying(folder, data) as connection, pytest.raises((BrokenReply, ErrorReply)):
        _read_all(connection)


def _read_all(connection: RespConnection) -> None:
    while True:
        connection.read(soon())


def test_silence_ends_at_the_deadline(folder: Path) -> None:
    with replying(folder, b"$5\r\nab", hold=True) as connection, pytest.raises(TimeoutError):
        connection.read(time.monotonic() + 0.05)


def test_the_head_of_a_bulk_comes_with_its_size(folder: Path) -> None:
    rest = bytearray(6)
    with replying(folder, b"$10\r\n0123", b"456789\r\n$2\r\nab\r\n$0\r\n\r\n$-1\r\n:1\r\n") as connection:
        assert connection.begin_bulk(soon(), 4) == (10, b"0123")
        connection.read_into(memoryview(rest), soon())
        assert rest == b"456789"
        assert [connection.begin_bulk(soon(), 4) for _ in range(3)] == [(2, b"ab"), (0, b""), None]
        assert connection.read(soon()) == 1


def test_a_listener_that_does_not_read_ends_a_flush_at_the_deadline(folder: Path) -> None:
    with replying(folder, hold=True) as connection:
        connection.command(b"SET", b"key", memoryview(bytes(64 << 20)))
        with pytest.raises(TimeoutError):
            connection.read(time.monotonic() + 0.05)
