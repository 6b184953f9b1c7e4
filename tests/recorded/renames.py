"""Names that have changed since the recordings were made: old -> new, and nothing else of them may have.

A replay applies them to what is recorded: to every key, and to every string that is the whole of a value. A name is
listed by the commit that changes it, and leaves this table when the recordings are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tests.recorded.canonical import Json


class Recording(StrEnum):
    """What is recorded, by the name of its data."""

    DECISIONS = "decisions"
    WIRE = "wire"
    JOBS = "jobs"


RENAMES: Mapping[Recording, Mapping[str, str]] = {Recording.DECISIONS: {}, Recording.WIRE: {}, Recording.JOBS: {}}


def renamed(value: Json, names: Mapping[str, str]) -> Json:
    """`value` with today's names."""
    match value:
        case dict():
            return {names.get(key, key): renamed(each, names) for key, each in value.items()}
        case list():
            return [renamed(each, names) for each in value]
        case str():
            return names.get(value, value)
        case _:
            return value
