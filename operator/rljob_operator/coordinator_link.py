"""The supervisor's side of the coordinator: status, events, epoch, orders, acknowledgements. It decides nothing.

`rljob run` and the operator share it; how a request gets there is their `Transport`'s to know.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.problems import first_problem
from rljob_api.wire.epochs import DesiredState, EpochRequest, RestorePoint
from rljob_api.wire.failures import FailureAcknowledgement
from rljob_api.wire.observation import CoordinatorStatus, EventKind, EventPage
from rljob_operator.moderation import immoderate

ANSWER_SECONDS = 20.0
"""A restore deletes and re-issues within one script: an epoch may take seconds to open, more on a busy machine."""


MOST_BYTES = 8 * 1024 * 1024
"""Of any answer: it takes a tenth of a second to understand so much, in which nobody else is looked after."""

A = TypeVar("A", bound=ApiModel)


class CoordinatorError(Exception):
    """Base of what can go wrong with a request: one of those below."""


class CoordinatorUnreachable(CoordinatorError):
    """It did not answer in time; asked again later."""


class CoordinatorRefused(CoordinatorError):
    """It answered with a reason; observed anew, then decided anew."""


class CoordinatorTooLong(CoordinatorRefused):
    """Its answer is longer than it may be."""


class Transport(Protocol):
    """One way to a coordinator."""

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer; raises CoordinatorUnreachable, CoordinatorTooLong or CoordinatorRefused."""
        ...


class CoordinatorLink:
    """The requests, typed."""

    def __init__(self, transport: Transport, most_bytes: int = MOST_BYTES) -> None:
        self._transport = transport
        self.most_bytes = most_bytes
        """Of an answer; whoever knows how large the job is may ask for less."""

    async def status(self, timeout: float = ANSWER_SECONDS) -> CoordinatorStatus:
        """What the coordinator sees."""
        return _understood(CoordinatorStatus, await self._send("GET", "/v1/status", timeout=timeout))

    async def events(self, after: int, wait_seconds: float, quiet: Collection[EventKind] = ()) -> EventPage:
        """Events with a larger id than `after`; waits so long for the first one that is not of a quiet kind."""
        path = f"/v1/events?after={after}&wait={wait_seconds:g}" + "".join(f"&quiet={kind.value}" for kind in quiet)
        return _understood(EventPage, await self._send("GET", path, timeout=wait_seconds + ANSWER_SECONDS))

    async def raise_epoch(self, request: EpochRequest) -> RestorePoint:
        """Fences every earlier epoch; the same request succeeds again.

        Fields that have their defaults are left out, since a coordinator of an earlier version may not know them.
        """
        body = request.model_dump_json(exclude_defaults=True)
        return _understood(RestorePoint, await self._send("POST", "/v1/epoch", body))

    async def set_desired(self, desired: DesiredState) -> None:
        """What every pod shall do."""
        await self._send("PUT", "/v1/desired", desired.model_dump_json())

    async def acknowledge(self, ids: Sequence[str]) -> None:
        """The coordinator may forget these failures."""
        body = FailureAcknowledgement(ids=list(ids)).model_dump_json()
        await self._send("POST", "/v1/failures/acknowledge", body)

    async def _send(self, method: str, path: str, body: str | None = None, timeout: float = ANSWER_SECONDS) -> bytes:
        return await self._transport.send(method, path, body, timeout, self.most_bytes)


def _understood(kind: type[A], answer: bytes) -> A:
    """The answer, typed.

    A coordinator of another version may say what is not understood here. That counts as a refusal: asked again later.
    """
    try:
        understood = kind.model_validate_json(answer)
    except ValidationError as error:
        raise CoordinatorRefused(
            f"the coordinator's {kind.__name__} is not understood: {first_problem(error)}"
        ) from error
    problem = immoderate(understood)
    if problem is not None:
        raise CoordinatorRefused(f"the coordinator's {kind.__name__} makes no sense: {problem}")
    return understood
