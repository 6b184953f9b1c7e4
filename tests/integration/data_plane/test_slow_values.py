"""Large values over TCP: their reader sleeps until much is there, and yet notices little, the end, and silence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from rljob_workers.transfer_queue.resp import BrokenReply, RespConnection, ServerAddress

SILENCE_SECONDS, PAUSE_SECONDS = 3.5, 0.4
"""Far apart: a sender that a busy machine holds up between two pieces is not silent either."""
BODY = bytes(range(256)) * 3072


def later() -> float:
    return time.monotonic() + 240


@contextmanager
def sending(*pieces: bytes, pause: float, hold: bool = False) -> Iterator[RespConnection]:
    """A connection to a listener that sends a piece after each pause, and then closes, or holds the line."""
    done = threading.Event()

    def speak() -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            for piece in pieces:
                peer.sendall(piece)
                done.wait(pause)
            if hold:
                done.wait(240)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=speak)
        thread.start()
        address = ServerAddress(None, "127.0.0.1", listener.getsockname()[1], None)
        try:
            with closing(RespConnection(address, deadline=later(), silence_seconds=SILENCE_SECONDS)) as connection:
                yield connection
        finally:
            done.set()
            thread.join()


def cut(size: int) -> list[bytes]:
    return [BODY[first : first + size] for first in range(0, len(BODY), size)]


@pytest.mark.parametrize("size", [50_000, 1 << 19])
def test_a_value_that_comes_slowly_is_received_and_so_is_what_follows(size: int) -> None:
    """The small pieces take longer than the silence until so much is there that the reader wakes up by itself."""
    head, target = b"$%d\r\n" % len(BODY), bytearray(len(BODY))
    with sending(head, *cut(size), b"\r\n:1", b"\r\n+few\r\n", pause=PAUSE_SECONDS, hold=True) as connection:
        assert connection.begin_bulk(later()) == (len(BODY), b"")
        connection.read_into(memoryview(target), later())
        assert target == BODY
        assert connection.read(later()) == 1
        assert connection.has_reply(30)
        assert connection.read(later()) == b"few"


def test_a_server_that_falls_silent_within_a_value_is_noticed() -> None:
    with sending(b"$%d\r\n" % len(BODY), BODY[:1000], pause=0, hold=True) as connection:
        connection.begin_bulk(later())
        with pytest.raises(TimeoutError):
            connection.read_into(memoryview(bytearray(len(BODY))), later())


def test_a_stream_that_ends_within_a_value_is_broken() -> None:
    with sending(b"$%d\r\n" % len(BODY), BODY[:1000], pause=0) as connection:
        connection.begin_bulk(later())
        with pytest.raises(BrokenReply, match="closed"):
            connection.read_into(memoryview(bytearray(len(BODY))), later())
