"""The watchdog of a local run counts every answer of the coordinator, and nothing else."""

import asyncio
from typing import cast

import httpx
import pytest

from rljob_operator.coordinator_client.link import CoordinatorRefused, CoordinatorUnreachable
from rljob_operator.local.supervisor import LocalTransport
from rljob_operator.local.watchdog import Watchdog


class Answers(list[str]):
    """A watchdog that retains who has answered."""

    def answered(self, name: str) -> None:
        self.append(name)


def handler(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/down":
        raise httpx.ConnectError("refused")
    return httpx.Response(409 if request.url.path == "/refused" else 200, text="text")


@pytest.mark.parametrize(
    ("path", "error", "answers"),
    [("/good", None, 1), ("/refused", CoordinatorRefused, 1), ("/down", CoordinatorUnreachable, 0)],
)
def test_an_answer_counts_also_one_that_refuses(path: str, error: type[Exception] | None, answers: int) -> None:
    answered = Answers()
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://coordinator")
    sent = LocalTransport(client, cast(Watchdog, answered)).send("GET", path, None, 1.0, 100)
    if error is None:
        assert asyncio.run(sent) == b"text"
    else:
        with pytest.raises(error):
            asyncio.run(sent)
    assert answered == ["coordinator"] * answers
