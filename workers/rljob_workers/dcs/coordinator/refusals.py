"""Refused requests, with the HTTP status that says so. Raised in the rooms of the coordinator, answered in `app`."""

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.wire.identity import Refusal

CONFLICT = 409
UNAVAILABLE = 503
MISSING = 404
BAD = 400


class Refused(Exception):
    """A request that is answered with a `Refusal`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.refusal = Refusal(reason=reason, message=message)

    @property
    def body(self) -> bytes:
        """The answer."""
        return self.refusal.model_dump_json().encode()


def fenced(message: str) -> Refused:
    """The speaker's life is over."""
    return Refused(CONFLICT, "Fenced", message)


def wrong_epoch(message: str) -> Refused:
    """The speaker is of another epoch."""
    return Refused(CONFLICT, "WrongEpoch", message)


def dead(message: str) -> Refused:
    """The weight is not alive."""
    return Refused(CONFLICT, "Dead", message)


def incomplete(message: str) -> Refused:
    """The version's turn has not come."""
    return Refused(CONFLICT, "Incomplete", message)


def not_open(message: str) -> Refused:
    """The control Redis is away or not opened yet: ask again."""
    return Refused(UNAVAILABLE, "NotOpen", message)


def not_found(message: str) -> Refused:
    """There is no such thing (yet)."""
    return Refused(MISSING, "NotFound", message)


def bad_request(message: str) -> Refused:
    """The request makes no sense."""
    return Refused(BAD, "BadRequest", message)


def invalid(problems: Iterable[Mapping[str, Any]]) -> Refused:
    """The request is not what its model says; `problems` are pydantic's."""
    return bad_request("; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems))
