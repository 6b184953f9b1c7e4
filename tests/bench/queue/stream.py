"""What this machine's loopback carries over one TCP connection without a protocol.

python -m tests.bench.queue.stream
"""

from __future__ import annotations

import os
import socket
import sys
import time

BLOCK_BYTES = 4 << 20


def stream_seconds(num_bytes: int) -> float:
    """Seconds from the first byte sent by a process to the last one received here."""
    block = memoryview(bytearray(os.urandom(1 << 20) * (BLOCK_BYTES >> 20)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = os.fork()
        if sender == 0:
            _send(listener.getsockname(), block, num_bytes)
        try:
            listener.settimeout(10)
            receiver, _ = listener.accept()
            with receiver:
                return _receive(receiver, num_bytes)
        finally:
            os.waitpid(sender, 0)


def _send(address: tuple[str, int], block: memoryview, num_bytes: int) -> None:
    try:
        with socket.create_connection(address, timeout=60) as sender:
            for _ in range(num_bytes // BLOCK_BYTES):
                sender.sendall(block)
    finally:
        os._exit(0)


def _receive(receiver: socket.socket, num_bytes: int) -> float:
    receiver.settimeout(60)
    place = memoryview(bytearray(BLOCK_BYTES))
    began, got = time.perf_counter(), 0
    while got < num_bytes:
        count = receiver.recv_into(place)
        if not count:
            sys.exit(f"bench: the loopback stream ended after {got} of {num_bytes} bytes.")
        got += count
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.stdout.write(f"{(1 << 30) / stream_seconds(1 << 30) / 1e9:.2f} GB/s\n")
