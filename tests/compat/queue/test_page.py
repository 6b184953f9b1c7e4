"""Every example of docs/queue-compat.md runs as it stands there; only ports, and where Redis lies, are others."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

import rljob_transfer_queue as tq
from rljob_operator.local.services import find_server
from tests.integration.children import die_with_tests

PAGE = (Path(__file__).parents[3] / "docs" / "queue-compat.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTS_WITHIN_SECONDS = 120.0


def blocks(kind: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(PAGE) if found == kind]


def reserve_port(until: ExitStack) -> int:
    """A port that no one else is given `until` then; a server that asks for it by its number may listen on it."""
    one = until.enter_context(socket.socket())
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return int(one.getsockname()[1])


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """The servers of the page's commands: port of the page -> the real one."""
    commands = [line.removeprefix("$ ") for body in blocks("console") for line in body.splitlines()]
    found: dict[str, int] = {}
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder, ExitStack() as reserved:
        try:
            for command in commands:
                program, option, port, *rest = shlex.split(command)
                assert (program, option) == ("redis-server", "--port")
                found[port] = reserve_port(reserved)
                data = Path(folder) / port
                data.mkdir()
                text = [str(find_server()), option, str(found[port]), *rest, "--dir", str(data)]
                started.append(subprocess.Popen(text, stdout=subprocess.DEVNULL, preexec_fn=die_with_tests))
            for number in found.values():
                await_server(number)
            yield found
        finally:
            tq.close()
            for process in started:
                process.kill()
                process.wait()


def await_server(port: int) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_SECONDS
    with redis.Redis(port=port) as admin:
        while True:
            try:
                admin.ping()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, f"no Redis answers on port {port}"
                time.sleep(0.01)
            else:
                return


def test_every_example_runs(ports: dict[str, int]) -> None:
    code = "\n".join(blocks("python"))
    for shown, real in ports.items():
        assert f"127.0.0.1:{shown}" in code
        code = code.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
    names: dict[str, Any] = {}
    exec(compile(code, "docs/queue-compat.md", "exec"), names)
    assert names["meta"].size == 4


def test_the_page_names_every_call() -> None:
    message = set(re.findall(r"\w+", PAGE))
    missing = [
        name for name in tq.__all__ if name.removeprefix("async_") not in message and name != "get_metrics_endpoint"
    ]
    assert not missing
