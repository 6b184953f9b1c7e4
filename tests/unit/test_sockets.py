"""Waiting for a socket whose descriptor `select` would refuse."""

import os
import resource
import socket
from contextlib import ExitStack

import pytest

from rljob_workers.sockets import is_readable, is_writable


def test_a_socket_above_the_bound_of_select_is_waited_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("descriptors are limited")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        one, other = (stack.enter_context(end) for end in socket.socketpair())
        high = stack.enter_context(socket.socket(fileno=os.dup2(one.fileno(), 1500)))
        assert (is_readable(high), is_writable(high)) == (False, True)
        other.send(b"x")
        assert is_readable(high, 60.0)
        high.recv(1)
        other.close()
        assert is_readable(high), "its end can be read"
