"""Typed requests to a job's coordinator: status, events, epoch, desired state, acknowledgements.

`rljob run` and the operator share it; each brings its own `CoordinatorTransport`. Every answer is parsed and checked
against limits before anything is computed from it. It decides nothing and imports no HTTP library.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from rljob_api.base import ApiModel
from rljob_api.problems import first_problem
from rljob_api.wire.epochs import DesiredState, EpochRequest, RestorePoint
from rljob_api.wire.failures import FailureAcknowledgement
from rljob_api.wire.observation import CoordinatorStatus, EventKind, EventPage

LONGEST_TEXT = 16 * 1024
"""Characters. The last output of a process has 4 KiB at most; messages are sentences."""


MOST_ENTRIES = 20_000
"""Of a list or map: several times the processes of the largest job."""


LARGEST_NUMBER = 2.0**53
"""Beyond it a float does not count any more. Unix times and counts of tokens are far below."""


def exceeds_limits(message: BaseModel) -> str | None:
    """The first thing in it that cannot be so, with its place, or None."""
    found = _first_excess(message)
    return None if found is None else f"{found[0].lstrip('.')}: {found[1]}"


def _first_excess(value: Any) -> tuple[str, str] | None:  # noqa: ANN401 - whatever the wire's types hold
    """Its place within `value` and the sentence. Most of what comes is small and well: nothing is made for that."""
    if isinstance(value, str):
        return ("", f"{len(value)} characters, at most {LONGEST_TEXT} are taken") if len(value) > LONGEST_TEXT else None
    if isinstance(value, int | float):
        is_one = -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # not so of what is no number, either
        return None if is_one else ("", "no number that anything is counted with")
    if isinstance(value, BaseModel):
        return _first_excess_of((f".{name}", inner) for name, inner in value.__dict__.items())
    if isinstance(value, list | tuple | dict):
        if len(value) > MOST_ENTRIES:
            return "", f"{len(value)} entries, at most {MOST_ENTRIES} are taken"
        if isinstance(value, dict):
            return _first_excess_of(("", inner) for entry in value.items() for inner in entry)
        return _first_excess_of((f"[{index}]", inner) for index, inner in enumerate(value))
    return None


def _first_excess_of(parts: Iterable[tuple[str, Any]]) -> tuple[str, str] | None:
    for place, inner in parts:
        found = _first_excess(inner)
        if found is not None:
            return place + found[0], found[1]
    return None


ANSWER_SECONDS = 20.0
"""A restore deletes and re-issues within one script: an epoch may take seconds to open, more on a busy machine."""


MOST_BYTES = 8 * 1024 * 1024
"""Of any answer: it takes a tenth of a second to understand so much, in which no other job has a turn."""


A = TypeVar("A", bound=ApiModel)


class CoordinatorError(Exception):
    """Base of what can go wrong with a request: one of those below."""


class CoordinatorUnreachable(CoordinatorError):
    """It did not answer in time; asked again later."""


class CoordinatorRefused(CoordinatorError):
    """It answered with a reason; the job is observed and decided again."""


class CoordinatorTooLong(CoordinatorRefused):
    """Its answer is longer than it may be."""


class CoordinatorTransport(Protocol):
    """One way to a coordinator."""

    async def send(self, method: str, path: str, body: str | None, timeout: float, most_bytes: int) -> bytes:
        """The body of a good answer; raises CoordinatorUnreachable, CoordinatorTooLong or CoordinatorRefused."""
        ...


class CoordinatorLink:
    """The requests, typed."""

    def __init__(self, transport: CoordinatorTransport, most_bytes: int = MOST_BYTES) -> None:
        self._transport = transport
        self.most_bytes = most_bytes
        """Of an answer; a caller that knows how large the job is may set less."""

    async def status(self, timeout: float = ANSWER_SECONDS) -> CoordinatorStatus:
        """What the coordinator observes."""
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

    A coordinator of another version may answer what this one does not know: a refusal, which is requested again later.
    """
    try:
        understood = kind.model_validate_json(answer)
    except ValidationError as error:
        raise CoordinatorRefused(
            f"the coordinator's {kind.__name__} is not understood: {first_problem(error)}"
        ) from error
    problem = exceeds_limits(understood)
    if problem is not None:
        raise CoordinatorRefused(f"the coordinator's {kind.__name__} makes no sense: {problem}")
    return understood
