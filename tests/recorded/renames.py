"""Names that have changed since the recordings were made: old -> new, and nothing else of them may have.

A replay applies them to what is recorded: of decisions to keys and to strings that are the whole of a value, since
others are sentences; of the wire and of jobs to whole words within keys and strings. A name is listed by the commit
that changes it, and leaves this table when the recordings are made anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from tests.recorded.canonical import Json


class Recording(StrEnum):
    """What is recorded, by the name of its data."""

    DECISIONS = "decisions"
    WIRE = "wire"
    JOBS = "jobs"


RENAMES: Mapping[Recording, Mapping[str, str]] = {Recording.DECISIONS: {}, Recording.WIRE: {}, Recording.JOBS: {}}


def renamed(value: Json, names: Mapping[str, str]) -> Json:
    """`value` with today's names for keys and whole strings."""
    return _with_texts(value, lambda text: names.get(text, text)) if names else value


def renamed_within(value: Json, names: Mapping[str, str]) -> Json:
    """`value` with today's names for words of keys and strings."""
    if not names:
        return value
    name = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")
    return _with_texts(value, lambda text: name.sub(lambda found: names[found[0]], text))


def _with_texts(value: Json, change: Callable[[str], str]) -> Json:
    match value:
        case dict():
            return {change(key): _with_texts(each, change) for key, each in value.items()}
        case list():
            return [_with_texts(each, change) for each in value]
        case str():
            return change(value)
        case _:
            return value
