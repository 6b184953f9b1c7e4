"""Moderation: whether a message of another process says what can be so. Types are the wire's; here is how much of it.

Pure. Called where an answer of a coordinator comes in, before anybody counts with it: a time that is no number would
confuse the order in which all jobs are looked at, and a text without end would be written into status and events.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

LONGEST_TEXT = 16 * 1024
"""Characters. Last words have 4 KiB at most; messages are sentences."""

MOST_ENTRIES = 20_000
"""Of a list or map: several times the processes of the largest job."""

LARGEST_NUMBER = 2.0**53
"""Beyond it a float does not count any more. Unix times and counts of tokens are far below."""


def immoderate(message: BaseModel) -> str | None:
    """The first thing in it that cannot be so, with its place, or None."""
    found = _of(message)
    return None if found is None else f"{found[0].lstrip('.')}: {found[1]}"


def _of(value: Any) -> tuple[str, str] | None:  # noqa: ANN401 - whatever the wire's types hold
    """Its place within `value` and the sentence. Most of what comes is small and well: nothing is made for that."""
    if isinstance(value, str):
        return ("", f"{len(value)} characters, at most {LONGEST_TEXT} are taken") if len(value) > LONGEST_TEXT else None
    if isinstance(value, int | float):
        is_one = -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # not so of what is no number, either
        return None if is_one else ("", "no number that anything is counted with")
    if isinstance(value, BaseModel):
        return _within((f".{name}", inner) for name, inner in value.__dict__.items())
    if isinstance(value, list | tuple | dict):
        if len(value) > MOST_ENTRIES:
            return "", f"{len(value)} entries, at most {MOST_ENTRIES} are taken"
        if isinstance(value, dict):
            return _within(("", inner) for entry in value.items() for inner in entry)
        return _within((f"[{index}]", inner) for index, inner in enumerate(value))
    return None


def _within(parts: Iterable[tuple[str, Any]]) -> tuple[str, str] | None:
    for place, inner in parts:
        found = _of(inner)
        if found is not None:
            return place + found[0], found[1]
    return None
