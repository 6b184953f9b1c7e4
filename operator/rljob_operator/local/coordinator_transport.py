"""The way to the coordinator of a run on this machine: one HTTP client with the job's token."""

from types import TracebackType
from typing import Self

import httpx

from rljob_api.wire.identity import Endpoints
from rljob_operator.coordinator_link import CoordinatorRefused, CoordinatorUnreachable


class LocalTransport:
    """Connections are made when they are needed, and closed at the end of the `async with`."""

    def __init__(self, endpoints: Endpoints) -> None:
        # Environment proxies are not asked: the coordinator is on this machine.
        self._http = httpx.AsyncClient(
            base_url=endpoints.coordinator, headers={"X-RLJob-Token": endpoints.token}, trust_env=False
        )

    async def __aenter__(self) -> Self:
        """Opens nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer."""
        del most_bytes  # who answers is a child of this process
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            answer = await self._http.request(method, path, content=body, headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: {error!r}") from error
        if answer.is_error:
            raise CoordinatorRefused(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.content
