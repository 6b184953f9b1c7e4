"""The way to a coordinator: an answer that is not understood, and no write without the lease."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from pydantic import ValidationError

from rljob_api.wire.epochs import DesiredState
from rljob_operator.coordinator_client.cluster_transport import ServiceTransport
from rljob_operator.coordinator_client.link import CoordinatorLink, CoordinatorRefused, CoordinatorUnreachable
from rljob_operator.kube.errors import LeadershipLost
from rljob_operator.kube.views import JobKey
from rljob_operator.options import LeaseOptions


class Answers:
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        return self._answer


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"fromTheFuture": 1}'])
def test_a_coordinator_of_another_version_is_one_that_refuses(answer: bytes) -> None:
    link = CoordinatorLink(Answers(answer))
    for ask in (link.status(), link.events(0, 1)):
        with pytest.raises(CoordinatorRefused, match="is not understood: "):
            asyncio.run(as_coroutine(ask))


async def as_coroutine(ask: Awaitable[object]) -> object:
    return await ask


def test_without_the_lease_a_coordinator_is_only_asked() -> None:
    def lost() -> None:
        raise LeadershipLost("not renewed")

    async def with_link(use: Callable[[CoordinatorLink], Awaitable[object]]) -> None:
        async with aiohttp.ClientSession() as session:
            await use(CoordinatorLink(ServiceTransport(session, lost, JobKey("ns", "job"), "token")))

    desired = DesiredState(epoch=1, pods=[], replicas={})
    for write in (lambda link: link.set_desired(desired), lambda link: link.acknowledge(["a"])):
        with pytest.raises(LeadershipLost):
            asyncio.run(with_link(write))
    with pytest.raises(CoordinatorUnreachable):
        asyncio.run(with_link(lambda link: link.status()))


def test_the_times_of_a_lease_must_fall() -> None:
    with pytest.raises(ValidationError, match="durationSeconds 10, renewSeconds 10 and retrySeconds 2 must fall"):
        LeaseOptions(duration_seconds=10, renew_seconds=10)
