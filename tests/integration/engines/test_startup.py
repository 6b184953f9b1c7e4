"""A rank waits for a server that takes its time, leaves when it shall, and names one that never comes."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rljob_workers.engines.backend import Ready
from rljob_workers.engines.base import EngineAway, EngineGone, EngineTimeout
from rljob_workers.engines.incarnation import FAILED_STARTS, await_engine
from rljob_workers.engines.sglang.connection import Connection

READY = Ready("/up", lambda status: status == 200)


class Loading(BaseHTTPRequestHandler):
    """Says 503 twice, and 200 from then on."""

    asked: list[str] = []  # noqa: RUF012 - one server at a time

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(503 if len(self.asked) < 3 else 200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A port that is someone's, who does not listen: so it is while a program starts."""
    with closing(socket.socket()) as port:
        port.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{port.getsockname()[1]}"


def test_it_waits_until_the_server_states_that_it_is_up(tmp_path: Path) -> None:
    Loading.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Loading) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert await_engine(url, READY, tmp_path / "engine-0.json", seconds=120)
        server.shutdown()
    assert Loading.asked == ["/up"] * 3


def test_who_shall_leave_meanwhile_leaves(nowhere: str, tmp_path: Path) -> None:
    assert not await_engine(nowhere, READY, tmp_path / "engine-0.json", seconds=120, goes_on=lambda: False)


def test_a_server_that_never_comes_is_named_with_the_field(nowhere: str, tmp_path: Path) -> None:
    with pytest.raises(EngineTimeout, match=r"/up for 0 s\. .* raise roles.rollout.engine.startupTimeoutSeconds"):
        await_engine(nowhere, READY, tmp_path / "engine-0.json", seconds=0)


def test_a_server_that_dies_again_and_again_in_its_start_is_not_waited_for(nowhere: str, tmp_path: Path) -> None:
    identity = tmp_path / "engine-0.json"
    incarnations = iter(range(100))

    def another_incarnation() -> bool:
        identity.write_text(json.dumps({"incarnation": f"{next(incarnations):012x}", "pid": 1, "url": nowhere}))
        return True

    with pytest.raises(EngineGone, match=f"has died {FAILED_STARTS} times before it was up"):
        await_engine(nowhere, READY, identity, seconds=120, goes_on=another_incarnation)


async def _ask(url: str) -> None:
    connection = Connection(url)
    try:
        await connection.get("/model_info", deadline=1e12)
    finally:
        await connection.close()


def test_a_request_that_reached_no_one_is_no_death(nowhere: str) -> None:
    with pytest.raises(EngineAway, match="nobody listens at http://127"):
        asyncio.run(_ask(nowhere))
