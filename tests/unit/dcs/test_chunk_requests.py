"""Requests for chunks while the process has no descriptor left."""

import os
import resource
import socket
from contextlib import ExitStack

from rljob_workers.dcs.weights.chunk_requests import LENGTH, AwaitedRequests, WholeRequest

TURNS = 60
"""Far more than it takes: each waits for something to come."""


def test_a_server_without_descriptors_goes_on_once_there_are_some() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        awaited = AwaitedRequests(listener)
        stack.callback(awaited.close)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        first_free = os.dup(listener.fileno())
        os.close(first_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
        assert awaited.turn() == []
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.sendall(LENGTH.pack(2) + b"{}")
        whole = _first(awaited)
        assert whole.body == b"{}"
        whole.connection.close()


def _first(awaited: AwaitedRequests) -> WholeRequest:
    for _ in range(TURNS):
        for whole in awaited.turn():
            return whole
    raise AssertionError("no request came")
