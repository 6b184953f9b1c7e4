"""The supervisor's side of the coordinator: status, events, epoch, orders, acknowledgements. It decides nothing."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx

from rljob_api.wire.epochs import DesiredState, EpochRequest, RestorePoint
from rljob_api.wire.failures import FailureAcknowledgement
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.observation import CoordinatorStatus, EventPage
from rljob_operator.local.errors import CoordinatorRefused, CoordinatorUnreachable

ANSWER_SECONDS = 20.0
"""A restore deletes and re-issues within one script: an epoch may take seconds to open, more on a busy machine."""


class CoordinatorLink:
    """One HTTP client with the job's token. Raises CoordinatorUnreachable and CoordinatorRefused."""

    def __init__(self, endpoints: Endpoints) -> None:
        # Environment proxies are not asked: the coordinator is on this machine.
        self._http = httpx.AsyncClient(
            base_url=endpoints.coordinator,
            headers={"X-RLJob-Token": endpoints.token},
            timeout=ANSWER_SECONDS,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        """Opens nothing yet: connections are made when they are needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def status(self) -> CoordinatorStatus:
        """What the coordinator sees."""
        return CoordinatorStatus.model_validate_json(await self._send("GET", "/v1/status"))

    async def events(self, after: int, wait_seconds: float) -> EventPage:
        """Events with a larger id than `after`; waits for the first one so long."""
        path = f"/v1/events?after={after}&wait={wait_seconds:g}"
        return EventPage.model_validate_json(await self._send("GET", path, timeout=wait_seconds + ANSWER_SECONDS))

    async def raise_epoch(self, request: EpochRequest) -> RestorePoint:
        """Fences every earlier epoch; the same request succeeds again."""
        return RestorePoint.model_validate_json(await self._send("POST", "/v1/epoch", request.model_dump_json()))

    async def set_desired(self, desired: DesiredState) -> None:
        """What every pod shall do."""
        await self._send("PUT", "/v1/desired", desired.model_dump_json())

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """The coordinator may forget these failures."""
        body = FailureAcknowledgement(ids=list(ids)).model_dump_json()
        await self._send("POST", "/v1/failures/acknowledge", body)

    async def _send(self, method: str, path: str, body: str | None = None, timeout: float = ANSWER_SECONDS) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            answer = await self._http.request(method, path, content=body, headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise CoordinatorUnreachable(f"the coordinator did not answer {method} {path}: {error!r}") from error
        if answer.is_error:
            raise CoordinatorRefused(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.content
