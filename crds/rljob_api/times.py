"""Times: Unix seconds inside, RFC 3339 in UTC wherever they are written down. Pure."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema


def timestamp(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC, with microseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """The inverse of `timestamp`; any RFC 3339 time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _read(value: object) -> object:
    return seconds(value) if isinstance(value, str) else value


Time = Annotated[
    float,
    BeforeValidator(_read),
    PlainSerializer(timestamp, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment: Unix seconds in Python; in JSON what `kubectl` and its users read, to the microsecond."""
