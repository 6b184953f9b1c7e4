"""HTTP transports of the operator to a coordinator: its Service inside the cluster, the API server's proxy outside.

A coordinator runs an image of the user's in the user's namespace, so its answers are not trusted: each has a maximal
length, redirections are refused and nothing is decompressed. The API server's proxy strips `Authorization`; the job's
token travels in a header of its own. Never imported by `rljob run`.
"""

from collections.abc import Callable

import aiohttp
import orjson

from rljob_api.cluster import COORDINATOR_PORT, coordinator_name, service_host
from rljob_operator.coordinator_client.link import CoordinatorRefused, CoordinatorTooLong, CoordinatorUnreachable
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import AnswerTooLong, ApiUnreachable
from rljob_operator.kube.kinds import SERVICES
from rljob_operator.kube.responses import read_at_most, what_came_back
from rljob_operator.kube.views import JobKey

CONNECT_SECONDS = 3.0


_GATEWAY = (502, 503, 504)


_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class ServiceTransport:
    """From inside the cluster: straight to the Service of the job's coordinator."""

    def __init__(
        self, session: aiohttp.ClientSession, check_may_write: Callable[[], None], job: JobKey, token: str
    ) -> None:
        """`check_may_write` raises LeadershipLost where only reads are allowed. Nothing is connected yet."""
        self._session = session
        self._check_may_write = check_may_write
        self._base = f"http://{service_host(coordinator_name(job.name), job.namespace)}:{COORDINATOR_PORT}"
        self._token = token

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer."""
        if method != "GET":
            self._check_may_write()
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {**_HEADERS, "X-RLJob-Token": self._token}
        what = f"{method} {self._base}{path}"
        try:
            async with self._session.request(
                method, self._base + path, data=body, headers=headers, timeout=limits, allow_redirects=False
            ) as answer:
                return _checked(what, answer, await read_at_most(answer, most_bytes))
        except AnswerTooLong as error:
            raise CoordinatorTooLong(f"{what}: the answer is longer than {most_bytes} bytes") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CoordinatorUnreachable(f"{what}: {what_came_back(error, timeout, CONNECT_SECONDS)}") from error


class ProxyTransport:
    """From outside, for development: through the API server's proxy."""

    def __init__(self, api: Api, job: JobKey, token: str) -> None:
        self._api = api
        self._base = SERVICES.path(job.namespace, f"{coordinator_name(job.name)}:{COORDINATOR_PORT}", "proxy")
        self._token = token

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer; what the proxy itself answers is no answer of the coordinator."""
        headers = {**_HEADERS, "X-RLJob-Token": self._token}
        content = None if body is None else orjson.loads(body)  # the client makes JSON of what it is given
        what = f"{method} {self._base}{path}"
        try:
            answer, received = await self._api.proxy(method, self._base + path, content, headers, timeout, most_bytes)
        except AnswerTooLong as error:
            raise CoordinatorTooLong(f"{what}: the answer is longer than {most_bytes} bytes") from error
        except ApiUnreachable as error:
            raise CoordinatorUnreachable(f"{what}: {error}") from error
        if answer.status in _GATEWAY and b'"kind":"Status"' in received:
            raise CoordinatorUnreachable(f"{what}: the API server's proxy says {answer.status}")
        return _checked(what, answer, received)


def _checked(what: str, answer: aiohttp.ClientResponse, body: bytes) -> bytes:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise CoordinatorRefused(f"{what}: the answer is packed, which was not asked for")
    if answer.status // 100 == 3:
        raise CoordinatorRefused(f"{what}: {answer.status}, a redirection, which is not followed")
    if answer.status // 100 != 2:
        raise CoordinatorRefused(f"{what}: {answer.status} {body[:500].decode(errors='replace')}")
    return body
