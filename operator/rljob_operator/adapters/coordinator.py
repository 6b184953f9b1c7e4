"""Ways to a job's coordinator: its Service from inside the cluster, the API server's proxy from outside.

The proxy strips `Authorization`, so that the job's token travels in a header of its own. One session serves all jobs.
"""

from collections.abc import Callable
from typing import Protocol

import aiohttp
import orjson

from rljob_api.cluster import COORDINATOR_PORT, coordinator_name, service_host
from rljob_operator.adapters.api import Api
from rljob_operator.adapters.errors import ApiUnreachable
from rljob_operator.adapters.resources import SERVICES
from rljob_operator.adapters.views import JobKey
from rljob_operator.coordinator_link import CoordinatorRefused, CoordinatorUnreachable, Transport

CONNECT_SECONDS = 3.0

_GATEWAY = (502, 503, 504)


class Access(Protocol):
    """Makes a way to the coordinator of a job."""

    def to(self, job: JobKey, token: str) -> Transport:
        """The way; nothing is connected yet."""
        ...


class ServiceAccess:
    """From inside the cluster."""

    def __init__(self, session: aiohttp.ClientSession, check_may_write: Callable[[], None]) -> None:
        """`check_may_write` raises LeaseLost where only questions may be asked."""
        self._session = session
        self._check_may_write = check_may_write

    def to(self, job: JobKey, token: str) -> Transport:
        """Straight to the Service."""
        host = service_host(coordinator_name(job.name), job.namespace)
        return _ServiceTransport(self._session, f"http://{host}:{COORDINATOR_PORT}", token, self._check_may_write)


class ProxyAccess:
    """From outside, for development."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def to(self, job: JobKey, token: str) -> Transport:
        """Through the API server."""
        service = f"{coordinator_name(job.name)}:{COORDINATOR_PORT}"
        return _ProxyTransport(self._api, SERVICES.path(job.namespace, service, "proxy"), token)


class _ServiceTransport:
    def __init__(
        self, session: aiohttp.ClientSession, base: str, token: str, check_may_write: Callable[[], None]
    ) -> None:
        self._session = session
        self._base = base
        self._token = token
        self._check_may_write = check_may_write

    async def send(self, method: str, path: str, body: str | None, timeout: float) -> bytes:
        """The body of a good answer."""
        if method != "GET":
            self._check_may_write()
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {"X-RLJob-Token": self._token, "Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self._base + path, data=body, headers=headers, timeout=limits
            ) as answer:
                return _checked(method, path, answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: {error!r}") from error


class _ProxyTransport:
    def __init__(self, api: Api, base: str, token: str) -> None:
        self._api = api
        self._base = base
        self._token = token

    async def send(self, method: str, path: str, body: str | None, timeout: float) -> bytes:
        """The body of a good answer; what the proxy itself answers is no answer of the coordinator."""
        headers = {"X-RLJob-Token": self._token}
        content = None if body is None else orjson.loads(body)  # the client makes JSON of what it is given
        try:
            status, answer = await self._api.proxy(method, self._base + path, content, headers, timeout)
        except ApiUnreachable as error:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: {error}") from error
        if status in _GATEWAY and b'"kind":"Status"' in answer:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: the proxy says {status}")
        return _checked(method, path, status, answer)


def _checked(method: str, path: str, status: int, answer: bytes) -> bytes:
    if status >= 400:
        raise CoordinatorRefused(f"{method} {path}: {status} {answer[:500].decode(errors='replace')}")
    return answer
