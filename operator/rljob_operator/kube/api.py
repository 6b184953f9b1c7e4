"""The API server: one session, raw JSON, a deadline for every request. Every write goes through it.

Built on the official client's asyncio side for configuration, credentials and connections. Its typed models are left
out: turning every answer into them costs several times what the answer itself does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.rest import RESTResponse

from rljob_api.failpoints import failpoint
from rljob_operator.kube.clock import ApiClock
from rljob_operator.kube.errors import ApiNotFound, ApiUnreachable, refusal
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.responses import decoded, read_at_most, what_came_back

Json = dict[str, Any]
"""An object as the API server speaks of it. It is read field by field at the border and goes no further."""


REQUEST_SECONDS = 15.0
"""Longest wait for an answer: a loaded API server takes seconds, a lost packet minutes without a deadline."""


CONNECT_SECONDS = 5.0


FIELD_MANAGER = "rljob-operator"


APPLY = "application/apply-patch+yaml"


MERGE = "application/merge-patch+json"


NO_VERSION = "1"
"""A version that no object has: an apply that names it creates an object, and conflicts with any that is there."""


METADATA_ONLY = "application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1"


class Api:
    """Reads, and writes as long as `may_write` does not raise (LeaseLost)."""

    def __init__(self, client: ApiClient, metrics: Metrics, may_write: Callable[[], None]) -> None:
        self._client = client
        self._metrics = metrics
        self._may_write = may_write
        self.clock = ApiClock()
        """Goes by the Date of its answers."""

    def check_may_write(self) -> None:
        """Raises LeaseLost where nothing may be written any more, to the API server or to a coordinator."""
        self._may_write()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """One object."""
        return await self._ask("get", "GET", resource, resource.path(namespace, name))

    async def get_metadata(self, resource: Resource, namespace: str, name: str) -> Json:
        """The metadata of one object, without what it holds."""
        accept = METADATA_ONLY.format(list="")
        return await self._ask("get", "GET", resource, resource.path(namespace, name), accept=accept)

    async def list(self, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str = "") -> Json:
        """One page of a collection."""
        return await self._ask("list", "GET", resource, resource.path(namespace), query=query, accept=accept)

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server serves this kind, in this version. A group may be there without it."""
        path = f"/apis/{resource.api_version}"
        try:
            known = await self._ask("get", "GET", resource, path)
        except ApiNotFound:
            return False
        return any(each["name"] == resource.plural for each in known["resources"])

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        """A new object; ApiConflict if it exists."""
        return await self._write("create", "POST", resource, resource.path(namespace), body, query=_manager())

    async def rehearse(self, resource: Resource, namespace: str, body: Json) -> None:
        """Asks whether a new object would be taken, with every field known; nothing is stored."""
        query = {**_manager(), "dryRun": "All", "fieldValidation": "Strict"}
        await self._ask("rehearse", "POST", resource, resource.path(namespace), body=body, query=query)

    async def apply_new(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Server-side apply of an object that is not there yet; ApiConflict, and nothing is written, if it is.

        A POST would leave every field owned by an update as well, so that no later apply could take one away.
        """
        return await self._apply(resource, namespace, name, _with(body, resourceVersion=NO_VERSION))

    async def apply(self, resource: Resource, namespace: str, name: str, body: Json, uid: str) -> Json:
        """Server-side apply with the operator's field manager, to this object and not to another one of its name."""
        return await self._apply(resource, namespace, name, _with(body, uid=uid))

    async def _apply(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        query = {**_manager(), "force": "true"}
        return await self._write("apply", "PATCH", resource, resource.path(namespace, name), body, APPLY, query)

    async def merge(
        self, resource: Resource, namespace: str, name: str, body: Json, subresource: str | None = None
    ) -> Json:
        """A merge patch; with metadata.resourceVersion in it, ApiConflict if another client wrote first."""
        path = resource.path(namespace, name, subresource)
        return await self._write("patch", "PATCH", resource, path, body, MERGE, _manager())

    async def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        """Deletion with these DeleteOptions."""
        return await self._write("delete", "DELETE", resource, resource.path(namespace, name), options)

    async def claim(self, method: str, resource: Resource, path: str, body: Json) -> Json:
        """A write that makes a leader, and so needs none."""
        verb = "create" if method == "POST" else "update"
        return await self._ask(verb, method, resource, path, body=body)

    async def proxy(
        self, method: str, path: str, body: Json | None, headers: Json, timeout: float, most_bytes: int
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """A request to a Service through the API server: the answer and its body, whatever they are.

        But for GET, a write. AnswerTooLong: the Service is no part of the control plane.
        """
        if method != "GET":
            self.check_may_write()
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        try:
            opened = await self._open(method, path, {}, body, "application/json", "", limits, headers)
            answer: aiohttp.ClientResponse = opened.response
            return answer, await read_at_most(answer, most_bytes)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnreachable(what_came_back(error, timeout, CONNECT_SECONDS)) from error

    @asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str, silence_seconds: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The stream of a watch; a stream that is silent for too long raises TimeoutError.

        So does one that does not begin as soon as any other answer: it was asked for on a connection that is dead.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        path = resource.path(namespace)
        started = time.perf_counter()
        async with asyncio.timeout(REQUEST_SECONDS):
            response = await self._dated(self._open("GET", path, query, None, "", accept, timeout))
        self._count("watch", resource, response.status, started)
        try:
            if response.status != 200:
                raise _refused(f"watch {path}", response, await response.response.read())
            yield response.response.content
        finally:
            response.response.close()

    async def _write(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        body: Json,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        self.check_may_write()
        answer = await self._ask(verb, method, resource, path, body=body, content_type=content_type, query=query or {})
        failpoint("operator.after_write")
        return answer

    async def _ask(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        *,
        body: Json | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        accept: str = "",
    ) -> Json:
        started = time.perf_counter()
        status = 0
        try:
            status, answer, response = await self._send(method, path, query or {}, body, content_type, accept)
        finally:
            self._count(verb, resource, status, started)
        if status >= 300:
            raise _refused(f"{verb} {path}", response, answer)
        try:
            return decoded(answer)
        except orjson.JSONDecodeError as error:  # something in between has answered
            raise ApiUnreachable(f"the API server answered {method} {path} with what is no JSON: {error}") from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
        accept: str,
    ) -> tuple[int, bytes, RESTResponse]:
        limits = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            response = await self._dated(self._open(method, path, query, body, content_type, accept, limits))
            return response.status, await response.response.read(), response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnreachable(
                f"the API server did not answer {method} {path} in {REQUEST_SECONDS:g} s: {error!r}"
            ) from error

    async def _dated(self, opening: Coroutine[Any, Any, RESTResponse]) -> RESTResponse:
        """Sets the clock by an answer of the API server itself: a Service behind it dates its answers by another."""
        sent = self.clock.begin()
        response = await opening
        if response.status < 500:  # what is between may answer in its place, with a 502 or 504
            self.clock.answered(response.headers.get("Date", ""), sent)
        return response

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> RESTResponse:
        sent = {"Accept": accept or "application/json", **headers}
        if content_type:
            sent["Content-Type"] = content_type
        # Credentials and the URL come from the client; the body goes past its recursive sanitizing, it is JSON already.
        method, url, sent, _, _ = await self._client.param_serialize(
            method, path, header_params=sent, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        return await self._client.call_api(method, url, sent, body, _request_timeout=timeout)

    def _count(self, verb: str, resource: Resource, status: int, started: float) -> None:
        code = str(status) if status else "none"
        self._metrics.api_requests.labels(verb, resource.plural, code).inc()
        self._metrics.api_seconds.labels(verb, resource.plural).observe(time.perf_counter() - started)


def _with(body: Json, **metadata: str) -> Json:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def _manager() -> dict[str, str]:
    return {"fieldManager": FIELD_MANAGER}


def _refused(what: str, response: RESTResponse, body: bytes) -> Exception:
    try:
        answer = orjson.loads(body)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", body[:500].decode(errors="replace")
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    return refusal(what, response.status, reason, message, retry_after)
